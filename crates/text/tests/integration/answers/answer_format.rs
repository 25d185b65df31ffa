//! Which formats chat templates stand for, and the control tokens that the detokenizer tells apart for
//! parsers.

use std::path::Path;
use std::sync::Arc;

use crate::support::tokenizer;
use serde_json::json;
use throng_text::{
    AnswerFormat, ChatTemplate, DetokenizeOptions, Detokenizer, EncodeOptions, ReasoningFormat,
    TemplateInput, ToolCallFormat,
};

fn template(name: &str) -> ChatTemplate {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/chat_templates/{name}.jinja"));
    ChatTemplate::new(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn formats_are_found_in_chat_templates() {
    let expected = [
        ("Qwen-Qwen3-0.6B", Some(ToolCallFormat::Hermes), Some(ReasoningFormat::Think)),
        ("openai-gpt-oss-120b", Some(ToolCallFormat::Harmony), Some(ReasoningFormat::Harmony)),
        ("meta-llama-Llama-3.2-3B-Instruct", Some(ToolCallFormat::Llama3Json), None),
        ("mistralai-Mistral-Nemo-Instruct-2407", Some(ToolCallFormat::Mistral), None),
        ("microsoft-Phi-3.5-mini-instruct", None, None),
        ("google-gemma-2-2b-it", None, None),
    ];
    for (name, tool_calls, reasoning) in expected {
        let template = template(name);
        assert_eq!(AnswerFormat::tool_calls_of(&template), tool_calls, "{name}");
        assert_eq!(AnswerFormat::reasoning_of(&template), reasoning, "{name}");
    }
    let lines = [
        ("<tool_call>\\n<function=a>\\n<parameter=b>", ToolCallFormat::Qwen3Coder),
        ("<tool_call>{name}\\n<arg_key>{k}</arg_key><arg_value>", ToolCallFormat::Glm),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", ToolCallFormat::DeepSeek),
        ("answer with <|tool_call|> and a list", ToolCallFormat::Granite),
        ("<|tool|>' + tools + '<|/tool|>", ToolCallFormat::Phi4Mini),
        ("[func_name1(params_name1=params_value1)]", ToolCallFormat::Pythonic),
        ("<tool_call></tool_call>", ToolCallFormat::Hermes),
    ];
    for (line, format) in lines {
        let template = ChatTemplate::new(&format!("{{{{ \"{line}\" }}}}")).unwrap();
        assert_eq!(AnswerFormat::tool_calls_of(&template), Some(format), "{line}");
    }
}

#[test]
fn a_prompt_tells_whether_it_has_opened_the_reasoning() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (end, is_open) in
        [("<think>\\n", true), ("<think>", true), ("<think></think>\\n", false), ("", false)]
    {
        let template = ChatTemplate::new(&format!("{{{{ 'assistant' }}}}{{{{ \"{end}\" }}}}")).unwrap();
        let tokenizer = tokenizer("byte_level_llama3");
        let rendered = template.render(&TemplateInput::new(&messages, tokenizer.special_tokens())).unwrap();
        assert_eq!(rendered.ends_with("<think>"), is_open, "{end:?}");
    }
    let think = ReasoningFormat::Think;
    assert!(think.is_open_after("a <think> b"));
    assert!(!think.is_open_after("<think> b </think> c") && !think.is_open_after("c"));
}

#[test]
fn markers_come_apart_from_the_text_and_stop_strings_end_before_them() {
    let tokenizer = Arc::new(tokenizer("byte_level_llama3"));
    let format = AnswerFormat::new(Some(ToolCallFormat::Llama3Json), None, &tokenizer);
    let tag = tokenizer.control_token("<|python_tag|>").unwrap();
    let end = tokenizer.control_token("<|im_end|>").unwrap();
    assert_eq!((format.control_tokens(), tokenizer.control_token("<tool_call>")), (vec![tag], None));
    let options = EncodeOptions { add_special_tokens: false, parse_special: false };
    let encode = |text: &str| tokenizer.encode(text, options).unwrap();
    let tokens = [encode("a<|python_tag|>EN"), vec![tag], encode("D é"), vec![end], encode("END b")].concat();
    let said = |skip_special_tokens: bool| {
        let stop = vec!["END".to_owned()];
        let options = DetokenizeOptions {
            skip_special_tokens,
            stop,
            markers: vec![tag],
            ..DetokenizeOptions::default()
        };
        let mut detokenizer = Detokenizer::new(tokenizer.clone(), options);
        let (mut said, mut stopped) = (vec![String::new()], None);
        for token in &tokens {
            let delta = detokenizer.push(*token);
            said.last_mut().unwrap().push_str(&delta.text);
            stopped = stopped.or(delta.stopped);
            if delta.marker.is_some() {
                assert_eq!(delta.marker, Some(tag));
                said.push(String::new());
            }
        }
        said.last_mut().unwrap().push_str(&detokenizer.finish());
        (said, stopped)
    };
    assert_eq!(said(true), (vec!["a<|python_tag|>EN".to_owned(), "D é".to_owned()], Some(0)));
    assert_eq!(said(false), (vec!["a<|python_tag|>EN".to_owned(), "D é<|im_end|>".to_owned()], Some(0)));
}
