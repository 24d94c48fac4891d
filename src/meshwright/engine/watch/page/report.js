// Hovering a chart tells the values of all its lines at the nearest step.
for (const chart of document.querySelectorAll("svg.chart")) {
  const series = [...chart.querySelectorAll("[data-points]")].map((line) => ({
    name: line.dataset.name,
    points: line.dataset.points.split(";").map((text) => {
      const [x, y, step, ...shown] = text.split(",");
      return { x: +x, y: +y, step, shown: shown.join(",") };
    }),
  }));
  const cursor = chart.querySelector(".cursor");
  const make = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    cursor.append(element);
    return element;
  };
  chart.addEventListener("pointerleave", () => cursor.replaceChildren());
  chart.addEventListener("pointermove", (event) => {
    cursor.replaceChildren();
    if (!series.length) return;
    const box = chart.viewBox.baseVal;
    const x = ((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth) * box.width;
    const nearest = series.map(({ name, points }) => ({
      name,
      ...points.reduce((best, p) => (Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best)),
    }));
    const at = nearest[0].x;
    make("line", { x1: at, x2: at, y1: 12, y2: box.height - 26 });
    const texts = nearest.map((n) => (series.length > 1 ? `${n.name} ${n.shown}` : n.shown));
    const lines = [`step ${nearest[0].step}`, ...texts];
    const width = 16 + 7 * Math.max(...lines.map((line) => line.length));
    const left = at + 12 + width > box.width ? at - 12 - width : at + 12;
    make("rect", { x: left, y: 18, width, height: 12 + 16 * lines.length, rx: 4 });
    lines.forEach((line, row) => make("text", { x: left + 8, y: 36 + 16 * row }, line));
  });
}
