// Conversations as a file, and back. A file is checked before anything of it is kept.

import { MAX_MESSAGES, newId, titleOf } from "./conversation.js";
import { MAX_IMAGES, isImageUrl } from "./images.js";
import { conversationsOf, isLlamaCppExport } from "./llama_cpp_export.js";
import { MAX_CONVERSATIONS } from "./storage.js";

const FORMAT = "throng-conversations";
const MAX_FILE_BYTES = 256 * 1024 * 1024;
const MAX_TEXT_CHARS = 4 * 1024 * 1024;
const ROLES = new Set(["user", "assistant", "tool"]);

/** The text of a file with these conversations. */
export async function exportText(storage, heads) {
  const conversations = [];
  for (const head of heads) conversations.push({ ...head, messages: await storage.messages(head.id) });
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

class BadFile extends Error {}

const isText = (value) => typeof value === "string" && value.length <= MAX_TEXT_CHARS;
const isTime = (value) => Number.isFinite(value) && value >= 0 && value < 1e14;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const numberOr = (value, fallback) => (Number.isFinite(value) ? value : fallback);

/** The conversations of a file, under ids of their own: `[{ head, messages }]`. Throws what is wrong with it. */
export async function importFile(file) {
  if (file.size > MAX_FILE_BYTES) throw new BadFile("The file is larger than 256 MB.");
  let content;
  try { content = JSON.parse(await file.text()); } catch { throw new BadFile("The file is not JSON."); }
  const conversations = isLlamaCppExport(content) ? conversationsOf(content) : ownConversations(content);
  if (conversations.length > MAX_CONVERSATIONS) {
    throw new BadFile(`The file has more than ${MAX_CONVERSATIONS} conversations.`);
  }
  return conversations.map((entry) => readConversation(entry, newId));
}

/** A conversation of this page under its own ids: `{ head, messages }`. Throws what is wrong with it. */
export function readCopy(entry) {
  const own = (id) => {
    if (!isText(id) || !/^[0-9a-f]{32}$/.test(id)) throw new BadFile("An id is not one.");
    return id;
  };
  return readConversation(entry, own);
}

function ownConversations(content) {
  if (content?.format === FORMAT && content.version === 1 && Array.isArray(content.conversations)) {
    return content.conversations;
  }
  throw new BadFile("The file has no conversations of this page or of llama.cpp's.");
}

function readConversation(entry, idFor) {
  if (!isObject(entry) || !isText(entry.title) || !isTime(entry.updated) || !Array.isArray(entry.messages)) {
    throw new BadFile("A conversation lacks its title, its time or its messages.");
  }
  if (entry.messages.length > MAX_MESSAGES) throw new BadFile(`“${titleOf(entry.title)}” has too many messages.`);
  const id = idFor(entry.id);
  const ids = new Map();
  const messages = entry.messages.map((message) => readMessage(message, { conversation: id, ids, idFor }));
  const head = {
    id,
    title: titleOf(entry.title),
    created: isTime(entry.created) ? entry.created : entry.updated,
    updated: entry.updated,
    leaf: ids.get(entry.leaf) ?? messages.at(-1)?.id ?? null,
    system: isText(entry.system) ? entry.system : "",
    model: isText(entry.model) ? entry.model : "",
  };
  return { head, messages };
}

/** A message under the id that it gets; its parent must stand before it. */
function readMessage(message, { conversation, ids, idFor }) {
  const isGood = isObject(message) && isText(message.id) && ROLES.has(message.role) && isText(message.content);
  if (!isGood || ids.has(message.id)) throw new BadFile("A message lacks its id, its role or its text.");
  const parent = message.parent === null ? null : ids.get(message.parent);
  if (parent === undefined) throw new BadFile("A message stands before the one that it answers.");
  const id = idFor(message.id);
  ids.set(message.id, id);
  const read = { id, conversation, parent, role: message.role, content: message.content };
  read.created = isTime(message.created) ? message.created : ids.size;
  for (const name of ["reasoning", "error", "format", "model", "name", "call"]) {
    if (isText(message[name])) read[name] = message[name];
  }
  const images = Array.isArray(message.images) ? message.images.filter(isImageUrl).slice(0, MAX_IMAGES) : [];
  if (images.length) read.images = images;
  if (isObject(message.stats)) read.stats = readStats(message.stats);
  if (Array.isArray(message.calls)) read.calls = message.calls.slice(0, 128).map(readCall);
  if (Array.isArray(message.tokens)) read.tokens = readTokens(message.tokens);
  return read;
}

function readStats({ first, tokens, rate, finish }) {
  const stats = {};
  for (const [name, value] of Object.entries({ first, tokens, rate })) if (Number.isFinite(value)) stats[name] = value;
  return isText(finish) ? { ...stats, finish } : stats;
}

function readCall(call) {
  const isWhole = isText(call?.id) && isText(call.name) && isText(call.arguments);
  if (!isWhole) throw new BadFile("A tool call is not whole.");
  return { id: call.id, name: call.name, arguments: call.arguments };
}

function readTokens(tokens) {
  const read = (entry) => {
    if (!Array.isArray(entry) || !isText(entry[0])) throw new BadFile("A token is not one.");
    return [entry[0], numberOr(entry[1], 0)];
  };
  const others = (entry) => (Array.isArray(entry[2]) ? entry[2] : []);
  return tokens.slice(0, 8_192).map((entry) => [...read(entry), others(entry).slice(0, 20).map(read)]);
}
