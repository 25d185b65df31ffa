// The settings dialog: what a request asks for, prompts kept under a name, and all conversations as a file.

import { $ } from "./dom.js";
import { MAX_PROMPT_CHARS, preferences, prompts } from "./preferences.js";
import { titleOf } from "./conversation.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const KEEPING = ["keep", "copy"];
const TEXTS = ["thinking", "format", "schema", "tools"];

/** A field of JSON: its value, `undefined` where it is empty or wrong. */
function json(id, isRight) {
  const text = $(id).value.trim();
  let value;
  let error = "";
  try {
    value = text ? JSON.parse(text) : undefined;
    if (text && !isRight(value)) error = $(id).dataset.wanted;
  } catch { error = "This is not JSON."; }
  $(`${id}-error`).textContent = error;
  return error ? undefined : value;
}

const isSchema = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** What requests are to have, as the dialog says. */
export function settings() {
  const number = (id) => ($(id).value.trim() === "" ? undefined : Number($(id).value));
  const schema = json("schema", isSchema);
  const tools = json("tools", Array.isArray);
  const format = $("format").value;
  return {
    ...Object.fromEntries(NUMBERS.map((id) => [id, number(id)])),
    thinking: { on: true, off: false }[$("thinking").value],
    format: format === "schema" && !schema ? "json" : format || undefined,
    schema,
    tools: tools?.length ? tools : undefined,
    probabilities: $("probabilities").checked || undefined,
  };
}

function show() {
  $("schema-field").hidden = $("format").value !== "schema";
  const names = prompts.all().map(({ name }) => new Option(name, name));
  $("saved-prompts").replaceChildren(new Option("Saved prompts…", ""), ...names);
  $("forget-prompt").disabled = true;
}

/** Whether the fields of JSON are right; shows what is wrong where they are not. */
function isRight() {
  settings();
  return !$("tools-error").textContent && ($("format").value !== "schema" || !$("schema-error").textContent);
}

/** Fills the dialog, but for the system prompt of the open conversation, and wires it. `onChange` is called when it closes. */
export function openSettingsWith(onChange) {
  const kept = preferences.get("settings");
  for (const id of [...NUMBERS, ...TEXTS]) $(id).value = kept[id] ?? "";
  $("probabilities").checked = Boolean(kept.probabilities);
  for (const id of KEEPING) $(id).checked = preferences.get(id);
  $("key").value = preferences.key;
  $("system").maxLength = MAX_PROMPT_CHARS;
  show();

  $("format").addEventListener("change", show);
  $("saved-prompts").addEventListener("change", () => {
    const chosen = prompts.all().find(({ name }) => name === $("saved-prompts").value);
    $("forget-prompt").disabled = !chosen;
    if (chosen) $("system").value = chosen.text;
  });
  $("save-prompt").addEventListener("click", () => {
    const text = $("system").value;
    if (!text.trim()) return;
    const name = titleOf(text);
    prompts.add(name, text);
    show();
    $("saved-prompts").value = name;
    $("forget-prompt").disabled = false;
  });
  $("forget-prompt").addEventListener("click", () => {
    prompts.remove($("saved-prompts").value);
    show();
  });
  $("reset").addEventListener("click", () => {
    for (const id of [...NUMBERS, ...TEXTS, "system"]) $(id).value = "";
    $("probabilities").checked = false;
    show();
  });
  $("settings-form").addEventListener("submit", (event) => { if (!isRight()) event.preventDefault(); });
  $("settings").addEventListener("close", () => {
    const texts = Object.fromEntries([...NUMBERS, ...TEXTS].map((id) => [id, $(id).value]));
    preferences.set("settings", { ...texts, probabilities: $("probabilities").checked });
    preferences.set("system", $("system").value);
    preferences.key = $("key").value.trim();
    const isKeepingChanged = KEEPING.some((id) => $(id).checked !== preferences.get(id));
    for (const id of KEEPING) preferences.set(id, $(id).checked);
    onChange(isKeepingChanged);
  });
}
