//! Calls of tools and reasoning in answers, whole and streamed, over an executor that answers what it is told
//! to.

use crate::harness::{Client, END, Server, Setup, byte_tokenizer, chat};
use serde_json::{Value, json};
use throng_core::request::GenerationDefaults;
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_gateway::GatewayConfig;
use throng_text::{AnswerFormat, ReasoningFormat, ToolCallFormat};

/// Answers every prompt of a request with a penalty (only those bring their prompt along) with the text
/// between the marks `{{` and `}}` in it, a byte a token.
fn answer_as_told(batch: &ScheduledBatch, scheduled: &ScheduledSequence, output: &mut StepOutput) {
    let history = batch.history(scheduled, 0);
    let prompt = &history[..scheduled.n_prompt as usize];
    let find = |mark: u32| prompt.windows(2).rposition(|pair| pair == [mark, mark]);
    let script = match (find(u32::from(b'{')), find(u32::from(b'}'))) {
        (Some(start), Some(end)) => &prompt[start + 2..end],
        _ => &[],
    };
    let token = script.get(history.len() - prompt.len()).copied().unwrap_or(END);
    output.push_sampled(TokenLogprob { token, logprob: -1.0, rank: 1 }, &[]);
}

/// A server whose answers are scripted by [`answer_as_told`]; every request has a penalty.
pub async fn scripted(tool_calls: Option<ToolCallFormat>, reasoning: Option<ReasoningFormat>) -> Server {
    scripted_with(GatewayConfig::default(), tool_calls, reasoning).await
}

/// The same with another configuration.
pub async fn scripted_with(
    config: GatewayConfig,
    tool_calls: Option<ToolCallFormat>,
    reasoning: Option<ReasoningFormat>,
) -> Server {
    let answer_format = AnswerFormat::new(tool_calls, reasoning, &byte_tokenizer());
    let penalty = GenerationDefaults { repetition_penalty: Some(1.1), ..GenerationDefaults::default() };
    let setup = Setup { config, answer_format, generation_defaults: penalty, ..Setup::default() };
    Server::answering(setup, answer_as_told).await
}

async fn server(tool_calls: Option<ToolCallFormat>, reasoning: Option<ReasoningFormat>) -> Server {
    let answer_format = AnswerFormat::new(tool_calls, reasoning, &byte_tokenizer());
    Server::answering(Setup { answer_format, ..Setup::default() }, answer_as_told).await
}

