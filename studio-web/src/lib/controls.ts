// What the reader can set, per simulation, and which of it an exported site holds.
import requests from '../requests.json'
import { isStatic } from './api'

export interface Control {
  name: string
  label: string
  kind: 'choice' | 'stops'
  default: string
  values: string[]
  titles?: Record<string, string>
  static?: string[]
}

export const controlsOf = (sim: string): Control[] =>
  ((requests as unknown as Record<string, Control[]>)[sim] ?? []).map((control) =>
    isStatic() ? { ...control, values: control.static ?? control.values } : control,
  )

/** The full query of a simulation: the defaults, overridden by what the address says. */
export function fullQuery(sim: string, given: Record<string, string>): Record<string, string> {
  return Object.fromEntries(controlsOf(sim).map((control) => [control.name, given[control.name] ?? control.default]))
}
