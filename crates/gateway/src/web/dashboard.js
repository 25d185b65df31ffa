// The dashboard: looks at /metrics every two seconds and shows the last five minutes, and the caller's latest requests.
"use strict";

const INTERVAL_MS = 2000, SPAN_MS = 300_000;
/** Quantiles are those of the last half minute. */
const QUANTILE_LOOKS = 15;

const $ = (id) => document.getElementById(id);
const looks = [];
let shown = null;

/** The operator's key; the chat page has another one. */
function storedKey() {
  try { return sessionStorage.getItem("throng.operator") ?? ""; } catch { return ""; }
}

function storeKey(key) {
  try { sessionStorage.setItem("throng.operator", key); } catch { /* it is asked for again */ }
}

let key = storedKey();

function ask(path, accept) {
  return fetch(path, { headers: { accept, ...(key && { authorization: "Bearer " + key }) } });
}

// ---- numbers for people

const count = (value) => (value >= 10_000 ? `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k` : value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1));
const percent = (value) => `${value < 10 && value > 0 ? value.toFixed(1) : Math.round(value)} %`;
function time(ms) {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms >= 10 || ms === 0 ? Math.round(ms) : ms.toFixed(1)} ms`;
}

// ---- what is shown

const CHARTS = [
  { chart: new Chart("Throughput, tokens/s", ["generated", "prompts"], count), values: (look) => [look.generated, look.prompts] },
  { chart: new Chart("Time to first token", ["median", "95th percentile"], time, { least: 10 }), values: (look) => [look.ttft50, look.ttft95] },
  { chart: new Chart("Between two tokens", ["median", "95th percentile"], time, { least: 10 }), values: (look) => [look.itl50, look.itl95] },
  { chart: new Chart("Sequences", ["running", "waiting", "paused"], count, { least: 4 }), values: (look) => [look.running, look.waiting, look.paused] },
  { chart: new Chart("KV cache in use", ["blocks"], percent, { most: 100 }), values: (look) => [look.kv] },
  { chart: new Chart("Prompt tokens found in the cache, each second", ["memory", "disk"], count), values: (look) => [look.hitsMemory, look.hitsDisk] },
  { chart: new Chart("Cached blocks", ["kept", "marked by clients"], count, { least: 10 }), values: (look) => [look.cached, look.marked] },
  { chart: new Chart("Blocks that gave way, each minute", ["unmarked", "time over", "marked"], count, { least: 4 }), values: (look) => look.evicted },
  { chart: new Chart("Answers and refusals, each minute", ["answers", "errors"], count, { least: 4 }), values: (look) => [look.answers, look.errors] },
];

const TILES = [
  ["Generated", (look) => [count(look.generated), "tokens/s"], (look) => `${count(look.prompts)} tokens/s of prompts`],
  ["First token", (look) => split(look.ttft50, time), (look) => (look.ttft95 === null ? "no requests now" : `95 % within ${time(look.ttft95)}`)],
  ["Between tokens", (look) => split(look.itl50, time), (look) => (look.itl95 === null ? "no streams now" : `95 % within ${time(look.itl95)}`)],
  ["Batch", (look) => [count(look.running), "running"], (look) => `${count(look.waiting)} waiting, ${count(look.batch)} tokens a step`],
  ["KV cache", (look) => split(look.kv, percent), (look) => `${percent(look.hits)} of prompts cached; ${count(look.marked)} blocks marked, ${count(look.restored)} restored a minute`],
  ["Errors", (look) => [count(look.errors), "a minute"], (look) => `${look.tenants ?? "–"} tenant${look.tenants === 1 ? "" : "s"} in 5 min`],
];

/** A value and its unit. */
function split(value, show) {
  return value === null ? ["–", ""] : show(value).split(" ");
}

function tile([title]) {
  const node = document.createElement("div");
  node.className = "tile";
  const [heading, value, more] = ["h2", "p", "p"].map((name) => document.createElement(name));
  [heading.textContent, value.className, more.className] = [title, "value", "more"];
  node.append(heading, value, more);
  return node;
}

// ---- looking

const isError = (labels) => Number(labels.status) >= 400;

/** What happened since the look before, and what is now. */
function compare(samples, at) {
  const before = looks.at(-1);
  const seconds = before ? (at - before.at) / 1000 : 0;
  const per = (name, keep) => (before && seconds > 0 ? Math.max(0, total(samples, name, keep) - total(before.samples, name, keep)) / seconds : 0);
  const base = looks.at(-QUANTILE_LOOKS) ?? looks[0];
  const ms = (name, q) => {
    const found = base ? quantile(base.samples, samples, name, q) : null;
    return found === null ? null : found * 1000;
  };
  const [hits, queries] = [per("vllm:prefix_cache_hits_total"), per("vllm:prefix_cache_queries_total")];
  const engines = (samples.get("vllm:kv_cache_usage_perc") ?? []).length || 1;
  const steps = per("vllm:iteration_tokens_total_count");
  return {
    at, samples,
    generated: per("vllm:generation_tokens_total"),
    prompts: per("vllm:prompt_tokens_total"),
    ttft50: ms("vllm:time_to_first_token_seconds", 0.5), ttft95: ms("vllm:time_to_first_token_seconds", 0.95),
    itl50: ms("vllm:inter_token_latency_seconds", 0.5), itl95: ms("vllm:inter_token_latency_seconds", 0.95),
    running: total(samples, "vllm:num_requests_running"), waiting: total(samples, "vllm:num_requests_waiting"),
    paused: total(samples, "throng_num_requests_paused"),
    kv: (total(samples, "vllm:kv_cache_usage_perc") / engines) * 100,
    hitsMemory: per("throng_cache_hit_tokens_total", ({ source }) => source === "memory"),
    hitsDisk: per("throng_cache_hit_tokens_total", ({ source }) => source === "disk"),
    cached: total(samples, "throng_kv_blocks_cached"), marked: total(samples, "throng_kv_blocks_marked"),
    restored: 60 * per("throng_kv_blocks_restored_total"),
    evicted: [["unmarked"], ["expired"], ["marked", "over_share"]].map((reasons) => 60 * per("throng_kv_blocks_evicted_total", ({ reason }) => reasons.includes(reason))),
    hits: queries > 0 ? (hits / queries) * 100 : 0,
    batch: steps > 0 ? per("vllm:iteration_tokens_total_sum") / steps : 0,
    answers: 60 * per("vllm:request_success_total", (labels) => ["stop", "length"].includes(labels.finished_reason)),
    errors: 60 * (per("http_requests_total", isError) + per("throng_stream_errors_total")),
  };
}

function setState(name, text) {
  $("state").className = name;
  $("state-text").textContent = text;
}

async function look() {
  const answer = await ask("metrics", "text/plain");
  const isRefused = answer.status === 401 || answer.status === 403;
  $("key-form").hidden = !isRefused;
  if (isRefused) {
    const isClients = answer.status === 403;
    $("key-error").textContent = isClients ? "Only the operator's key opens the dashboard." : key ? "The server does not accept this key." : "";
    return setState("lost", "needs a key");
  }
  if (!answer.ok) return setState("lost", `the server answered ${answer.status}`);
  const [now, list] = [Date.now(), await latest()];
  await workers();
  const seen = compare(parseMetrics(await answer.text()), now);
  seen.tenants = list?.active_tenants;
  looks.push(seen);
  while (looks[0].at < now - SPAN_MS) looks.shift();
  show(now);
  const models = [...new Set((seen.samples.get("throng_model_info") ?? []).map(({ labels }) => labels.model_name)), ...(await absent())];
  setState("live", models.length ? models.join(", ") : "loading the model");
}

function show(now) {
  const seen = looks.at(-1);
  TILES.forEach(([, value, more], i) => {
    const [, shownValue, shownMore] = $("now").children[i].children;
    const [number, unit] = value(seen);
    const small = document.createElement("small");
    small.textContent = unit ?? "";
    shownValue.replaceChildren(number, small);
    shownMore.textContent = more(seen);
  });
  // The first look has nothing to be compared with.
  const compared = looks.slice(1);
  for (const { chart, values } of CHARTS) {
    chart.update(compared.map((one) => ({ at: one.at, values: values(one) })), now - SPAN_MS, now);
  }
}

// ---- workers

/** The workers and engines of a gateway with their roles; a server of its own has none. */
async function workers() {
  const answer = await ask("fleet", "application/json");
  const list = answer.ok ? (await answer.json()).workers : [];
  $("workers").replaceChildren(...list.map(worker));
  $("workers-part").hidden = list.length === 0;
}

function worker({ name, role, state, reason, models, running, waiting, used_blocks: used, total_blocks: all }) {
  const node = document.createElement("tr");
  const blocks = all > 0 ? percent((used / all) * 100) : "–";
  [name, role, state, models.join(", ") || "–", count(running), count(waiting), blocks].forEach((content, i) => {
    const cell = document.createElement("td");
    if (i >= 4) cell.className = "number";
    if (i === 2 && reason) [cell.className, cell.title] = ["failed", reason];
    cell.append(content);
    node.append(cell);
  });
  return node;
}

// ---- requests

async function latest() {
  const answer = await ask("explain", "application/json");
  if (!answer.ok) return null;
  const list = await answer.json();
  $("requests").replaceChildren(...list.data.slice(0, 12).map(row));
  $("requests-part").hidden = list.data.length === 0;
  return list;
}

/** Models that are not in memory, with their states; an operator's key may not list models. */
async function absent() {
  if (key) return [];
  const answer = await ask("v1/models", "application/json");
  if (!answer.ok) return [];
  const list = (await answer.json()).data ?? [];
  return list.filter(({ state }) => state && state !== "loaded").map(({ id, state }) => `${id} (${state})`);
}

function row(request) {
  const node = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = request.request_id.length > 20 ? request.request_id.slice(0, 19) + "…" : request.request_id;
  button.title = request.request_id;
  button.addEventListener("click", () => explain(request.request_id));
  const cells = [
    new Date(request.created * 1000).toLocaleTimeString(), button, request.model ?? "–", request.error ?? request.outcome ?? "–",
    request.prompt_tokens ?? "–", request.output_tokens ?? "–", request.ttft_ms === null ? "–" : time(request.ttft_ms), time(request.total_ms),
  ];
  cells.forEach((content, i) => {
    const cell = document.createElement("td");
    if (i >= 4) cell.className = "number";
    if (i === 3 && (request.error || ["error", "abort"].includes(request.outcome))) cell.className = "failed";
    cell.append(content);
    node.append(cell);
  });
  return node;
}

async function explain(id) {
  shown = id;
  const answer = await ask("explain/" + encodeURIComponent(id), "application/json");
  if (!answer.ok || shown !== id) return;
  const request = await answer.json();
  const heading = document.createElement("h3");
  heading.textContent = `Where the time of ${id} went`;
  const phases = document.createElement("dl");
  phases.className = "phases";
  for (const phase of request.phases) {
    const [name, length, bar] = ["dt", "dd", "dd"].map((tag) => document.createElement(tag));
    [name.textContent, name.title, length.textContent, length.className] = [phase.name, phase.about, time(phase.ms), "number"];
    const [start, width] = [phase.start_ms, phase.ms].map((ms) => (ms / Math.max(request.total_ms, 0.001)) * 100);
    const svg = drawn("svg", { viewBox: "0 0 100 7", preserveAspectRatio: "none", role: "img", "aria-label": phase.about });
    svg.append(drawn("rect", { x: start.toFixed(2), y: 0, width: Math.max(width, 0.3).toFixed(2), height: 7, rx: 0.4 }));
    bar.append(svg);
    phases.append(name, length, bar);
  }
  const facts = request.generations.map((generation) => {
    const line = document.createElement("p");
    line.className = "facts";
    const { prefill, decode } = generation;
    line.textContent = `Prompt in ${prefill.steps} step${prefill.steps === 1 ? "" : "s"}, answer in ${decode.steps}, beside ${decode.batch_mates_mean} other sequences on average (at most ${decode.batch_mates_max}); preempted ${generation.preemptions} times, paused ${generation.pauses} times.`;
    return line;
  });
  $("explanation").replaceChildren(heading, phases, ...facts);
  $("explanation").hidden = false;
}

// ---- begin

$("now").append(...TILES.map(tile));
$("charts").append(...CHARTS.map(({ chart }) => chart.node));
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  storeKey(key);
  look().catch(() => setState("lost", "the server cannot be reached"));
});

async function watch() {
  if (!document.hidden) await look().catch(() => setState("lost", "the server cannot be reached"));
  setTimeout(watch, INTERVAL_MS);
}

watch();
