// The shapes of API.md. Field names and units are the server's; nothing is renamed here.

export interface Formula { name: string; symbolic: string; substituted: string; value: string; source: string }
export interface Check { text: string; holds: boolean }
export interface TableData { caption: string; columns: string[]; rows: (string | number | boolean | null)[][] }
export interface Step { title: string; sentence: string; check: string; holds: boolean }

export interface View<T = unknown> {
  summary: string
  checks: Check[]
  formulas: Formula[]
  table: TableData
  steps: Step[]
  cli: string
  python: string
  data: T
}

export interface Pipeline {
  ranks: number
  m: number
  v: number
  op: { rank: number[]; stage: number[]; micro: number[]; kind: number[]; start: number[]; end: number[] }
  kinds: string[]
  makespan: number
  bubble_fraction: number
  bubble_over_ideal: number
  peak_in_flight: number[]
  in_flight: { time: number[]; counts: number[][] }
  schedules: {
    schedule: string; title: string; makespan: number; bubble_fraction: number
    peak_in_flight: number[]; accepted: boolean; why: string
  }[]
}

export interface AllReduce {
  ranks: number
  chunks: number
  initial: number[][]
  steps: {
    phase: string
    transfers: { source: number; target: number; chunks: number[]; adds: boolean; bytes: number }[]
    values: number[][]
    contributors: number[][]
    sent_bytes: number[]
    time_s: number
  }[]
  compare: {
    algorithm: string; title: string; steps: number; sent_bytes_max: number; busiest_bytes: number
    time_s: number; latency_part_s: number; bandwidth_part_s: number
  }[]
  sweep: { size_bytes: number[]; series: { algorithm: string; time_s: number[] }[] }
}

export type Parts = Record<string, number>

export interface Zero {
  capacity_bytes: number
  device: string
  stages: { zero: number; parts: Parts; transient_bytes: number; total_bytes: number; fits: boolean; traffic_bytes: number }[]
  curve: { shards: number[]; totals: number[][] }
}

export interface Matrix { name: string; values: number[][]; role: string; of: string; sign: string }
export interface Collective { kind: string; bytes: number; sentence: string }
export interface TensorSplit {
  tp: number
  whole: Matrix[]
  steps: { title: string; ranks: { rank: number; items: Matrix[] }[]; collective: Collective | null }[]
  equal: boolean
  max_error: number
}

export interface DataParallel {
  dp: number
  steps: {
    title: string
    replicas: { rank: number; examples: number[]; loss: number; gradient: number[]; weights: number[] }[]
    collective: Collective | null
  }[]
  reference: { gradient: number[]; weights: number[] }
  max_difference: number
}

export interface Grid {
  world: number
  node: number
  nodes: number
  rank: { dp: number[]; pp: number[]; tp: number[]; node: number[] }
  axes: {
    axis: string; degree: number; groups: number[][]; crosses_nodes: boolean; link: string
    bytes_per_step: number; sentence: string
  }[]
}

export interface ScalingGap {
  models: { name: string; date: string; parameters: number; source: string }[]
  devices: { name: string; date: string; memory_bytes: number; source: string }[]
  curve: { year: number[]; parameters: number[]; memory_bytes: number[]; devices_needed: number[] }
  gap_per_year: number
  fit: { growth: number; doubling_years: number; sentence: string }
}

export interface Decision {
  nodes: { id: string; question: string; evidence: string; answer: string; on_path: boolean; yes: string; no: string }[]
  leaves: { id: string; title: string; on_path: boolean }[]
  verdict: string
  engine: { layout: Layout; label: string; step_time_s: number; peak_memory_bytes: number; fits: boolean } | null
  agrees: boolean
}

export interface Walk {
  layers: number
  ranks: { rank: number; dp: number; pp: number; tp: number; holds: string }[]
  events: {
    step: number; rank: number; phase: string; kind: string; axis: string; title: string
    peers: number[]; bytes: number; layer: number; micro: number
  }[]
  bytes_by_axis: Record<string, number>
  source: string
}

export interface Ledger {
  capacity_bytes: number
  regimes: { name: string; layout: string; parts: Parts; total_bytes: number; sent_bytes_per_step: number }[]
}

export interface Placement {
  placements: {
    order: string; title: string; step_time_s: number; time_parts: Parts
    axes: { axis: string; crosses_nodes: boolean; link: string; bandwidth_bytes_s: number }[]
    map: number[][]
    tensor_group: number[]
  }[]
}

export interface Failures {
  best_interval_s: number
  interval_s: number
  goodput: number
  mtbf_s: number
  curve: { interval_s: number[]; goodput: number[] }
  events: { time_s: number; kind: string; duration_s: number }[]
  totals: Record<string, number>
  simulated_goodput: number
}

export interface Layout {
  dp: number; tp: number; pp: number; cp: number; ep: number; etp: number
  virtual_stages: number; zero: number; shard: number; micro_batch: number
  recompute: string; recompute_layers: number; sequence_parallel: boolean
  schedule: string; rank_order: string; stage_layers?: number[] | null
}

