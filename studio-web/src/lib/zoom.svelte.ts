// Pictures are laid out for 16-pixel text; on a large screen they grow with the text around them.

const measure = () => Math.max(1, parseFloat(getComputedStyle(document.documentElement).fontSize) / 16)

export const zoom = $state({ by: measure() })

window.addEventListener('resize', () => (zoom.by = measure()))
