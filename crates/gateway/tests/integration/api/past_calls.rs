//! Answers that clients send back as history: cut anywhere, with the ids that the family reads, and without a
//! format of calls.

use crate::harness::{Client, END, Server, Setup, byte_tokenizer, chat};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, ScheduledSequence, StepOutput, TokenLogprob};
use throng_text::{AnswerFormat, ReasoningFormat, ToolCallFormat};

/// Marks before and after the text of a prompt that is to be the answer.
const MARKS: [char; 2] = ['\u{1}', '\u{2}'];

/// Answers a prompt with the text between the marks in it, a byte a token.
fn answer_as_told(batch: &ScheduledBatch, scheduled: &ScheduledSequence, output: &mut StepOutput) {
    let history = batch.history(scheduled, 0);
    let prompt = &history[..scheduled.n_prompt as usize];
    let [start, end] = MARKS.map(|mark| prompt.iter().rposition(|token| *token == u32::from(mark)));
    let script = start.zip(end).map_or(&[][..], |(start, end)| &prompt[start + 1..end]);
    let token = script.get(history.len() - prompt.len()).copied().unwrap_or(END);
    output.push_sampled(TokenLogprob { token, logprob: -1.0, rank: 1 }, &[]);
}

async fn server(tool_calls: ToolCallFormat, reasoning: Option<ReasoningFormat>, template: &str) -> Server {
    let answer_format = AnswerFormat::new(Some(tool_calls), reasoning, &byte_tokenizer());
    let setup = Setup { answer_format, template: template.to_owned(), ..Setup::default() };
    Server::answering(setup, answer_as_told).await
}

fn tools() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}});
    let function = json!({"name": "get_weather", "description": "Looks out.", "parameters": parameters});
    json!([{"type": "function", "function": function}])
}

/// A template that walks the arguments of past calls, as those of tagged formats do.
const WALKING: &str = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}\
                       </think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<call={{ c.function.name }}>\
                       {% for k, v in c.function.arguments | items %}<{{ k }}={{ v }}>{% endfor %}{% endfor %}{% endfor %}";
/// One that joins them as text, as those of sections do.
const JOINING: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\
                       {{ '<call=' + c.id + '>' + c.function.arguments }}{% endfor %}{% endfor %}";
/// One that knows neither tools nor their messages.
const PLAIN: &str = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('who?') }}\
                     {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// A request whose answer will be `answer`.
fn asking(answer: &str, fields: Value) -> Value {
    let [start, end] = MARKS;
    let messages = json!([{"role": "user", "content": format!("{start}{answer}{end}")}]);
    let mut body =
        chat(json!({"messages": messages, "tools": tools(), "max_tokens": 900, "repetition_penalty": 1.1}));
    body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    body
}

async fn message(client: &mut Client, body: &Value) -> Value {
    let reply = client.post("/v1/chat/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["choices"][0]["message"].clone()
}

/// The conversation after an answer, with replies to its calls.
fn conversation(answer: &Value) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "Ask."}), answer.clone()];
    for call in answer["tool_calls"].as_array().into_iter().flatten() {
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "A reply."}));
    }
    messages.push(json!({"role": "user", "content": "Go on."}));
    Value::Array(messages)
}

