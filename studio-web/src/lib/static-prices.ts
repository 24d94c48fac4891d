// Layouts changed by hand in an exported site: looked up in a table of the engine's answers. Nothing
// is computed here but the choice of the row, so a layout that the table lacks has no figures.
import { get } from './api'
import type { PriceAnswer, PriceTable } from './types'

const AXES = ['dp', 'tp', 'pp', 'cp', 'ep', 'v', 'zero', 'shard', 'micro_batch', 'recompute', 'schedule', 'sequence_parallel', 'cp_method'] as const
type Axis = (typeof AXES)[number]
const WEIGHT: Partial<Record<Axis, number>> = { dp: 0.2, v: 0.5, schedule: 0.5, sequence_parallel: 0.3, shard: 0.3, cp_method: 0.1 }
const FOLLOWS = new Set<Axis>(['cp_method', 'dp', 'sequence_parallel', 'v', 'schedule', 'shard'])

function code(table: PriceTable, axis: Axis, text: string): number {
  if (axis === 'recompute') return table.recomputes.indexOf(text)
  if (axis === 'schedule') return table.schedules.indexOf(text)
  if (axis === 'cp_method') return table.methods.indexOf(text)
  if (axis === 'sequence_parallel') return text === 'true' ? 1 : 0
  return Number(text)
}
function text(table: PriceTable, axis: Axis, value: number): string {
  if (axis === 'recompute') return table.recomputes[value]
  if (axis === 'schedule') return table.schedules[value]
  if (axis === 'cp_method') return table.methods[value]
  if (axis === 'sequence_parallel') return value ? 'true' : 'false'
  return String(value)
}

/** As `Layout.label` writes it. */
export function labelOf(at: Record<Axis, string>): string {
  const usual = Number(at.v) > 1 ? 'interleaved' : '1f1b'
  return [
    `tp${at.tp}`, `pp${at.pp}`, `dp${at.dp}`, at.cp !== '1' && `cp${at.cp}${at.cp_method === 'all-gather' ? '' : `-${at.cp_method}`}`, at.ep !== '1' && `ep${at.ep}`, at.v !== '1' && `v${at.v}`, `mb${at.micro_batch}`,
    at.zero !== '0' && `zero${at.zero}`, at.zero !== '0' && at.shard !== '0' && `shard${at.shard}`, at.recompute !== 'none' && at.recompute, at.sequence_parallel === 'true' && 'sp',
    at.pp !== '1' && ![usual, '1f1b'].includes(at.schedule) && at.schedule,
  ].filter(Boolean).join(' ')
}

const NAME: Partial<Record<Axis, string>> = { v: 'chunks a rank', zero: 'ZeRO', shard: 'shard degree', micro_batch: 'micro-batch', sequence_parallel: 'sequence parallel' }
const OPTION: Partial<Record<Axis, string>> = { v: '--virtual-stages', cp_method: '--cp-method', micro_batch: '--micro-batch' }
const USUAL: Record<string, string> = { cp: '1', ep: '1', v: '1', zero: '0', shard: '0', micro_batch: '1', recompute: 'none', schedule: '1f1b', cp_method: 'all-gather' }

