// Reads what Prometheus reads: samples of /metrics, their sums, and quantiles of what happened between two looks.
"use strict";

const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;

/** The samples of a text, by name. */
function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value;
    const list = samples.get(found[1]) ?? [];
    list.push({ labels, value: Number(found[3]) });
    samples.set(found[1], list);
  }
  return samples;
}

/** The sum of the samples with this name, of those that `keep` accepts. */
function total(samples, name, keep = () => true) {
  return (samples.get(name) ?? []).filter(({ labels }) => keep(labels)).reduce((sum, { value }) => sum + value, 0);
}

/** The cumulative counts of a histogram by their upper bounds, over all its label sets. */
function buckets(samples, name) {
  const counts = new Map();
  for (const { labels, value } of samples.get(name + "_bucket") ?? []) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return counts;
}

/** A quantile of what a histogram observed between two looks, as Prometheus estimates it; null where it observed nothing. */
function quantile(before, after, name, q) {
  const [then, now] = [buckets(before, name), buckets(after, name)];
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => now.get(bound) - (then.get(bound) ?? 0));
  const all = counts.at(-1);
  if (!all || all < 0) return null;
  const idx = counts.findIndex((count) => count >= q * all);
  if (bounds[idx] === Infinity) return bounds[idx - 1] ?? null;
  const [low, below] = idx === 0 ? [0, 0] : [bounds[idx - 1], counts[idx - 1]];
  return low + (bounds[idx] - low) * ((q * all - below) / (counts[idx] - below));
}
