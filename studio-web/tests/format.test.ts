import { describe, expect, it } from 'vitest'
import { bandwidth, cell, count, gibibytes, gigabytes, percent, seconds } from '../src/lib/format'
import { mathml } from '../src/lib/math'

describe('quantities keep GB and GiB apart', () => {
  it('writes decimal and binary bytes', () => {
    expect(gigabytes(112e9)).toBe('112 GB')
    expect(gigabytes(26.25e9)).toBe('26.25 GB')
    expect(gibibytes(85899345920)).toBe('80 GiB')
    expect(bandwidth(450e9)).toBe('450 GB/s')
  })
  it('changes the unit just before a thousand', () => {
    expect(gigabytes(999.9e6)).toBe('999.9 MB')
    expect(gigabytes(999.99e6)).toBe('1 GB')
    expect(seconds(0.0006)).toBe('600 µs')
    expect(seconds(90)).toBe('90 s')
    expect(seconds(0)).toBe('0 s')
    expect(count(70.6e9)).toBe('70.6 B')
    expect(count(1.75e17)).toBe('2·10^17')
  })
  it('uses a true minus', () => expect(percent(-0.5)).toBe('−50.0 %'))
  it('shows nothing for null', () => expect(cell(null)).toBe('–'))
})

describe('mathematics', () => {
  it('makes a fraction and drops its brackets', () => {
    expect(mathml('(P-1)/(M+P-1)')).toMatch(/^<mfrac>.*<\/mfrac>$/)
    expect(mathml('(P-1)/(M+P-1)')).not.toContain('(')
  })
  it('keeps a number with its unit', () => expect(mathml('64 MB/4')).toContain('<mn>64 MB</mn>'))
  it('sets the blocks of a matrix', () => {
    expect(mathml('[X_1,X_2]*[W_1;W_2]')).toContain('<msub>')
    expect(mathml('X_1*W_1+X_2*W_2')).not.toContain('_')
    expect(mathml('head_1*O_1+head_2*O_2')).not.toContain('_')
  })
  it('escapes what it is given', () => expect(mathml('a<b') ?? '').not.toContain('<b'))
  it('gives up on what it cannot read', () => {
    expect(mathml('(P-1')).toBeNull()
    expect(mathml('"quoted"')).toBeNull()
  })
})