export interface StageMemory { stage: number; layers: number; total_bytes: number; parts: Parts }

export interface Estimate {
  step_time_s: number
  tokens_per_s_per_gpu: number
  mfu: number
  hfu: number
  bubble_fraction: number
  peak_memory_bytes: number
  capacity_bytes: number
  fits: boolean
  memory_parts: Parts
  time_parts: Parts
  stages: StageMemory[]
  traffic_bytes: Parts
  step_time_range?: { low: number; high: number; basis: string } | null
  peak_memory_range?: { low: number; high: number; basis: string } | null
}

export interface Plan {
  layout: Layout
  estimate: Estimate
  fits: boolean
  objective: string
  alternatives: { axis: string; layout: Layout; estimate?: Estimate | null; why_not: string }[]
  flip_points: { quantity: string; current: number; threshold: number; direction: string; becomes: string; sentence: string }[]
  searched: { priced: number; pruned: Record<string, number>; seconds: number }
  notes: string[]
  [other: string]: unknown
}

export interface Candidates {
  label: string[]
  dp: number[]; tp: number[]; pp: number[]; cp: number[]; ep: number[]; virtual_stages: number[]; zero: number[]; shard: number[]
  micro_batch: number[]; recompute: string[]; schedule: string[]; sequence_parallel: boolean[]
  step_time_s: number[]; peak_memory_bytes: number[]; bubble_fraction: number[]; mfu: number[]
  fits: boolean[]; pareto: boolean[]
}

export interface PlanAnswer {
  plan: Plan
  label: string
  summary: string
  candidates: Candidates
  links: { cli: string; python: string }
}

export interface PriceAnswer {
  layout: Layout
  label: string
  estimate: Estimate | null
  accepted: boolean
  problem: { field: string; sentence: string } | null
  against: { step_time_ratio: number; memory_delta_bytes: number; sentences: string[] } | null
}

export interface Catalog {
  models: { id: string; name: string; parameters: number; layers: number; hidden: number; source: string }[]
  clusters: { id: string; name: string; gpus: number; gpus_per_node: number; device: string; capacity_bytes: number
    levels: { name: string; domain: number; bandwidth_bytes_s: number; latency_s: number }[] }[]
  devices: { id: string; name: string; memory_bytes: number; source: string }[]
  recipes: string[]
  optimizers: string[]
  schedules: { id: string; title: string }[]
  exports: { id: string; title: string; filename: string }[]
}

export interface LessonStep {
  id: string; number: number; phase: string; title: string; minutes: number
  question: string; sim: string; sim_query: Record<string, string> | string; takeaway: string
}
export interface LessonIndex { phases: { id: string; title: string }[]; steps: LessonStep[]; objectives?: Objective[] }

export interface Question {
  id: string; prompt: string; kind: 'number' | 'choice' | 'layout'; unit: string; choices: string[]; seed: number; group?: string
}
export interface Verdict {
  correct: boolean; sentence: string; expected: string; misconception: string
  sim: string; sim_query: Record<string, string> | string
}

export type Block =
  | { kind: 'prose' | 'note'; html: string }
  | { kind: 'steer'; sentence: string; sim: string; query: Record<string, string> | string; step?: number }
  | { kind: 'example'; id?: string; html?: string; title: string; formula: Formula; vary?: { name: string; label: string; stops: number[] } | null }
  | { kind: 'check'; check: Question }
  | { kind: 'table'; table: TableData }

export interface Lesson extends LessonStep { blocks: Block[] }
export interface Card { id: string; front: string; back: string; group: string; sim: string }
export interface Term { term: string; meaning: string; see: string[]; href: string }
export interface Faq { question: string; html: string; sim: string; sim_query: Record<string, string> | string }

export interface DrillHead { id: string; title: string; story: string; minutes: number }
export interface Evidence {
  id: string; title: string; cost_minutes: number
  content: { kind: 'text'; text: string } | { kind: 'table'; table: TableData } | { kind: 'sim'; sim: string; query: Record<string, string> | string }
}
export interface Drill extends DrillHead {
  evidence: Evidence[]
  start: { layout: Layout; [other: string]: unknown }
  editable: Record<string, (string | number | boolean)[]>
  findings?: string[]
}
export interface Grade {
  scores: { name: string; value: string; best: string; points: number; of: number; sentence: string }[]
  total: number
  estimate: Estimate | null
  best: { label: string; layout: Layout; estimate: Estimate } | null
  defence: string
}

export interface Objective { id: string; text: string; steps: string[] }
export interface Concept { id: string; number: number; title: string; html: string; sim: string; sim_query: string }
export interface FormulaEntry extends Formula { id: string; note: string }
export interface Rule { id: string; title: string; html: string }
export interface Mistake { id: string; claim: string; right: string; shown: string }
export interface Paper { title: string; authors: string; year: number; gave: string; url: string; note: string }
export interface NamedTable extends TableData { id: string }
export type WorkedExample = Omit<Extract<Block, { kind: 'example' }>, 'kind'> & { id: string }
