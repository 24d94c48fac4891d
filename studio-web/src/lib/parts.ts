// One visual language: a fixed colour and a fixed hatch for every axis, operation and part.

export const AXIS_NAME: Record<string, string> = {
  dp: 'data', tp: 'tensor', pp: 'pipeline', cp: 'context', ep: 'expert',
  data: 'data', tensor: 'tensor', pipeline: 'pipeline', context: 'context', expert: 'expert',
}

export const axisPaint = (axis: string) => `url(#p-${AXIS_NAME[axis] ?? 'idle'})`

export const OPERATION: Record<string, { paint: string; name: string }> = {
  F: { paint: 'forward', name: 'forward' },
  B: { paint: 'backward', name: 'backward' },
  I: { paint: 'backward', name: 'backward, input gradient' },
  W: { paint: 'weight', name: 'weight gradient' },
  R: { paint: 'recompute', name: 'recomputation' },
  idle: { paint: 'idle', name: 'idle' },
}

// Memory and time parts by what their name speaks of; the first match wins.
const PART: [RegExp, string][] = [
  [/recomput/, 'recompute'],
  [/bubble|idle|wait/, 'idle'],
  [/pipeline|pp|p2p|send/, 'pipeline'],
  [/tensor|tp_|tp$/, 'tensor'],
  [/expert|ep_/, 'expert'],
  [/context_par|cp_/, 'context'],
  [/data_par|dp|zero|shard|reduce|gather/, 'data'],
  [/transient|buffer|workspace|gathered/, 'data'],
  [/parameter|weight/, 'parameters'],
  [/gradient/, 'gradients'],
  [/master/, 'master'],
  [/optim|update|moment|state/, 'optimizer'],
  [/logit|head|loss|embed|vocab/, 'logits'],
  [/activation|attention|checkpoint/, 'activations'],
  [/backward/, 'backward'],
  [/forward|matmul|compute|gemm|ffn|mlp/, 'forward'],
  [/norm|element|memory/, 'weight'],
]
const SPARE = ['other1', 'other2', 'other3']

/** The paint of a named part of an estimate; unknown names share three quiet ones. */
export function partPaint(name: string): string {
  const known = PART.find(([pattern]) => pattern.test(name))
  if (known) return known[1]
  let hash = 0
  for (const char of name) hash = (hash * 31 + char.charCodeAt(0)) >>> 0
  return SPARE[hash % SPARE.length]
}
