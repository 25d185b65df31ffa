// Exports of llama.cpp's page as those of this one: `{ conv, messages }`, or a list of them. Nothing is checked here;
// `transfer.js` checks what comes out as it does any file.

const isList = (value) => Array.isArray(value);

/** Whether a file's content is such an export. */
export function isLlamaCppExport(content) {
  const first = isList(content) ? content[0] : content;
  return Boolean(first?.conv) && isList(first.messages);
}

/** The conversations of such an export, as this page writes them. */
export function conversationsOf(content) {
  return (isList(content) ? content : [content]).map(converted);
}

function converted(entry) {
  const all = new Map((isList(entry?.messages) ? entry.messages : []).map((message) => [message?.id, message]));
  const system = [...all.values()].find((message) => message?.role === "system" && message.content);
  /** The nearest message above that is shown: the root and system prompts are not. */
  const parentOf = (message) => {
    let n_steps = 0;
    let parent = all.get(message.parent);
    while (parent && isHidden(parent) && n_steps++ < all.size) parent = all.get(parent.parent);
    return parent && !isHidden(parent) ? parent.id : null;
  };
  const names = new Map();
  const messages = parentsFirst([...all.values()].filter((message) => message && !isHidden(message)), parentOf);
  return {
    title: entry?.conv?.name ?? "",
    updated: entry?.conv?.lastModified,
    leaf: entry?.conv?.currNode,
    system: system?.content ?? "",
    messages: messages.map((message) => readMessage(message, parentOf(message), names)),
  };
}

const isHidden = ({ type, role }) => type === "root" || role === "system";

/** A list in which each message stands behind the one that it answers; those in a circle are left out. */
function parentsFirst(messages, parentOf) {
  const children = Map.groupBy(messages, parentOf);
  const ordered = [...(children.get(null) ?? [])];
  for (const message of ordered) ordered.push(...(children.get(message.id) ?? []));
  return ordered;
}

function readMessage(message, parent, names) {
  const { id, role, content, timestamp, model } = message;
  const calls = readCalls(message.toolCalls);
  for (const call of calls) names.set(call.id, call.name);
  const read = { id, parent, role, content, created: timestamp, model };
  const reasoning = message.reasoningContent ?? message.thinking;
  if (reasoning) read.reasoning = reasoning;
  if (calls.length) read.calls = calls;
  if (role === "tool") Object.assign(read, { call: message.toolCallId, name: names.get(message.toolCallId) ?? "tool" });
  return read;
}

function readCalls(text) {
  let calls = [];
  try { calls = JSON.parse(text); } catch { /* no calls, or none that can be read */ }
  if (!isList(calls)) return [];
  return calls.map((call) => ({ id: call?.id, name: call?.function?.name, arguments: call?.function?.arguments }));
}
