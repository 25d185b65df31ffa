// Searches the titles and messages of all conversations.

const MAX_FOUND = 50;
const SNIPPET_CHARS = 80;

/** Conversations whose title or messages have a text, the latest first: `{ head, message, snippet }`. */
export async function search(storage, text, signal) {
  const wanted = text.toLowerCase();
  const found = [];
  for (const head of await storage.conversations()) {
    if (signal.aborted || found.length >= MAX_FOUND) break;
    if (head.title.toLowerCase().includes(wanted)) {
      found.push({ head });
      continue;
    }
    const message = (await storage.messages(head.id)).find(({ content }) => content.toLowerCase().includes(wanted));
    if (message) found.push({ head, message, snippet: snippet(message.content, wanted) });
  }
  return found;
}

function snippet(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted);
  const start = Math.max(0, at - SNIPPET_CHARS / 4);
  return (start ? "…" : "") + text.slice(start, start + SNIPPET_CHARS).replace(/\s+/g, " ");
}