fn tools() -> Value {
    let tool = |name: &str| {
        let parameters =
            json!({"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    json!([tool("get_weather"), tool("now")])
}

/// A request whose answer will be `answer`.
fn asking(answer: &str, fields: Value) -> Value {
    let mut body = chat(
        json!({"messages": [{"role": "user", "content": format!("{{{{{answer}}}}}")}], "max_tokens": 900,
                              "repetition_penalty": 1.1}),
    );
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

/// The message and the reason of its end, whole and put together from a stream, which must be the same.
async fn answer(client: &mut Client, body: &Value) -> (Value, Value) {
    let whole = client.post("/v1/chat/completions", body).await.json();
    let (message, finish) = (&whole["choices"][0]["message"], &whole["choices"][0]["finish_reason"]);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let chunks = client.post("/v1/chat/completions", &streamed).await.chunks();
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    for key in ["content", "reasoning", "reasoning_content"] {
        let text: String = deltas().filter_map(|delta| delta[key].as_str()).collect();
        assert_eq!(text, message[key].as_str().unwrap_or_default(), "{key}");
    }
    let mut calls: Vec<(String, String)> = Vec::new();
    for call in deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
        assert_eq!(call["index"], calls.len() - usize::from(call["id"].is_null()));
        let arguments = call["function"]["arguments"].as_str().expect("text");
        match call["id"].as_str() {
            Some(_) => calls
                .push((call["function"]["name"].as_str().expect("a name").to_owned(), arguments.to_owned())),
            None => calls.last_mut().expect("a call").1.push_str(arguments),
        }
    }
    let whole_calls = message["tool_calls"].as_array().into_iter().flatten();
    let whole_calls = whole_calls.map(|call| {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        (text(&call["function"]["name"]), text(&call["function"]["arguments"]))
    });
    assert_eq!(calls, whole_calls.collect::<Vec<_>>());
    assert_eq!(&chunks.last().expect("chunks")["choices"][0]["finish_reason"], finish);
    (message.clone(), finish.clone())
}

pub const TWO: &str = "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}\n</tool_call>\n\
                   <tool_call>\n{\"name\": \"now\"}\n</tool_call>";

#[tokio::test]
async fn tools_are_called() {
    let server = server(Some(ToolCallFormat::Hermes), None).await;
    let mut client = server.connect().await;
    for choice in [json!({"tools": tools()}), json!({"tools": tools(), "tool_choice": "auto"})] {
        let (message, finish) = answer(&mut client, &asking(TWO, choice)).await;
        assert_eq!((&message["content"], &finish), (&json!("I look."), &json!("tool_calls")));
        let calls = message["tool_calls"].as_array().expect("calls");
        assert_eq!(
            calls[0]["function"],
            json!({"name": "get_weather", "arguments": "{\"city\": \"São Paulo\"}"})
        );
        assert_eq!(calls[1]["function"], json!({"name": "now", "arguments": "{}"}));
        assert_eq!((calls.len(), &calls[0]["type"]), (2, &json!("function")));
        let ids = [0, 1].map(|idx| calls[idx]["id"].as_str().expect("an id"));
        assert!(ids[0].starts_with("call_") && ids[0] != ids[1]);
    }
    let one = asking(TWO, json!({"tools": tools(), "parallel_tool_calls": false}));
    assert_eq!(answer(&mut client, &one).await.0["tool_calls"].as_array().map(Vec::len), Some(1));
    let none = asking(TWO, json!({"tools": tools(), "tool_choice": "none"}));
    assert_eq!(
        answer(&mut client, &none).await,
        (json!({"role": "assistant", "content": TWO, "refusal": null}), json!("stop"))
    );
    let plain = asking("No call.", json!({"tools": tools()}));
    assert_eq!(
        answer(&mut client, &plain).await.0,
        json!({"role": "assistant", "content": "No call.", "refusal": null})
    );
    let cut = asking(TWO, json!({"tools": tools(), "max_tokens": 60}));
    let (message, finish) = answer(&mut client, &cut).await;
    assert_eq!(
        (&finish, &message["tool_calls"][0]["function"]["name"]),
        (&json!("length"), &json!("get_weather"))
    );
    server.idle().await;
}

#[tokio::test]
async fn reasoning_is_told_apart() {
    let server = server(Some(ToolCallFormat::Hermes), Some(ReasoningFormat::Think)).await;
    let mut client = server.connect().await;
    let text = "<think>\nHm. é\n</think>\n\nHello";
    let (message, finish) =
        answer(&mut client, &asking(text, json!({"logprobs": true, "return_token_ids": true}))).await;
    let expected = json!({"role": "assistant", "content": "Hello", "refusal": null, "reasoning": "Hm. é", "reasoning_content": "Hm. é"});
    assert_eq!((message, finish), (expected, json!("stop")));
    // A byte a token; the last `>` of the opening mark is not counted, of the closing one all but that.
    let usage = client.post("/v1/chat/completions", &asking(text, json!({}))).await.json()["usage"].clone();
    let n_reasoning = "\nHm. é\n</think".len();
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], n_reasoning);
    let hidden = asking(text, json!({"include_reasoning": false}));
    assert_eq!(
        answer(&mut client, &hidden).await.0,
        json!({"role": "assistant", "content": "Hello", "refusal": null})
    );
    let call = asking(
        "<think>Hm.</think><tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
        json!({"tools": tools()}),
    );
    let (message, finish) = answer(&mut client, &call).await;
    assert_eq!(
        (&message["reasoning"], &message["content"], &finish),
        (&json!("Hm."), &Value::Null, &json!("tool_calls"))
    );
    // The prompt ends inside the reasoning of a message that goes on.
    let mut open =
        asking("so.</think>Yes", json!({"add_generation_prompt": false, "continue_final_message": true}));
    let last = json!({"role": "assistant", "content": "<think>\nHm, "});
    open["messages"].as_array_mut().expect("a list").push(last);
    let (message, _) = answer(&mut client, &open).await;
    assert_eq!((&message["reasoning"], &message["content"]), (&json!("so."), &json!("Yes")));
}

#[tokio::test]
async fn what_cannot_be_held_to_is_refused() {
    let server = server(None, None).await;
    let mut client = server.connect().await;
    let reply = client.post("/v1/chat/completions", &asking("x", json!({"tools": tools()}))).await;
    assert_eq!((reply.status, reply.error().2), (400, json!("tools")));
    drop(client);
    // Between tags, arguments are written one by one: what concerns them together cannot be enforced.
    let mut strict = tools();
    strict[1]["function"]["strict"] = json!(true);
    strict[1]["function"]["parameters"]["anyOf"] = json!([{"required": ["city"]}, {"required": ["n"]}]);
    let named = json!({"type": "function", "function": {"name": "now"}});
    let server = self::server(Some(ToolCallFormat::Glm), None).await;
    let mut client = server.connect().await;
    let cases = [
        (json!({"tools": strict, "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": strict, "tool_choice": named}), "tool_choice"),
        (json!({"tools": strict}), "tools[1].function.strict"),
    ];
    for (fields, param) in cases {
        let reply = client.post("/v1/chat/completions", &asking("x", fields)).await;
        let (status, _, told, code) = reply.error();
        assert_eq!((status, told, code.as_str()), (400, json!(param), "unsupported_json_schema"));
    }
}

#[tokio::test]
async fn several_answers_are_read_each_by_itself() {
    let server = server(Some(ToolCallFormat::Mistral), None).await;
    let mut client = server.connect().await;
    let call = "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Rome\"}";
    let body = asking(call, json!({"tools": tools(), "n": 2}));
    let whole = client.post("/v1/chat/completions", &body).await.json();
    for choice in whole["choices"].as_array().expect("choices") {
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"]["arguments"], "{\"city\": \"Rome\"}");
        let id = call["id"].as_str().expect("an id");
        assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
    }
    assert_eq!(whole["choices"].as_array().map(Vec::len), Some(2));
}