/// The prompt of a conversation, which is a byte a token.
async fn prompt(client: &mut Client, messages: &Value) -> String {
    let body =
        json!({"model": "paper", "messages": messages, "tools": tools(), "add_generation_prompt": false});
    let reply = client.post("/tokenize", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let tokens = reply.json()["tokens"].as_array().expect("tokens").clone();
    let bytes = tokens.iter().filter_map(|token| u8::try_from(token.as_u64()?).ok()).collect();
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn an_answer_that_was_cut_anywhere_is_taken_as_history() {
    let answers = [
        (
            ToolCallFormat::Qwen3Coder,
            WALKING,
            "<think>Hm, é.</think>I look.<tool_call>\n<function=get_weather>\n<parameter=city>\nSão </parameter> P\n\
             </parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            ToolCallFormat::Hermes,
            WALKING,
            "<think>Hm.</think><tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"é\\n\", \"n\": [1]}}</tool_call>",
        ),
        (
            ToolCallFormat::KimiK2,
            JOINING,
            "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|>",
        ),
        (
            ToolCallFormat::Generic,
            PLAIN,
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>",
        ),
    ];
    for (format, template, answer) in answers {
        let server = server(format, Some(ReasoningFormat::Think), template).await;
        let mut client = server.connect().await;
        for n in 1..=answer.len() {
            let told = message(&mut client, &asking(answer, json!({"max_tokens": n}))).await;
            let shown = prompt(&mut client, &conversation(&told)).await;
            let goes_on = asking("", json!({"messages": conversation(&told), "max_tokens": 1}));
            let reply = client.post("/v1/chat/completions", &goes_on).await;
            assert_eq!(reply.status, 200, "{told}: {}", reply.text());
            for text in ["content", "reasoning"].iter().filter_map(|key| told[key].as_str()) {
                assert!(template != WALKING || shown.contains(text), "{told} is not in {shown}");
            }
        }
        server.idle().await;
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_shown() {
    let server = server(ToolCallFormat::Qwen3Coder, None, WALKING).await;
    let mut client = server.connect().await;
    let cases = [
        (json!("{\"city\": \"Paris\"}"), "<call=get_weather><city=Paris>"),
        (json!("{\"city\": \"Par"), "<call=get_weather><city=Par>"),
        (json!(""), "<call=get_weather><tool>"),
        (json!("null"), "<call=get_weather><tool>"),
        (json!(null), "<call=get_weather><tool>"),
        (json!("[\"Paris\"]"), "<call=get_weather><arguments=[\"Paris\"]>"),
    ];
    for (arguments, expected) in cases {
        let function = json!({"name": "get_weather", "arguments": arguments});
        let call = json!({"id": "call_1", "type": "function", "function": function});
        let answer = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let shown = prompt(&mut client, &conversation(&answer)).await;
        assert!(shown.contains(expected), "{expected} is not in {shown}");
    }
}

#[tokio::test]
async fn ids_are_those_that_the_family_reads_back() {
    let server = server(ToolCallFormat::KimiK2, None, JOINING).await;
    let mut client = server.connect().await;
    let call = |id: &str| format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>");
    let answer = [call("functions.get_weather:7"), call("get_weather")].concat();
    let told = message(&mut client, &asking(&answer, json!({}))).await;
    let ids = [0, 1].map(|idx| told["tool_calls"][idx]["id"].as_str().expect("an id").to_owned());
    assert_eq!(ids, ["functions.get_weather:7", "functions.get_weather:1"]);
    let mut streamed = asking(&answer, json!({"stream": true}));
    let chunks = client.post("/v1/chat/completions", &streamed).await.chunks();
    let streamed_ids: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0]["id"].as_str())
        .collect();
    assert_eq!(streamed_ids, ids);
    // After two calls of the conversation, the next that the model does not number itself is the third.
    let mut messages = conversation(&told).as_array().expect("a list").clone();
    messages.pop();
    messages.push(asking(&call("get_weather"), json!({}))["messages"][0].clone());
    streamed = asking("", json!({"messages": messages}));
    let told = message(&mut client, &streamed).await;
    assert_eq!(told["tool_calls"][0]["id"], "functions.get_weather:2");
    // Another model's ids.
    let function = json!({"name": "get_weather", "arguments": "{}"});
    let call = json!({"id": "call_abc", "type": "function", "function": function});
    let answer = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let shown = prompt(&mut client, &conversation(&answer)).await;
    assert!(shown.contains("<call=functions.get_weather:0>{}"), "{shown}");
}

#[tokio::test]
async fn tools_are_described_to_a_model_whose_template_describes_none() {
    let server = server(ToolCallFormat::Generic, None, PLAIN).await;
    let mut client = server.connect().await;
    let answer =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let told = message(&mut client, &asking(answer, json!({}))).await;
    assert_eq!(told["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Rome\"}");
    let shown = prompt(&mut client, &conversation(&told)).await;
    let described = "{\"name\":\"get_weather\",\"description\":\"Looks out.\"";
    // The template takes no system message.
    assert!(shown.starts_with("<user>You can use tools.") && shown.contains(described), "{shown}");
    let expected =
        format!("Ask.<assistant>{answer}<user><tool_response>\nA reply.\n</tool_response>\n\nGo on.");
    assert!(shown.ends_with(&expected), "{shown}");
    let none = asking("Hello", json!({"tool_choice": "none", "return_token_ids": true}));
    let reply = client.post("/v1/chat/completions", &none).await.json();
    let n_prompt = reply["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(
        (&reply["choices"][0]["message"]["content"], n_prompt < 40),
        (&json!("Hello"), true),
        "{reply}"
    );
}
