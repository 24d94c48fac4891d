// How quantities are written. Units as everywhere in meshwright: GB is 1e9, GiB is 2**30.

const minus = (text: string) => text.replace('-', '−')

function digits(value: number, significant = 3): string {
  if (value === 0) return '0'
  const magnitude = Math.floor(Math.log10(Math.abs(value)))
  const places = Math.max(0, significant - 1 - magnitude)
  const text = value.toFixed(Math.min(places, 6))
  return minus(text.includes('.') ? text.replace(/\.?0+$/, '') : text)
}

function scaled(value: number, base: number, units: string[], significant = 3): string {
  let size = Math.abs(value)
  let index = 0
  while (size >= base * (1 - 0.5 / 10 ** significant) && index < units.length - 1) {
    size /= base
    index += 1
  }
  return `${value < 0 ? '−' : ''}${digits(size, size >= 1000 ? 4 : significant)} ${units[index]}`
}

/** Decimal bytes, as the lessons and data sheets write them: `112 GB`. */
export const gigabytes = (bytes: number) => scaled(bytes, 1000, ['B', 'kB', 'MB', 'GB', 'TB', 'PB'], 4)

/** Binary bytes, as allocators count: `38.5 GiB`. */
export const gibibytes = (bytes: number) => scaled(bytes, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'])

export const count = (value: number) =>
  value >= 1e15 ? value.toExponential(0).replace('e+', '·10^') : scaled(value, 1000, ['', 'k', 'M', 'B', 'T']).trim()

export function seconds(value: number): string {
  const size = Math.abs(value)
  if (size === 0) return '0 s'
  if (size >= 172800) return `${digits(value / 86400)} days`
  if (size >= 7200) return `${digits(value / 3600)} h`
  if (size >= 600) return `${digits(value / 60)} min`
  if (size >= 0.9995) return `${digits(value)} s`
  if (size >= 0.9995e-3) return `${digits(value * 1e3)} ms`
  if (size >= 0.9995e-6) return `${digits(value * 1e6)} µs`
  return `${digits(value * 1e9)} ns`
}

export const percent = (fraction: number, places = 1) => `${minus((fraction * 100).toFixed(places))} %`
export const number = (value: number) => (Number.isInteger(value) ? minus(String(value)) : digits(value))
export const bandwidth = (bytes_s: number) => `${gigabytes(bytes_s)}/s`
export const times = (ratio: number) => `${digits(ratio)} ×`

/** A cell of a table from the server: numbers shortened, text as it is. */
export function cell(value: string | number | boolean | null): string {
  if (value === null || value === undefined) return '–'
  if (typeof value === 'number') return number(value)
  if (typeof value === 'boolean') return value ? 'yes' : 'no'
  return value
}

/** A name as a person writes it: `data-parallel` or `tp_all_reduce` → `tp all reduce`. */
export const words = (name: string) => name.replace(/[_]/g, ' ')
