// The official JavaScript library against a server: `node openai_node.mjs BASE_URL MODEL`. Also runs in a web page,
// where `run` is called with the same two. Throws what does not hold.

import OpenAI from "openai";

const add = {
  type: "function",
  function: {
    name: "add",
    description: "Adds two numbers",
    parameters: {
      type: "object",
      properties: { a: { type: "number" }, b: { type: "number" } },
      required: ["a", "b"],
    },
  },
};

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function raised(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("no error");
}

export async function run(baseURL, model) {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true });
  const chats = client.chat.completions;
  const settings = { model, temperature: 0, max_tokens: 80 };

  const names = [];
  for await (const listed of client.models.list()) names.push(listed.id);
  check(names.includes(model), "the model is not listed");

  const hello = [{ role: "user", content: "Hello!" }];
  const whole = (await chats.create({ ...settings, messages: hello })).choices[0].message.content;
  check(whole, "an empty answer");
  let text = "";
  const stream = await chats.create({ ...settings, messages: hello, stream: true });
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  check(text === whole, `streamed ${text}, whole ${whole}`);

  const question = [{ role: "user", content: "What is 17 + 25? Use the tool." }];
  const message = (await chats.create({ ...settings, messages: question, tools: [add] })).choices[0].message;
  const call = message.tool_calls[0];
  const streamed = await chats.stream({ ...settings, messages: question, tools: [add] }).finalChatCompletion();
  const again = streamed.choices[0].message.tool_calls[0];
  check(again.function.arguments === call.function.arguments, "streamed arguments differ");
  const { a, b } = JSON.parse(call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: String(a + b) };
  const answer = await chats.create({ ...settings, messages: [...question, message, result], tools: [add] });
  check(answer.choices[0].message.content, "no answer to the tool's result");

  let calls = 0;
  const runTool = { ...add.function, parse: JSON.parse, function: (given) => ((calls += 1), given.a + given.b) };
  const runner = chats.runTools({ ...settings, messages: question, tools: [{ type: "function", function: runTool }] });
  check((await runner.finalContent()) && calls === 1, "runTools did not call once and answer");

  const schema = { type: "object", properties: { age: { type: "integer" } }, required: ["age"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "person", strict: true, schema } };
  const parsed = (await chats.parse({ ...settings, messages: hello, response_format })).choices[0].message.parsed;
  check(Number.isInteger(parsed.age), "the schema is not met");

  const bad = await raised(chats.create({ ...settings, messages: hello, top_p: 2 }));
  check(bad instanceof OpenAI.BadRequestError && bad.param === "top_p", `not a BadRequestError of top_p: ${bad}`);
  const missing = await raised(chats.create({ ...settings, messages: hello, model: "nobody" }));
  check(missing instanceof OpenAI.NotFoundError, `not a NotFoundError: ${missing}`);
  const completion = await client.completions.create({ model, prompt: "Once upon", max_tokens: 4 });
  check(completion.choices[0].text, "an empty completion");
}

if (typeof process !== "undefined") {
  const [baseURL, model] = process.argv.slice(2);
  await run(baseURL, model);
}
