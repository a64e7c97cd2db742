// One row per request, from arrival to last token, on a time axis that ends now.

import { find, html, seconds, short, svg } from "./dom.js";

const STAGES = [
  ["tokenize", "arrival to scheduler", "grey"],
  ["queue", "waiting", "amber"],
  ["prefill", "until the first token", "blue"],
  ["decode", "writing", "teal"],
  ["unknown", "sent, no word yet", "faint"],
];
const ROW = 22;
const MOST_ROWS = 26;
const TICKS = 6;

export class Timeline {
  constructor() {
    this.last = null;
    find("timeline-key").replaceChildren(
      ...STAGES.map(([, name, color]) => html("li", { class: color }, html("span", {}, name)))
    );
    find("timeline-span").addEventListener("change", () => this.last && this.show(...this.last));
  }

  // `now` is the server's clock, in seconds.
  show(requests, now) {
    this.last = [requests, now];
    const spanS = Number(find("timeline-span").value);
    const rows = requests
      .filter((one) => one.ended === null || one.created + one.ended > now - spanS)
      .sort((a, b) => b.created - a.created)
      .slice(0, MOST_ROWS);
    if (!rows.length) {
      find("timeline").replaceChildren(html("p", { class: "empty" }, "No request in this time."));
      return;
    }
    const width = find("timeline").clientWidth || 800;
    const left = width < 560 ? 76 : 104;
    const right = width < 560 ? 70 : 190;
    const height = rows.length * ROW + 24;
    const x = (at) => left + Math.max(0, Math.min(1, 1 - (now - at) / spanS)) * (width - left - right);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
    drawing.setAttribute("aria-label", `${rows.length} requests`);
    for (let tick = 0; tick <= TICKS; tick++) {
      const back = spanS - (tick * spanS) / TICKS;
      const at = x(now - back);
      drawing.append(svg("line", { class: "tick", x1: at, x2: at, y1: 0, y2: height - 20 }));
      if (width > 560 || tick % 3 === 0) {
        const label = back ? `−${Number(back.toFixed(1))} s` : "now";
        drawing.append(svg("text", { x: at, y: height - 6, "text-anchor": "middle" }, label));
      }
    }
    rows.forEach((one, index) => drawing.append(...this.row(one, index * ROW, now, x, width, left, right)));
    find("timeline").replaceChildren(drawing);
  }

  row(one, top, now, x, width, left, right) {
    const end = one.ended ?? now - one.created;
    const marks = [one.sent, one.started, one.first, end];
    const parts = [svg("text", { class: "rid", x: 0, y: top + 15 }, one.rid.slice(0, width < 560 ? 9 : 13))];
    let begin = 0;
    for (const [index, [stage]] of STAGES.slice(0, marks.length).entries()) {
      const stop = Math.min(Math.max(marks[index] ?? end, begin), end);
      const name = marks[index] === null && one.ended === null ? "unknown" : stage;
      const [from, to] = [x(one.created + begin), x(one.created + stop)];
      if (to > from) {
        const shape = { class: name, x: from, y: top + 5, width: Math.max(to - from, 1), height: ROW - 10, rx: 2 };
        parts.push(svg("rect", shape, svg("title", {}, `${name}: ${seconds(stop - begin)}`)));
      }
      begin = stop;
      if (marks[index] === null) break;
    }
    if (one.reason === "abort") {
      const at = x(one.created + end);
      parts.push(svg("line", { class: "failed", x1: at, x2: at, y1: top + 3, y2: top + ROW - 3 }));
    }
    const cached = one.cached_tokens ? ` (${short(one.cached_tokens)} cached)` : "";
    const counts = `${short(one.prompt_tokens)}${width < 560 ? "" : cached} → ${short(one.output_tokens)}`;
    const state = width < 560 ? "" : `, ${one.ended === null ? "running" : seconds(one.ended)}`;
    parts.push(svg("text", { x: width - right + 10, y: top + 15 }, counts + state));
    return parts;
  }
}
