// What the reader has chosen. It is kept in this browser; the key only in this tab, until it is closed.

const PREFIX = "throng.";
const MAX_PROMPTS = 50;
export const MAX_PROMPT_CHARS = 20_000;

// Where the browser keeps nothing, or no more, a choice holds for this page only.
const held = new Map();

function read(area, name, fallback) {
  if (held.has(name)) return held.get(name);
  try { return JSON.parse(window[area].getItem(PREFIX + name)) ?? fallback; } catch { return fallback; }
}

function write(area, name, value) {
  held.delete(name);
  try { window[area].setItem(PREFIX + name, JSON.stringify(value)); } catch { held.set(name, value); }
}

const DEFAULTS = {
  model: "",
  system: "",
  keep: true,
  copy: false,
  deleted: {},
  sidebar: true,
  notices: [],
  settings: {},
  prompts: [],
};

export const preferences = {
  get: (name) => read("localStorage", name, DEFAULTS[name]),
  set: (name, value) => write("localStorage", name, value),
  get key() { return read("sessionStorage", "key", ""); },
  set key(value) { write("sessionStorage", "key", value); },
};

/** Prompts kept under a name, the latest first. */
export const prompts = {
  all: () => preferences.get("prompts"),
  add(name, text) {
    const others = prompts.all().filter((prompt) => prompt.name !== name);
    preferences.set("prompts", [{ name, text }, ...others].slice(0, MAX_PROMPTS));
  },
  remove: (name) => preferences.set("prompts", prompts.all().filter((prompt) => prompt.name !== name)),
};
