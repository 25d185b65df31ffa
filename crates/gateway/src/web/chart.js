// A chart of one or more lines over the last minutes, as SVG. Does not know what the lines mean.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 50, RIGHT = 6, TOP = 8, BOTTOM = 18;

function drawn(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** The next of 1, 2, 2.5 and 5 times a power of ten, at least `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((bound) => bound >= value * 0.999);
}

class Chart {
  /** `series`: the names of the lines. `show` writes a value for people; `most` is the top of the scale, where it is fixed. */
  constructor(title, series, show, { most, least = 1 } = {}) {
    Object.assign(this, { title, series, show, most, least, points: [], cursor: null });
    this.legends = series.map((name, i) => {
      const legend = document.createElement("span");
      legend.className = "legend";
      const mark = drawn("svg", { viewBox: "0 0 18 6", "aria-hidden": "true" });
      mark.append(drawn("path", { d: "M1 3H17", class: `line series-${i}` }));
      legend.append(mark, name + " ", document.createElement("b"));
      return legend;
    });
    this.node = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const heading = document.createElement("h2");
    heading.textContent = title;
    caption.append(heading, ...this.legends);
    this.svg = drawn("svg", { class: "chart", role: "img" });
    this.node.append(caption, this.svg);
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
  }

  /** Shows `points` of the times between `from` and `to`: {at, values}, a value for each line or null. */
  update(points, from, to) {
    Object.assign(this, { points, from, to });
    this.draw();
  }

  point(event) {
    const { left, width } = this.svg.getBoundingClientRect();
    const at = this.from + ((event.clientX - left - LEFT) / (width - LEFT - RIGHT)) * (this.to - this.from);
    const distance = (point) => Math.abs(point.at - at);
    this.cursor = this.points.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), null);
    this.draw();
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width || this.from === undefined) return;
    const values = this.points.flatMap((point) => point.values).filter((value) => value !== null);
    const top = this.most ?? roundUp(Math.max(this.least, ...values));
    const x = (at) => LEFT + ((at - this.from) / (this.to - this.from)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.min(value, top) / top) * (height - TOP - BOTTOM);
    const parts = [];
    for (const value of [0, top / 2, top]) {
      parts.push(drawn("path", { class: "grid", d: `M${LEFT} ${y(value)}H${width - RIGHT}` }));
      parts.push(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.show(value)));
    }
    parts.push(drawn("text", { x: LEFT, y: height - 4 }, "5 min ago"));
    parts.push(drawn("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, "now"));
    this.series.forEach((_, i) => parts.push(...this.line(i, x, y)));
    if (this.cursor) parts.push(drawn("path", { class: "cursor", d: `M${x(this.cursor.at)} ${TOP}V${height - BOTTOM}` }));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);
    this.tell();
  }

  /** The area under the first line, and a line; where a value is missing it has a gap. */
  line(i, x, y) {
    const runs = [[]];
    for (const { at, values } of this.points) {
      if (values[i] === null || values[i] === undefined) runs.push([]);
      else runs.at(-1).push(`${x(at).toFixed(1)} ${y(values[i]).toFixed(1)}`);
    }
    const filled = runs.filter((run) => run.length > 0);
    const lines = filled.map((run) => drawn("path", { class: `line series-${i}`, d: `M${run.length > 1 ? run.join("L") : `${run[0]}h.01`}` }));
    if (i > 0) return lines;
    const [floor, end] = [y(0), (text) => text.split(" ")[0]];
    const areas = filled.map((run) => drawn("path", { class: "area", d: `M${run.join("L")}L${end(run.at(-1))} ${floor}L${end(run[0])} ${floor}Z` }));
    return [...areas, ...lines];
  }

  /** Writes the newest values, or those under the pointer, into the legend and the label. */
  tell() {
    const { values } = this.cursor ?? this.points.at(-1) ?? { values: [] };
    const told = this.series.map((name, i) => {
      const value = values[i] ?? null;
      const text = value === null ? "–" : this.show(value);
      this.legends[i].lastChild.textContent = text;
      return `${name} ${text}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}: ${told.join(", ")}`);
  }
}
