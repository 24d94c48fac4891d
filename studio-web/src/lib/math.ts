// Plain expressions to MathML: `(P-1)/(M+P-1)` becomes a fraction. The browser draws it; no library.

type Token = { kind: 'word' | 'number' | 'sign' | 'text'; text: string }

const LEXEME = /\s*(?:(\d[\d,]*\.?\d*(?:e[+-]?\d+)?(?: ?(?:[kMGTP]i?B(?:\/s)?|[kMBT]|B|ms|µs|us|ns|s|min|h|days|×)(?![A-Za-z\d_(]))?)|([A-Za-zα-ωΑ-Ωµ%](?:(?=_[A-Za-z0-9]+_)[\w]*|[A-Za-z0-9α-ωΑ-Ω%]*(?:(?<=[A-Za-z]{2,})_\w+)?)(?:[ ](?=[A-Za-z])[A-Za-z]+)*)|(<=|>=|[-+−*×·/^_()[\]=≤≥,|≈:√∞…;'<>→]))/uy

function lex(source: string): Token[] | null {
  const tokens: Token[] = []
  LEXEME.lastIndex = 0
  while (LEXEME.lastIndex < source.trimEnd().length) {
    const match = LEXEME.exec(source)
    if (!match) return null
    if (match[1]) tokens.push({ kind: 'number', text: match[1] })
    else if (match[2]) tokens.push({ kind: match[2].length > 1 ? 'text' : 'word', text: match[2] })
    else tokens.push({ kind: 'sign', text: match[3] })
  }
  return tokens
}

const safe = (text: string) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;')
const row = (inner: string) => `<mrow>${inner}</mrow>`
const SHOWN: Record<string, string> = { '*': '·', '-': '−', '<=': '≤', '>=': '≥' }

class Parser {
  private at = 0
  constructor(private tokens: Token[]) {}

  whole(): string | null {
    const out = this.sequence(() => false)
    return this.at === this.tokens.length ? out : null
  }

  private peek = () => this.tokens[this.at]
  private is = (text: string) => this.peek()?.text === text && this.peek()?.kind === 'sign'

  private sequence(stop: () => boolean): string {
    let out = ''
    while (this.at < this.tokens.length && !stop()) {
      const token = this.peek()
      if (token.kind === 'sign' && "+-−=≤≥<>,|≈:×*·…;'→∞".includes(token.text[0])) {
        out += `<mo>${safe(SHOWN[token.text] ?? token.text)}</mo>`
        this.at += 1
      } else out += this.quotient()
    }
    return out
  }

  private quotient(): string {
    let left = this.power()
    while (this.is('/')) {
      this.at += 1
      const right = this.power()
      left = `<mfrac>${row(bare(left))}${row(bare(right))}</mfrac>`
    }
    return left
  }

  private power(): string {
    let base = this.atom()
    while (this.is('^') || this.is('_')) {
      const tag = this.is('^') ? 'msup' : 'msub'
      this.at += 1
      base = `<${tag}>${row(base)}${row(bare(this.atom()))}</${tag}>`
    }
    return base
  }

  private atom(): string {
    const token = this.peek()
    if (!token) throw new Error('unexpected end')
    this.at += 1
    if (token.kind === 'number') return `<mn>${safe(token.text)}</mn>`
    if (token.kind === 'word') return `<mi>${safe(token.text)}</mi>`
    if (token.kind === 'text') return `<mtext>${safe(token.text.replace(/_/g, ' '))}</mtext>`
    if (token.text === '√') return `<msqrt>${row(bare(this.atom()))}</msqrt>`
    if (token.text === '(') {
      const inner = this.sequence(() => this.is(')'))
      if (!this.is(')')) throw new Error('a bracket stays open')
      this.at += 1
      return `<mrow class="bracket"><mo>(</mo>${inner}<mo>)</mo></mrow>`
    }
    if (token.text === '[') {
      const inner = this.sequence(() => this.is(']'))
      if (!this.is(']')) throw new Error('a bracket stays open')
      this.at += 1
      return `<mrow><mo>[</mo>${inner}<mo>]</mo></mrow>`
    }
    throw new Error(`unexpected ${token.text}`)
  }
}

/** A fraction line groups by itself, so brackets right under it go. */
function bare(markup: string): string {
  const match = /^<mrow class="bracket"><mo>\(<\/mo>(.*)<mo>\)<\/mo><\/mrow>$/s.exec(markup)
  return match && !match[1].includes('class="bracket"') ? match[1] : markup
}

/** MathML for an expression, or null where it is not one that this small grammar reads. */
export function mathml(expression: string): string | null {
  const tokens = lex(expression)
  if (!tokens || !tokens.length) return null
  try {
    return new Parser(tokens).whole()
  } catch {
    return null
  }
}
