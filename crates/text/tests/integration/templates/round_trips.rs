//! Answers that come back as history: each answer, cut at every place, parsed, sent back and shown to the
//! model by the chat template of its family is never refused, and a whole one is shown as the model wrote it.

use std::path::Path;
use std::sync::Arc;

use super::answers::{FAMILIES, Family};
use serde_json::{Value, json};
use throng_text::{
    AnswerEvent, AnswerFormat, AnswerParser, ChatTemplate, ParseOptions, ReasoningFormat, SpecialTokens,
    TemplateInput, Tokenizer, ToolCallFormat, ToolSchemas, generic_tools,
};

fn tokenizer() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/byte_level_gpt2.json");
    Tokenizer::from_tokenizer_json(&std::fs::read(path).unwrap(), None).unwrap()
}

/// A template of the family: its own, or one of the fixtures by name.
fn template(family: &Family) -> ChatTemplate {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("tests/fixtures/chat_templates/{}.jinja", family.template));
    let source = std::fs::read_to_string(path).unwrap_or_else(|_| super::answers::source(family.template));
    ChatTemplate::new(&source).unwrap()
}

fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": properties}}});
    vec![
        tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
        tool("now", json!({})),
    ]
}

fn special_tokens() -> SpecialTokens {
    let named = ["bos_token", "eos_token"].map(|role| (role.to_owned(), "<s>".to_owned()));
    SpecialTokens { named: named.into(), ..SpecialTokens::default() }
}

/// Message of an answer as the gateway gives it to a client.
fn message(family: &Family, answer: &str, tokenizer: &Tokenizer) -> Value {
    let (calls, reasoning) = (ToolCallFormat::named(family.tools), ReasoningFormat::named(family.reasoning));
    let format = AnswerFormat::new(calls, reasoning, tokenizer);
    let options =
        ParseOptions { tools: Some(Arc::new(ToolSchemas::new(&tools()))), ..ParseOptions::default() };
    let mut parser = AnswerParser::new(&format, options);
    let (mut content, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for event in [parser.push_text(answer), parser.finish()].concat() {
        match event {
            AnswerEvent::Content(text) => content += &text,
            AnswerEvent::Reasoning(text) => thought += &text,
            AnswerEvent::ToolCallBegin { index, name, id } => {
                calls.push((id.unwrap_or_else(|| format!("call0000{index}")), name, String::new()));
            }
            AnswerEvent::ToolCallArguments { fragment, .. } => calls.last_mut().unwrap().2 += &fragment,
            AnswerEvent::ToolCallEnd { .. } => {}
        }
    }
    let mut message = json!({"role": "assistant", "content": content});
    if !thought.is_empty() {
        message["reasoning_content"] = json!(thought);
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls
            .iter()
            .map(|(id, name, arguments)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
            .collect();
    }
    message
}

/// The prompt in which this message is history.
fn shown(family: &Family, template: &ChatTemplate, message: &Value, goes_on: bool) -> Result<String, String> {
    let tokens = special_tokens();
    let mut messages = vec![json!({"role": "user", "content": "Ask."}), message.clone()];
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "A reply."}));
    }
    if goes_on {
        messages.push(json!({"role": "user", "content": "Go on."}));
    }
    let mut messages = Value::Array(messages);
    let tools = tools();
    let format = ToolCallFormat::named(family.tools).unwrap();
    let mut given = Some(json!(tools));
    if format == ToolCallFormat::Generic {
        messages = generic_tools::described(messages, &tools, template.takes_system(&tokens));
        given = None;
    } else {
        format.make_ids_readable(&mut messages);
    }
    let input = TemplateInput { tools: given.as_ref(), ..TemplateInput::new(&messages, &tokens) };
    template.render(&input).map(|prompt| prompt.text().into_owned()).map_err(|error| error.to_string())
}

#[test]
fn every_cut_of_an_answer_is_taken_as_history() {
    let tokenizer = tokenizer();
    for family in FAMILIES {
        let template = template(family);
        for answer in family.shown.iter().chain(family.taken) {
            for (at, _) in answer.char_indices().chain([(answer.len(), ' ')]) {
                let message = message(family, &answer[..at], &tokenizer);
                for goes_on in [true, false] {
                    // Some templates refuse to go on after a message of the model.
                    if !goes_on && message.get("tool_calls").is_none() {
                        continue;
                    }
                    let shown = shown(family, &template, &message, goes_on);
                    assert!(shown.is_ok(), "{} {:?}: {message} {shown:?}", family.template, &answer[..at]);
                }
            }
        }
    }
}

#[test]
fn a_whole_answer_is_shown_as_the_model_wrote_it() {
    let tokenizer = tokenizer();
    for family in FAMILIES {
        let template = template(family);
        for answer in family.shown {
            let message = message(family, answer, &tokenizer);
            let shown = shown(family, &template, &message, false).unwrap();
            assert!(shown.contains(answer), "{}: {answer:?} is not in {shown:?}", family.template);
        }
    }
}

#[test]
fn arguments_that_are_no_object_are_shown() {
    for family in FAMILIES {
        let template = template(family);
        for arguments in
            ["", "null", " ", "{\"city\": \"Par", "[\"Paris\"]", "7", "Paris", "{\"city\": tr", "{]"]
        {
            let call = json!({"id": "call00000", "type": "function", "function": {"name": "get_weather", "arguments": arguments}});
            let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
            let shown = shown(family, &template, &message, true);
            let what = format!("{} {arguments:?}: {shown:?}", family.template);
            let text = shown.unwrap_or_else(|error| panic!("{}: {arguments:?}: {error}", family.template));
            assert!(text.contains("get_weather"), "{what}");
            if arguments.contains("Par") {
                assert!(text.matches("Par").count() >= 1, "{what}");
            }
        }
    }
}
