// Requests to the server that the page came from: its models, streamed answers, files.

const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 10;

/** A refusal: `code` and `status` are the server's. */
export class ServerError extends Error {
  constructor({ message, code }, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

async function refusal(response) {
  let error = { message: `The server answered ${response.status}.` };
  try { error = (await response.json()).error ?? error; } catch { /* an answer that is not the server's own */ }
  return new ServerError(error, response.status);
}

const headers = (key) => (key ? { authorization: "Bearer " + key } : {});

async function checked(request) {
  const response = await request;
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function listModels(key) {
  return (await (await checked(fetch("v1/models", { headers: headers(key) }))).json()).data;
}

/** The files of this key that hold data of its user, the latest first. */
export async function* listFiles(key) {
  for (let after = ""; ;) {
    const query = `purpose=user_data&limit=500${after && `&after=${encodeURIComponent(after)}`}`;
    const page = await (await checked(fetch(`v1/files?${query}`, { headers: headers(key) }))).json();
    yield* page.data;
    if (!page.has_more || !page.data.length) return;
    after = page.data.at(-1).id;
  }
}

/** The JSON in a file. */
export async function readFile(key, id) {
  return (await checked(fetch(`v1/files/${encodeURIComponent(id)}/content`, { headers: headers(key) }))).json();
}

/** Writes a file of JSON, which the server deletes after so many seconds where they are given. */
export async function writeFile(key, name, text, lifetime) {
  const form = new FormData();
  form.append("purpose", "user_data");
  if (lifetime) {
    form.append("expires_after[anchor]", "created_at");
    form.append("expires_after[seconds]", String(lifetime));
  }
  form.append("file", new Blob([text], { type: "application/json" }), name);
  await checked(fetch("v1/files", { method: "POST", headers: headers(key), body: form }));
}

/** Deletes a file; one that is gone already is no fault. */
export async function deleteFile(key, id) {
  const response = await fetch(`v1/files/${encodeURIComponent(id)}`, { method: "DELETE", headers: headers(key) });
  if (!response.ok && response.status !== 404) throw await refusal(response);
}

/** Waits so many seconds; rejects when it is stopped. */
function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

/** The response to a chat; as long as the server cannot be reached or is not ready, says so and tries again. */
async function respond(body, key, signal, onWait) {
  for (let wait = FIRST_WAIT_S; ; wait = Math.min(2 * wait, LONGEST_WAIT_S)) {
    let reason = "The server cannot be reached.";
    let seconds = wait;
    try {
      const sent = { "content-type": "application/json", ...headers(key) };
      const request = { method: "POST", headers: sent, body: JSON.stringify(body), signal };
      const response = await fetch("v1/chat/completions", request);
      if (response.ok) return response;
      const error = await refusal(response);
      if (response.status !== 503) throw error;
      reason = error.message;
      seconds = Number(response.headers.get("retry-after")) || wait;
    } catch (error) {
      if (error.name === "AbortError" || error instanceof ServerError) throw error;
    }
    onWait(`${reason} Trying again in ${seconds} s.`);
    await pause(seconds, signal);
  }
}

async function* serverSentEvents(response) {
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

/** The chunks of a streamed chat; ends after the last one, and throws where the stream breaks before. */
export async function* streamChat(body, { key, signal, onWait }) {
  const response = await respond(body, key, signal, onWait);
  onWait(null);
  try {
    for await (const data of serverSentEvents(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error, response.status);
      yield chunk;
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
  }
  throw new Error("The connection was lost before the answer was complete.");
}
