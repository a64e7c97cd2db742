// The numbers of now and of the last minutes. Fed with one state of the server per second.

import { Chart } from "./charts.js";
import { find, html, percent, seconds, setText, short, whole } from "./dom.js";

const KEPT_S = 200;
const RATE_OVER_S = 3;
const POOL = [
  ["kv_used_tokens", "in use", "blue"],
  ["kv_evictable_tokens", "cached, evictable", "amber"],
  ["kv_available_tokens", "free", "grey"],
];
const LATENCIES = [
  ["ttft", "First token of streams", "blue"],
  ["inter_token", "Between tokens", "teal"],
  ["e2e", "Whole answer", "grey"],
];

export class Dashboard {
  constructor() {
    this.samples = [];
    const read = (name) => (sample) => sample[name];
    this.charts = [
      new Chart(find("c-throughput"), [
        { name: "output", color: "teal", read: read("output") },
        { name: "prompts, computed", color: "blue", read: read("computed") },
        { name: "prompts, from cache", color: "amber", read: read("cached") },
      ], { least: 10 }),
      new Chart(find("c-requests"), [
        { name: "running", color: "teal", read: read("running") },
        { name: "queued", color: "amber", read: read("queued") },
      ], { least: 4 }),
      ...LATENCIES.slice(0, 2).map(([key, name, color]) => new Chart(find(`c-${key}`), [
        { name: `${name.toLowerCase()}, 95 %`, color, read: (sample) => sample.latency[key]?.p95 },
        { name: "median", color: "grey", read: (sample) => sample.latency[key]?.p50 },
      ], { height: 110, format: seconds, least: 0.001 })),
      new Chart(find("c-pool"), POOL.slice(0, 2).map(([key, name, color]) => ({
        name, color, read: (sample) => sample.stats[key],
      })), { height: 110, stacked: true }),
    ];
  }

  add(state) {
    const { stats } = state;
    if (!stats) return;
    const last = this.samples[this.samples.length - 1];
    if (last && stats.time <= last.at) return; // no new pulse of the scheduler
    const sample = {
      at: stats.time,
      stats,
      latency: state.latency,
      running: stats.num_running_reqs,
      queued: stats.num_queue_reqs,
      output: this.rate(stats, "decode_tokens_total"),
      computed: this.rate(stats, "prefill_compute_tokens_total"),
      cached: this.rate(stats, "prefill_cache_tokens_total"),
    };
    if (last && stats.step < last.stats.step) this.samples = []; // the server was started anew
    this.samples.push(sample);
    this.samples = this.samples.filter((one) => one.at > sample.at - KEPT_S);
    this.tiles(sample, state);
    this.latency(state.latency);
    this.pool(stats);
    for (const chart of this.charts) chart.draw(this.samples);
  }

  // Of a counter, per second over the last few seconds.
  rate(stats, name) {
    const from = this.samples.find((one) => one.at >= stats.time - RATE_OVER_S - 0.5);
    if (!from || stats.time - from.at < 0.2) return 0;
    return Math.max(0, (stats[name] - from.stats[name]) / (stats.time - from.at));
  }

  tiles(sample, state) {
    setText("t-running", whole(sample.running));
    setText("t-running-of", state.max_running_requests ? `of at most ${whole(state.max_running_requests)}` : "");
    setText("t-queued", whole(sample.queued));
    setText("t-output", short(sample.output));
    setText("t-prompt", short(sample.computed + sample.cached));
    setText("t-hits", percent(sample.stats.cache_hit_rate));
  }

  latency(latency) {
    const rows = LATENCIES.map(([key, name]) => {
      const found = latency[key] ?? {};
      const cells = ["p50", "p95", "p99"].map((quantile) => html("td", {}, seconds(found[quantile])));
      return html("tr", {}, html("th", { scope: "row" }, name), ...cells);
    });
    find("latency").replaceChildren(...rows);
  }

  pool(stats) {
    const total = stats.max_total_num_tokens || 1;
    setText("pool-size", `${whole(total)} tokens`);
    const bar = find("pool-bar");
    if (!bar.children.length) {
      bar.append(...POOL.map(([, , color]) => html("div", { class: color })));
      find("pool-legend").append(
        ...POOL.map(([, name, color]) => html("div", {}, html("dt", { class: color }, html("span", {}, name)), html("dd", {})))
      );
    }
    const said = POOL.map(([key, name], index) => {
      bar.children[index].style.flexGrow = stats[key] / total;
      const text = `${whole(stats[key])} (${percent(stats[key] / total)})`;
      find("pool-legend").children[index].lastChild.textContent = text;
      return `${name}: ${text}`;
    });
    bar.setAttribute("aria-label", said.join(", "));
  }
}
