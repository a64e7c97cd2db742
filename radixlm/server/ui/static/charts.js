// Small charts of the last minutes, drawn as SVG. Knows no metric.

import { html, short, svg } from "./dom.js";

const WIDTH = 640;
const LEFT = 54;
const BOTTOM = 18;
const TOP = 8;

function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

// Series are {name, color, read(sample)}; samples have `at`, in seconds. `stacked` fills them on top of one another.
export class Chart {
  constructor(host, series, { spanS = 180, height = 190, format = short, stacked = false, least = 1 } = {}) {
    Object.assign(this, { host, series, spanS, height, format, stacked, least });
    this.drawing = svg("svg", { role: "img", preserveAspectRatio: "none" });
    const names = series.map((one) => html("li", { class: one.color }, html("span", {}, one.name)));
    host.replaceChildren(this.drawing, html("ul", { class: "chart-key" }, ...names));
  }

  draw(samples) {
    const width = this.host.clientWidth || WIDTH;
    const bottom = this.height - BOTTOM;
    const now = samples.length ? samples[samples.length - 1].at : 0;
    const shown = samples.filter((sample) => sample.at > now - this.spanS);
    const lines = this.series.map(() => []);
    let highest = 0;
    for (const sample of shown) {
      let below = 0;
      this.series.forEach((one, index) => {
        const value = one.read(sample);
        if (value === null || value === undefined) return;
        const top = this.stacked ? below + value : value;
        lines[index].push([sample.at, top, below]);
        if (this.stacked) below = top;
        highest = Math.max(highest, top);
      });
    }
    const ceiling = Math.max(niceCeiling(highest), this.least);
    const x = (at) => LEFT + ((at - now + this.spanS) / this.spanS) * (width - LEFT - 4);
    const y = (value) => bottom - (value / ceiling) * (bottom - TOP);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.drawing.setAttribute("aria-label", this.summary(shown));
    this.drawing.replaceChildren(...this.grid(width, bottom, ceiling, x, y, now), ...this.paths(lines, x, y));
  }

  grid(width, bottom, ceiling, x, y, now) {
    const parts = [];
    for (const value of this.height > 150 ? [0, ceiling / 2, ceiling] : [0, ceiling]) {
      parts.push(svg("line", { class: "axis", x1: LEFT, x2: width - 4, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    const steps = width < 380 ? 1 : 3;
    for (let back = this.spanS; back >= 0; back -= this.spanS / steps) {
      const anchor = back === 0 ? "end" : back === this.spanS ? "start" : "middle";
      const label = back === 0 ? "now" : `−${back} s`;
      parts.push(svg("text", { x: x(now - back), y: bottom + 14, "text-anchor": anchor }, label));
    }
    return parts;
  }

  paths(lines, x, y) {
    const parts = [];
    lines.forEach((points, index) => {
      if (points.length < 2) return;
      const { color } = this.series[index];
      const line = points.map(([at, top]) => `${x(at).toFixed(1)},${y(top).toFixed(1)}`).join("L");
      const back = points.map(([at, , below]) => `${x(at).toFixed(1)},${y(below).toFixed(1)}`).reverse().join("L");
      parts.push(svg("path", { class: `area ${color}${this.stacked ? " solid" : ""}`, d: `M${line}L${back}Z` }));
      if (!this.stacked) parts.push(svg("path", { class: color, d: `M${line}` }));
    });
    return parts;
  }

  summary(shown) {
    const last = shown[shown.length - 1];
    if (!last) return "no numbers yet";
    return this.series.map((one) => `${one.name}: ${this.format(one.read(last) ?? 0)}`).join(", ");
  }
}
