// The official JavaScript library over a WebSocket connection: `node responses_socket.mjs BASE_URL MODEL`. Throws what does
// not hold.

import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const ENDS = ["response.completed", "response.incomplete", "response.failed"];

function check(holds, what) {
  if (!holds) throw new Error(what);
}

/** The last event of the response that a message asks for. */
async function answer(socket, message) {
  socket.send(message);
  for await (const event of socket) {
    if (event.type === "error") return event.error;
    if (event.type === "message" && ENDS.includes(event.message.type)) return event.message.response;
  }
  throw new Error("the connection ended");
}

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const socket = new ResponsesWS(client);
const asked = { type: "response.create", model, temperature: 0, max_output_tokens: 40, store: false };

const first = await answer(socket, { ...asked, input: "Hello!" });
check(first.output.length > 0, JSON.stringify(first));
const second = await answer(socket, { ...asked, input: "And now?", previous_response_id: first.id });
check(second.previous_response_id === first.id && second.usage.input_tokens > first.usage.input_tokens, JSON.stringify(second));
const whole = await client.responses.create({ model, temperature: 0, max_output_tokens: 40, input: "Hello!" });
check(whole.output_text === first.output[0].content[0].text, "another answer than over HTTP");
socket.close();
