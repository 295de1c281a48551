// Line charts over time, drawn in SVG. Colours are set by the style sheet, so a new theme needs no new drawing.

import { h, put, s, say } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 46;
const BOTTOM = 18;
const TOP = 6;
const SHORTEST_MS = 30_000;

/**
 * Return {element, update(times, values, span_ms)} of a chart.
 *
 * series: [{name, label, k}], where `k` is the number of a colour. `format` returns the text of a value. `values` has a
 * list for each name, as long as `times`, which ascend; null interrupts the line.
 */
export function chart({ series, format, title, area = true, head = [] }) {
  return new Chart(series, format, title, area, head);
}

class Chart {
  constructor(series, format, title, area, head) {
    this.series = series;
    this.format = format;
    this.area = area;
    this.off = new Set();
    this.times = [];
    this.values = {};
    this.spanMs = 600_000;
    this.svg = s("svg", { role: "img", "aria-label": title });
    this.at = new Map();
    this.when = h("span", { class: "when" });
    const keys = series.map((one) => this._key(one));
    this.element = h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", {}, title), h("span", { class: "push" }), head),
      h("div", { class: "legend" }, keys, this.when),
      h("div", { class: "chart" }, this.svg),
    );
    this.svg.addEventListener("pointermove", (event) => this._hover(event));
    this.svg.addEventListener("pointerleave", () => this._unhover());
    new ResizeObserver(() => this._draw()).observe(this.svg);
  }

  /** Replace the values. */
  update(times, values, spanMs) {
    this.times = times;
    this.values = values;
    this.spanMs = spanMs;
    this._draw();
  }

  _key(one) {
    const value = h("span", { class: "at" });
    this.at.set(one.name, value);
    const press = () => {
      this.off.has(one.name) ? this.off.delete(one.name) : this.off.add(one.name);
      key.setAttribute("aria-pressed", String(!this.off.has(one.name)));
      this._draw();
    };
    const key = h("button", { type: "button", class: `k${one.k}`, "aria-pressed": "true", on: { click: press } }, h("span", { class: "key" }), one.label, value);
    return key;
  }

  _draw() {
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (width < 40 || height < 40) return;
    const to = this.times.length ? this.times.at(-1) : Date.now();
    // a history that is shorter than the span fills the chart, too
    const from = Math.max(to - this.spanMs, Math.min(this.times[0] ?? 0, to - SHORTEST_MS));
    const shown = this.series.filter((one) => !this.off.has(one.name));
    const inside = this.times.map((at) => at >= from);
    let top = 0;
    for (const one of shown) (this.values[one.name] ?? []).forEach((value, at) => {
      if (inside[at] && value > top) top = value;
    });
    const steps = ticks(top, this.format.whole);
    const highest = steps.at(-1);
    this.x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 4);
    this.y = (value) => height - BOTTOM - (value / highest) * (height - BOTTOM - TOP);
    const baseline = this.y(0);
    const grid = steps.flatMap((step) => [
      s("line", { class: "grid", x1: LEFT, x2: width - 4, y1: this.y(step), y2: this.y(step) }),
      s("text", { x: LEFT - 8, y: this.y(step) + 3.5, "text-anchor": "end" }, this.format(step)),
    ]);
    const hours = timeTicks(from, to, width).map((at) => s("text", { x: this.x(at), y: height - 3, "text-anchor": "middle" }, to - from < 300_000 ? clock(at) : clock(at).slice(0, 5)));
    const lines = shown.flatMap((one) => {
      const runs = this._runs(this.values[one.name] ?? [], inside);
      const line = runs.map((run) => `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`).join("");
      const filled = runs.map((run) => `M${run[0][0].toFixed(1)} ${baseline}L${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}L${run.at(-1)[0].toFixed(1)} ${baseline}Z`).join("");
      return [this.area && s("path", { class: `area k${one.k}`, d: filled }), s("path", { class: `line k${one.k}`, d: line })];
    });
    this.cursor = s("g", {});
    put(this.svg, grid, hours, lines, this.cursor);
    this._tell(this.hovered === undefined ? this.times.length - 1 : this._nearest(this.hovered));
  }

  _runs(values, inside) {
    const runs = [];
    let run = null;
    values.forEach((value, at) => {
      if (value === null || value === undefined || !inside[at]) {
        run = null;
        return;
      }
      if (run === null) runs.push((run = []));
      run.push([this.x(this.times[at]), this.y(value)]);
    });
    return runs;
  }

  _hover(event) {
    if (!this.times.length || !this.x) return;
    const left = this.svg.getBoundingClientRect().left;
    this.hovered = event.clientX - left;
    this._tell(this._nearest(this.hovered));
  }

  _unhover() {
    this.hovered = undefined;
    this._tell(this.times.length - 1);
  }

  _nearest(x) {
    let best = this.times.length - 1;
    for (let at = 0; at < this.times.length; at += 1) {
      if (Math.abs(this.x(this.times[at]) - x) < Math.abs(this.x(this.times[best]) - x)) best = at;
    }
    return best;
  }

  _tell(at) {
    for (const one of this.series) {
      const value = this.values[one.name]?.[at];
      say(this.at.get(one.name), value === undefined || value === null ? "" : this.format(value));
    }
    if (!this.cursor) return;
    const pointed = this.hovered !== undefined && at >= 0;
    say(this.when, pointed ? clock(this.times[at]) : "");
    if (!pointed) return put(this.cursor);
    const x = this.x(this.times[at]);
    const dots = this.series.filter((one) => !this.off.has(one.name) && typeof this.values[one.name]?.[at] === "number");
    put(
      this.cursor,
      s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: this.svg.clientHeight - BOTTOM }),
      dots.map((one) => s("circle", { class: `dot k${one.k}`, cx: x, cy: this.y(this.values[one.name][at]), r: 3.2 })),
    );
  }
}

/** Return three to five round values from zero to at least `top`. */
export function ticks(top, whole = true) {
  const highest = Math.max(top, whole === false ? 0.001 : 1);
  const rough = highest / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  if (whole !== false) step = Math.max(1, Math.ceil(step));
  const steps = [0];
  while (steps.at(-1) < highest) steps.push(steps.at(-1) + step);
  return steps;
}

function timeTicks(from, to, width) {
  const wanted = (to - from) / Math.max(2, Math.min(6, Math.floor(width / 110)));
  const step = [10, 20, 60, 120, 300, 600, 900, 1200, 1800].map((one) => one * 1000).find((one) => one >= wanted) ?? 3_600_000;
  const marks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) if (at - from > (to - from) * 0.02 && to - at > (to - from) * 0.05) marks.push(at);
  return marks;
}

/** Return a small line chart without axes, for a key figure. */
export function spark(k) {
  const svg = s("svg", { class: `spark k${k}`, viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.update = (values) => {
    const known = values.map((value) => value ?? 0);
    if (known.length < 2) return put(svg);
    const highest = Math.max(...known, 1e-9);
    const points = known.map((value, at) => `${((at / (known.length - 1)) * 100).toFixed(2)} ${(20.5 - (value / highest) * 19).toFixed(2)}`);
    return put(svg, s("path", { class: "area", d: `M0 22L${points.join("L")}L100 22Z` }), s("path", { d: `M${points.join("L")}` }));
  };
  return svg;
}
