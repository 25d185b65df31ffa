// The chat page: one conversation, streamed from /v1/chat/completions. Text of the model is only ever set as text.
"use strict";

const $ = (id) => document.getElementById(id);
const SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed", "key"];
const state = { models: [], messages: [], running: null };

const stored = {
  read(name, fallback) {
    try { return JSON.parse(sessionStorage.getItem("throng." + name)) ?? fallback; } catch { return fallback; }
  },
  write(name, value) {
    try { sessionStorage.setItem("throng." + name, JSON.stringify(value)); } catch { /* a full or closed store loses nothing but history */ }
  },
};

// ---- the conversation on the page

function describe(stats) {
  if (!stats) return [];
  const parts = [];
  if (stats.rate) parts.push(`${stats.rate < 10 ? stats.rate.toFixed(1) : Math.round(stats.rate)} tokens/s`);
  if (stats.first !== undefined) parts.push(`first token ${stats.first < 1000 ? Math.round(stats.first) + " ms" : (stats.first / 1000).toFixed(1) + " s"}`);
  if (stats.tokens !== undefined) parts.push(`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
  if (stats.finish === "length") parts.push("cut at the limit");
  if (stats.finish === "stopped") parts.push("stopped");
  return parts;
}

function show(message) {
  const article = element("article", "message " + message.role);
  const text = element("div", "text");
  article.append(text);
  if (message.role === "user") {
    text.textContent = message.content;
  } else {
    const reasoning = element("details", "reasoning");
    reasoning.append(element("summary"), element("div", "thought"));
    text.before(reasoning);
    article.append(element("footer"));
    fill(article, message);
  }
  $("log").append(article);
  $("welcome").hidden = true;
  return article;
}

/** The model's reasoning, closed until it is opened: it stays as the reader left it while text is added. */
function fillReasoning(article, message, pending) {
  const reasoning = article.querySelector(".reasoning");
  reasoning.hidden = !message.reasoning;
  const thinks = pending && !message.content;
  reasoning.querySelector("summary").textContent = thinks ? "Thinking…" : "Reasoning";
  reasoning.classList.toggle("thinks", thinks);
  reasoning.querySelector(".thought").textContent = message.reasoning ?? "";
}

function fill(article, message, pending = false) {
  article.classList.toggle("pending", pending);
  fillReasoning(article, message, pending);
  render(message.content, article.querySelector(".text"));
  article.querySelector(".error, .waiting")?.remove();
  const footer = article.querySelector("footer");
  if (message.waiting) {
    const line = element("p", "waiting", message.waiting);
    line.setAttribute("role", "status");
    footer.before(line);
  }
  if (message.error) {
    const line = element("p", "error", message.error);
    line.setAttribute("role", "alert");
    footer.before(line);
  }
  footer.replaceChildren();
  if (pending) return;
  if (message.content) {
    const copyButton = button("Copy", () => copy(message.content, copyButton));
    footer.append(copyButton);
  }
  const parts = describe(message.stats);
  if (parts.length) footer.append(element("span", "stats", parts.join(" · ")));
}

function atBottom() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function toBottom() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function save() {
  stored.write("messages", state.messages);
}

// ---- asking the server

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key && { authorization: "Bearer " + key }) };
}

/** The turns so far without those that got no answer, and the new question. */
function conversation() {
  const turns = [];
  for (let i = 0; i < state.messages.length; i += 2) {
    const [question, answer] = state.messages.slice(i, i + 2);
    if (i + 2 >= state.messages.length) turns.push(question);
    else if (answer.content && !answer.error) turns.push(question, answer);
  }
  return turns.map(({ role, content }) => ({ role, content }));
}

function requestBody() {
  const body = { model: $("model").value, stream: true, stream_options: { include_usage: true, include_timings: true } };
  const system = $("system").value.trim();
  const said = conversation();
  body.messages = system ? [{ role: "system", content: system }, ...said] : said;
  const number = (id) => ($(id).value.trim() === "" ? undefined : Number($(id).value));
  body.temperature = number("temperature");
  body.top_p = number("top_p");
  body.max_completion_tokens = number("max_tokens");
  body.seed = number("seed");
  return JSON.stringify(body);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const frames = buffer.split("\n\n");
    buffer = frames.pop();
    for (const frame of frames) if (frame.startsWith("data: ")) yield frame.slice(6);
  }
}

async function errorOf(response) {
  try { return (await response.json()).error; } catch { return { message: `The server answered ${response.status}.` }; }
}

const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 10;

/** Waits so many seconds; rejects when it is stopped. */
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

/** The response to a question; as long as the server cannot be reached or is not ready, says so and tries again. */
async function respond(message, signal, onChange) {
  const body = requestBody();
  for (let wait = FIRST_WAIT_S; ; wait = Math.min(2 * wait, LONGEST_WAIT_S)) {
    let why = "The server cannot be reached.";
    let seconds = wait;
    try {
      const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body, signal });
      if (response.ok) return response;
      const error = await errorOf(response);
      if (response.status === 401) askForKey(error);
      if (response.status !== 503) throw Object.assign(new Error(error.message), { final: true });
      why = error.message;
      seconds = Number(response.headers.get("retry-after")) || wait;
    } catch (error) {
      if (error.name === "AbortError" || error.final) throw error;
    }
    message.waiting = `${why} Trying again in ${seconds} s.`;
    onChange();
    await pause(seconds, signal);
  }
}

async function ask(message, asked, signal, onText) {
  const response = await respond(message, signal, onText);
  const clock = { start: message.waiting ? performance.now() : asked };
  delete message.waiting;
  let ended = false;
  message.stats = {};
  for await (const data of events(response)) {
    if (data === "[DONE]") { ended = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const content = delta.content;
    // Engines of other makers use one of two names.
    const reasoning = delta.reasoning || delta.reasoning_content;
    if (content || reasoning) {
      clock.first ??= performance.now();
      message.stats.first = clock.first - clock.start;
      if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
      message.content += content ?? "";
      onText();
    }
    if (choice?.finish_reason) message.stats.finish = choice.finish_reason;
    if (chunk.usage) {
      message.stats.tokens = chunk.usage.completion_tokens;
      message.stats.rate = chunk.timings?.predicted_per_second;
    }
  }
  if (!ended) throw new Error("The connection was lost before the answer was complete.");
}

async function send(text) {
  if (state.running || !text.trim()) return;
  const question = { role: "user", content: text };
  const answer = { role: "assistant", content: "" };
  const asked = performance.now();
  state.messages.push(question, answer);
  show(question);
  const article = show(answer);
  fill(article, answer, true);
  toBottom();
  state.running = new AbortController();
  setBusy(true);
  let drawing = 0;
  const draw = () => {
    drawing = 0;
    const follow = atBottom();
    fill(article, answer, true);
    if (follow) toBottom();
  };
  try {
    await ask(answer, asked, state.running.signal, () => { drawing ||= requestAnimationFrame(draw); });
  } catch (error) {
    if (error.name === "AbortError") answer.stats = { ...answer.stats, finish: "stopped" };
    else answer.error = error instanceof TypeError ? "The connection was lost before the answer was complete." : error.message;
  }
  delete answer.waiting;
  cancelAnimationFrame(drawing);
  const follow = atBottom();
  fill(article, answer);
  if (follow) toBottom();
  state.running = null;
  setBusy(false);
  save();
  $("prompt").focus({ preventScroll: true });
}

function setBusy(busy) {
  document.body.classList.toggle("busy", busy);
  $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("log").setAttribute("aria-busy", String(busy));
  updateSend();
}

function updateSend() {
  if (!CSS.supports("field-sizing", "content")) {
    $("prompt").style.height = "auto";
    $("prompt").style.height = $("prompt").scrollHeight + "px";
  }
  $("send").disabled = !state.running && (!$("prompt").value.trim() || $("model").disabled);
}

function submit() {
  const text = $("prompt").value;
  if (!text.trim() || state.running || $("model").disabled) return;
  $("prompt").value = "";
  updateSend();
  send(text);
}

// ---- models

function showNotice(model) {
  const seen = stored.read("notices", []);
  $("notice").hidden = !model?.notice || seen.includes(model.id);
  $("notice").querySelector("p").textContent = model?.notice ?? "";
}

function chosenModel() {
  return state.models.find((model) => model.id === $("model").value);
}

function modelChanged() {
  $("welcome-model").textContent = $("model").value;
  stored.write("model", $("model").value);
  showNotice(chosenModel());
}

/** Opens the settings where the key is; says whether it is missing or wrong. */
function askForKey(error) {
  const isWrong = error.code === "invalid_api_key";
  const select = $("model");
  select.replaceChildren(new Option(isWrong ? "API key wrong" : "API key needed"));
  select.disabled = true;
  updateSend();
  $("key-state").textContent = isWrong ? "The server does not accept this key." : "The server asks for a key.";
  if (!$("settings").open) $("settings").showModal();
  $("key").focus();
}

async function loadModels() {
  const select = $("model");
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (response.status === 401) {
      askForKey(await errorOf(response));
      return;
    }
    if (!response.ok) throw new Error();
    state.models = (await response.json()).data;
  } catch {
    select.replaceChildren(new Option("server not reachable"));
    setTimeout(loadModels, 3000);
    return;
  }
  $("key-state").textContent = "";
  select.replaceChildren(...state.models.map((model) => new Option(model.id, model.id)));
  const before = stored.read("model", "");
  if (state.models.some((model) => model.id === before)) select.value = before;
  select.disabled = state.models.length === 0;
  modelChanged();
  updateSend();
}

// ---- wiring

function restore() {
  const settings = stored.read("settings", {});
  for (const id of SETTINGS) $(id).value = settings[id] ?? "";
  state.messages = stored.read("messages", []);
  state.messages.forEach(show);
  toBottom();
}

function saveSettings() {
  stored.write("settings", Object.fromEntries(SETTINGS.map((id) => [id, $(id).value])));
  if ($("model").disabled) loadModels();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (state.running) state.running.abort();
  else submit();
});
$("prompt").addEventListener("input", updateSend);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.running && !$("settings").open) state.running.abort();
});
$("ideas").addEventListener("click", (event) => {
  if (event.target.tagName === "BUTTON" && !$("model").disabled) send(event.target.textContent);
});
$("new").addEventListener("click", () => {
  state.running?.abort();
  state.messages = [];
  save();
  $("log").replaceChildren();
  $("welcome").hidden = false;
  $("prompt").focus();
});
$("model").addEventListener("change", modelChanged);
$("notice").querySelector("button").addEventListener("click", () => {
  stored.write("notices", [...stored.read("notices", []), $("model").value]);
  showNotice(null);
});
$("open-settings").addEventListener("click", () => $("settings").showModal());
$("settings").addEventListener("close", () => {
  saveSettings();
  // Chromium gives the focus back to the box when a dialog closes, but types nothing into it.
  $("prompt").blur();
  $("prompt").focus({ preventScroll: true });
});
$("reset").addEventListener("click", () => { for (const id of SETTINGS) if (id !== "key") $(id).value = ""; });

restore();
loadModels();
