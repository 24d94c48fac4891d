// `#/reference?show=F3`: an address of one item of a page, brought into view once it is there.

/** Look for the item until it comes; returns what stops looking. */
export function bring(name: string): () => void {
  let at: number | undefined
  const look = (tries: number) => {
    const found = document.querySelector<HTMLElement>(`[data-anchor="${CSS.escape(name)}"]`)
    // What is above may still be on its way, so the place is corrected for a moment.
    if (found) {
      if (found instanceof HTMLDetailsElement) found.open = true
      found.classList.add('shown')
      found.scrollIntoView({ block: 'start' })
    }
    if (tries > 0) at = setTimeout(() => look(found ? Math.min(tries - 1, 4) : tries - 1), 150)
  }
  look(60)
  const stop = () => clearTimeout(at)
  for (const event of ['wheel', 'pointerdown', 'keydown', 'touchstart']) window.addEventListener(event, stop, { once: true, passive: true })
  return () => {
    stop()
    document.querySelectorAll('.shown[data-anchor]').forEach((one) => one.classList.remove('shown'))
  }
}
