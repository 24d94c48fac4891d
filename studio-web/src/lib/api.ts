// The only way to the numbers: the server's API or, in an exported site, its answers as files.

export class Refusal extends Error {
  constructor(
    public sentence: string,
    public field = '',
    public status = 0,
  ) {
    super(sentence)
  }
}

type Query = Record<string, string | number>

declare global {
  interface Window {
    meshwright_static?: boolean
    meshwright_data?: (slug: string, answer: unknown) => void
  }
}

export const isStatic = () => window.meshwright_static === true

/** The file name of a precomputed answer; the exporter builds the same (see API.md). */
export function slug(path: string, query: Query): string {
  const name = path.replace(/^\/api\//, '').replaceAll('/', '_')
  const parts = Object.keys(query).sort().map((key) => `${key}=${query[key]}`)
  const escape = (char: string) =>
    [...new TextEncoder().encode(char)].map((byte) => `~${byte.toString(16).padStart(2, '0')}`).join('')
  return [name, ...parts].join(',').replace(/[^A-Za-z0-9.=,_-]/gu, escape)
}

const waiting = new Map<string, (answer: unknown) => void>()
const onTheWay = new Map<string, Promise<unknown>>()

/** Two that ask for the same file share one answer: a file calls back once. */
function fromFile(name: string): Promise<unknown> {
  const asked = onTheWay.get(name) ?? readFile(name).finally(() => onTheWay.delete(name))
  onTheWay.set(name, asked)
  return asked
}

function readFile(name: string): Promise<unknown> {
  window.meshwright_data ??= (arrived, answer) => waiting.get(arrived)?.(answer)
  return new Promise((resolve, reject) => {
    // "Nothing fits" is an answer too: the file holds the refusal.
    waiting.set(name, (answer) => {
      const refused = (answer as { error?: { field: string; remedy: string } } | null)?.error
      if (refused) reject(new Refusal(refused.remedy, refused.field, 409))
      else resolve(answer)
    })
    const script = document.createElement('script')
    script.src = `data/${encodeURIComponent(name)}.js`
    script.onerror = () =>
      reject(new Refusal('This exported site holds only some settings; run `meshwright studio` for all of them.'))
    script.onload = () => script.remove()
    document.head.append(script)
  })
}

async function fromServer(path: string, init: RequestInit): Promise<unknown> {
  let response: Response
  try {
    response = await fetch(path, init)
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error
    throw new Refusal('The studio server does not answer; is `meshwright studio` still running?')
  }
  const text = await response.text()
  let body: any = null
  try {
    body = JSON.parse(text)
  } catch {
    /* not JSON: handled below */
  }
  if (response.ok && body !== null) return body
  const said = body?.error ?? body?.detail
  const sentence =
    typeof said === 'string' ? said
    : response.status === 409 ? said?.remedy // an answer (nothing fits), not a slip of the reader
    : said?.sentence ?? (Array.isArray(said) ? `${said[0]?.loc?.slice(1).join('.')}: ${said[0]?.msg}` : '')
  throw new Refusal(sentence || `The server answered ${response.status} for ${path}.`, said?.field ?? '', response.status)
}

const remembered = new Map<string, unknown>()

/** GET an answer. The last few hundred are remembered: same query, same answer. */
export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const name = slug(path, query)
  if (remembered.has(name)) return remembered.get(name) as T
  const search = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)])).toString()
  const answer = isStatic() ? await fromFile(name) : await fromServer(path + (search ? `?${search}` : ''), { signal })
  if (remembered.size > 300) remembered.delete(remembered.keys().next().value!)
  remembered.set(name, answer)
  return answer as T
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  if (isStatic()) throw new Refusal('This needs the live studio: run `meshwright studio`.')
  return (await fromServer(path, {
    method: 'POST', signal, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body),
  })) as T
}

/** POST files as they are: a line that names them, then one after another. */
export async function upload<T>(path: string, files: File[], signal?: AbortSignal): Promise<T> {
  const named = files.map((file) => ({ name: file.webkitRelativePath || file.name, bytes: file.size }))
  const body = new Blob([JSON.stringify(named), '\n', ...files])
  return (await fromServer(path, { method: 'POST', signal, headers: { 'content-type': 'application/octet-stream' }, body })) as T
}

/** Runs the newest request only: starting one abandons the one before, so no stale answer shows. */
export class Latest {
  private current: AbortController | null = null

  async run<T>(ask: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    this.current?.abort()
    const mine = (this.current = new AbortController())
    try {
      const answer = await ask(mine.signal)
      return mine === this.current ? answer : undefined
    } catch (error) {
      if (mine !== this.current || (error as Error).name === 'AbortError') return undefined
      throw error
    }
  }
}