export async function priceFromTable(query: Record<string, string>, hand: Record<string, string>, changed: string): Promise<PriceAnswer> {
  const [table, plan] = await Promise.all([get<PriceTable>('/api/prices', query), get<{ plan: { layout: Record<string, unknown> } }>('/api/plan', query)])
  const layout = plan.plan.layout
  const base = Object.fromEntries(AXES.map((axis) => [axis, String(layout[axis === 'v' ? 'virtual_stages' : axis] ?? 'all-gather')])) as Record<Axis, string>
  const wanted = Object.fromEntries(Object.entries(hand).filter(([axis]) => (AXES as readonly string[]).includes(axis))) as Partial<Record<Axis, string>>
  const target = { ...base, ...wanted } as Record<Axis, string>
  const goal = Object.fromEntries(AXES.map((axis) => [axis, code(table, axis, target[axis])])) as Record<Axis, number>
  const rows = table.dp.length
  const rowText = (i: number) => Object.fromEntries(AXES.map((axis) => [axis, text(table, axis, table[axis][i])])) as Record<Axis, string>
  const differs = (i: number) => AXES.filter((axis) => table[axis][i] !== goal[axis])
  const far = (i: number) => differs(i).reduce((sum, axis) => sum + (WEIGHT[axis] ?? 1) * (1 + (table[axis][i] > 0 && goal[axis] > 0 ? 0.25 * Math.abs(Math.log2(table[axis][i] / goal[axis])) : 0)), 0)
  const near = (keep: Axis[]) => Array.from({ length: rows }, (_, i) => i)
    .filter((i) => keep.every((axis) => table[axis][i] === goal[axis]))
    .map((i) => ({ i, far: far(i) })).sort((a, b) => a.far - b.far || table.step_time_s[a.i] - table.step_time_s[b.i])
  const kept = Object.keys(wanted) as Axis[]
  const last = kept.filter((axis) => axis === changed)
  const found = near(kept)
  const changes = (at: Record<Axis, string>) => AXES.filter((axis) => at[axis] !== base[axis]).map((axis) => `${NAME[axis] ?? axis} ${base[axis]} → ${at[axis]}`)
  const first = found[0]
  const free = AXES.filter((axis) => FOLLOWS.has(axis) && !kept.includes(axis))
  if (first && differs(first.i).every((axis) => free.includes(axis))) {
    const i = first.i
    const at = rowText(i)
    const [step, peak] = [table.step_time_s[i], table.peak_memory_bytes[i]]
    const options = AXES.filter((axis) => axis !== 'sequence_parallel' && at[axis] !== USUAL[axis]).map((axis) => `${OPTION[axis] ?? `--${axis}`} ${at[axis]}`)
    return {
      layout: {}, label: labelOf(at), changes: changes(at), followed: differs(i).map((axis) => `${NAME[axis] ?? axis} ${target[axis]} → ${at[axis]}`), axes: at,
      estimate: {
        step_time_s: step, peak_memory_bytes: peak, capacity_bytes: table.capacity_bytes, fits: peak <= table.capacity_bytes, bubble_fraction: table.bubble_fraction[i],
        mfu: table.mfu_times_s / step, hfu: 0, tokens_per_s_per_gpu: table.tokens_per_device / step, memory_parts: {}, time_parts: {}, stages: [],
      },
      accepted: true, problem: null, completions: [], against: { step_time_ratio: 1, memory_delta_bytes: 0, sentences: [`With ${changes(at).join(', ') || 'no change'}. Why it costs what it costs, stage by stage and part by part, needs the live studio: run meshwright studio.`] },
      plan: null, links: { cli: `${table.cli} ${options.join(' ')}`, python: `# the live studio writes it: meshwright studio` },
    }
  }
  const choices = (found.length ? found : near(last.length ? last : [])).slice(0, 40).sort((a, b) => Number(table.peak_memory_bytes[a.i] > table.capacity_bytes) - Number(table.peak_memory_bytes[b.i] > table.capacity_bytes) || a.far - b.far).slice(0, 4)
  const used = goal.dp * goal.tp * goal.pp * goal.cp
  return {
    layout: {}, label: labelOf(target), changes: changes(target), followed: [], axes: target, estimate: null, accepted: false,
    problem: { field: 'layout', sentence: used !== table.gpus ? `dp · tp · pp · cp = ${used} devices, but the cluster has ${table.gpus}` : 'no such layout is in the table of answers that this exported site holds' },
    completions: choices.map(({ i }) => ({ label: labelOf(rowText(i)), changes: changes(rowText(i)), axes: rowText(i), step_time_s: table.step_time_s[i], peak_memory_bytes: table.peak_memory_bytes[i], fits: table.peak_memory_bytes[i] <= table.capacity_bytes })),
    against: null, plan: null, links: null,
  }
}
