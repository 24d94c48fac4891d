// A drawing of the page as one SVG file that needs nothing of the page: its colours, hatches and fonts
// go with it. A drawing that is laid out as HTML goes in whole, as a foreign object.

/** Values of the page's custom properties as they are now, in the theme that is shown. */
function properties(): string {
  const probe = document.createElement('i')
  document.body.append(probe)
  const names = new Set<string>()
  for (const rule of rules()) for (const name of rule.cssText.matchAll(/--[a-z][a-z0-9-]*(?=\s*[:)])/g)) names.add(name[0])
  const style = getComputedStyle(document.documentElement)
  const text = [...names].map((name) => {
    const raw = style.getPropertyValue(name)
    if (!raw.includes('light-dark')) return raw ? `${name}:${raw}` : ''
    probe.style.color = `var(${name})`
    return `${name}:${getComputedStyle(probe).color}`
  })
  probe.remove()
  return text.filter(Boolean).join(';')
}

function rules(): CSSStyleRule[] {
  return [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule): rule is CSSStyleRule => rule instanceof CSSStyleRule)
}

/** The rules that say something about what is drawn. */
function styles(drawing: Element): string {
  const touches = (rule: CSSStyleRule) => {
    const plain = rule.selectorText.replace(/::?(before|after|focus-visible|hover|marker|checked|disabled|focus)/g, '')
    try {
      return plain !== ':root' && (drawing.matches(plain) || drawing.querySelector(plain) !== null)
    } catch {
      return false
    }
  }
  return rules().filter(touches).map((rule) => rule.cssText).join('\n')
}

/** The drawing as the text of an SVG file. */
export function pictureOf(drawing: HTMLElement): string {
  const only = drawing.querySelectorAll<SVGElement>('svg[role="img"]')
  const alone = only.length === 1 && drawing.children.length <= 2 ? only[0] : null
  const box = (alone ?? drawing).getBoundingClientRect()
  const [width, height] = [Math.ceil(box.width), Math.ceil(box.height)]
  const written = new XMLSerializer().serializeToString(alone ?? drawing)
  const hatches = document.querySelector('svg[aria-hidden] defs')
  const defs = hatches ? new XMLSerializer().serializeToString(hatches) : ''
  const root = getComputedStyle(document.documentElement)
  const css = `:root{${properties()};color:${root.color};font:${root.font}}\n${styles(drawing)}\ntext{fill:${root.color};font-family:${root.fontFamily}}`
  const inside = alone ? written : `<foreignObject width="${width}" height="${height}">${written}</foreignObject>`
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><style><![CDATA[${css}]]></style>${defs}<rect width="100%" height="100%" fill="${root.backgroundColor}"/>${inside}</svg>`
}
