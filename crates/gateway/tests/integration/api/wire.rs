//! The table of invalid input against the parsers, without a socket. Facts that only a running model has are
//! made up.

use crate::bad_input::{Case, Endpoint, Expected, MAX_MODEL_LEN, VOCABULARY_SIZE};
use throng_api::openai::{DetokenizeRequest, TokenizeRequest, chat, completion, drop_invalid};
use throng_api::spec::{Input, ModelFacts, ModelLimits, Prompt, check_prompt};
use throng_api::{ApiError, ReadOptions};
use throng_core::request::GenerationDefaults;

const LIMITS: ModelLimits =
    ModelLimits { vocabulary_size: VOCABULARY_SIZE, max_model_len: MAX_MODEL_LEN, max_logprobs: Some(20) };

/// Does everything that is done with a request before the engine; any text becomes a prompt of ten tokens.
fn answer(endpoint: Endpoint, body: &[u8], options: &ReadOptions) -> Result<(), ApiError> {
    let defaults = GenerationDefaults::default();
    let facts = ModelFacts { limits: LIMITS, defaults: &defaults, eos_token_ids: &[0] };
    let mut encode = |word: &str| Ok(word.bytes().map(u32::from).collect());
    match endpoint {
        Endpoint::Chat => {
            let request = chat::parse(body, options)?;
            request.options.check(&LIMITS)?;
            request.options.sampling_params(10, &facts, 1, &mut encode).map(drop)
        }
        Endpoint::Completion => {
            let request = completion::parse(body, options)?.spec;
            request.options.check(&LIMITS)?;
            let Input::Prompts(input) = &request.input else { panic!("prompts") };
            for prompt in &input.prompts {
                let n_tokens = match prompt {
                    Prompt::Text(_) | Prompt::Infill(_) => 10,
                    Prompt::Tokens(tokens) => {
                        check_prompt(tokens, &LIMITS, "prompt")?;
                        tokens.len()
                    }
                };
                request.options.sampling_params(n_tokens, &facts, 1, &mut encode)?;
            }
            Ok(())
        }
        Endpoint::Tokenize => TokenizeRequest::parse(body, options).map(drop),
        Endpoint::Detokenize => DetokenizeRequest::parse(body, options)?.check(VOCABULARY_SIZE),
    }
}

/// Describes what is wrong with the answer to a case, if anything.
fn fault(case: &Case) -> Option<String> {
    let answer = answer(case.endpoint, &case.body, &ReadOptions::default());
    let found = match &answer {
        Ok(()) => Expected::Accepted,
        Err(error) => Expected::Refused(error.param().map(str::to_owned), error.code()),
    };
    let is_right = found == case.expected && answer.as_ref().err().is_none_or(|e| e.status() == 400);
    (!is_right).then(|| format!("{}\n  expected {:?}\n  found    {found:?}", case.shown(), case.expected))
}

#[test]
fn every_case_of_the_table_gets_its_answer_streamed_or_not() {
    let cases = crate::bad_input::cases();
    let streamed = cases.iter().filter_map(Case::streamed);
    let faults: Vec<_> = cases.iter().filter_map(fault).chain(streamed.filter_map(|c| fault(&c))).collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn messages_repeat_little_of_what_was_sent() {
    for case in crate::bad_input::cases() {
        if let Err(error) = answer(case.endpoint, &case.body, &ReadOptions::default()) {
            assert!(error.message().len() < 600, "{}", error.message());
            assert!(!error.message().chars().any(char::is_control), "{}", case.shown());
            assert!(error.param().is_none_or(|param| param.len() < 300), "{}", case.shown());
        }
    }
}

#[test]
fn strict_servers_refuse_unknown_parameters() {
    let body = br#"{"model":"paper","messages":[{"role":"user","content":"Hi","id":1}],"colour":1,"user":"u",
        "metadata":null,"b\r\nd":2}"#;
    let request = chat::parse(body, &ReadOptions::default()).expect("unknown keys are ignored");
    let header = request.options.ignored.header_value();
    assert_eq!(header.as_deref(), Some("messages[].id, colour, b?r?nd"));
    let strict = ReadOptions { strict_parameters: true, ..ReadOptions::default() };
    let error = chat::parse(body, &strict).expect_err("unknown keys are refused");
    assert_eq!((error.param(), error.code()), (Some("colour"), "unknown_parameter"));
}

#[test]
fn unknown_keys_inside_of_objects_are_ignored_and_named_and_strict_servers_refuse_them() {
    let strict = ReadOptions { strict_parameters: true, ..ReadOptions::default() };
    let (body, places) = crate::bad_input::nested_objects();
    chat::parse(body.as_bytes(), &strict).expect("known keys only");
    for (path, place) in places {
        for (key, written) in
            [("mood", "mood"), ("Type", "Type"), ("include_usag", "include_usag"), ("x y", "x?y")]
        {
            let pattern = path.replace("[0]", "[]").replace("[1]", "[]").replace("[2]", "[]");
            for (value, header) in [("null", None), ("{\"a\":[1]}", Some(format!("{pattern}.{written}")))] {
                let changed = crate::bad_input::with_member(&body, place, &format!("\"{key}\":{value}"));
                let request = chat::parse(changed.as_bytes(), &ReadOptions::default());
                let request = request.unwrap_or_else(|error| panic!("{path}.{key}: {error}"));
                assert_eq!(request.options.ignored.header_value(), header, "{path}.{key}");
                let error = chat::parse(changed.as_bytes(), &strict).expect_err("an unknown key");
                let param = format!("{path}.{key}");
                assert_eq!((error.param(), error.code()), (Some(param.as_str()), "unknown_parameter"));
            }
        }
    }
}

#[test]
fn strict_servers_know_only_what_is_documented() {
    let strict = ReadOptions { strict_parameters: true, ..ReadOptions::default() };
    let user = r#"{"role":"user","content":"a"}"#;
    let tools = r#"[{"type":"function","function":{"name":"f"}}]"#;
    let body = |messages: &str, more: &str| format!(r#"{{"model":"m","messages":[{messages}]{more}}}"#);
    let assistant = |member: &str| format!(r#"{{"role":"assistant",{member}}}"#);
    let with_tools = |choice: &str| format!(r#","tools":{tools},"tool_choice":{choice}"#);
    for (body, param) in [
        (body(&assistant(r#""content":"a","prefix":true"#), ""), "messages[0].prefix"),
        (body(&assistant(r#""content":"a","images":[]"#), ""), "messages[0].images"),
        (
            body(&assistant(r#""content":[{"type":"thinking","thinking":"t"}]"#), ""),
            "messages[0].content[0].type",
        ),
        (body(&assistant(r#""content":["a"]"#), ""), "messages[0].content[0]"),
        (body(&assistant(r#""content":null"#), ""), "messages[0].content"),
        (body(user, r#","verbosity":"low""#), "verbosity"),
        (body(user, r#","prediction":{"type":"content"}"#), "prediction"),
        (body(user, &with_tools(r#""any""#)), "tool_choice"),
        (body(user, &with_tools(r#"{"type":"auto"}"#)), "tool_choice.type"),
        (body(user, &with_tools(r#"{"type":"function","name":"f"}"#)), "tool_choice.name"),
        (body(user, r#","tools":[{"type":"function","name":"f"}]"#), "tools[0].name"),
    ] {
        chat::parse(body.as_bytes(), &ReadOptions::default()).expect(&body);
        let error = chat::parse(body.as_bytes(), &strict).expect_err(&body);
        assert_eq!(error.param(), Some(param), "{body}: {error}");
    }
}

#[test]
fn hints_without_effect_are_named() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"a"}],"verbosity":"low",
        "prediction":{"type":"content","content":"x"},"thinking":{"type":"enabled"},"top_a":null}"#;
    let request = chat::parse(body, &ReadOptions::default()).expect("hints");
    let header = request.options.ignored.header_value();
    assert_eq!(header.as_deref(), Some("verbosity, prediction, thinking"));
    let medium = br#"{"model":"m","messages":[{"role":"user","content":"a"}],"verbosity":"medium"}"#;
    let request = chat::parse(medium, &ReadOptions::default()).expect("the usual one");
    assert_eq!(request.options.ignored.header_value(), None);
}

#[test]
fn templates_get_tools_without_the_keys_that_are_ignored() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[
        {"cache_control":{"type":"ephemeral"},"type":"function","function":
            {"description":"d","name":"f","parameters":{"type":"object","x-mine":1},"examples":[1],"strict":null}},
        {"type":"function","name":"g","description":null,"parameters":{"type":"object"},"custom":1},
        {"name":"h","input_schema":{"type":"object"},"cache_control":{}}],
        "tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[
            {"type":"function","function":{"name":"h"}},{"type":"function","function":{"name":"f"}}]}}}"#;
    let request = chat::parse(body, &ReadOptions::default()).expect("tools");
    let tools: Vec<String> = request.conversation().unwrap().tools.iter().map(ToString::to_string).collect();
    let expected = [
        r#"{"type":"function","function":{"description":"d","name":"f","parameters":{"type":"object","x-mine":1},"strict":null}}"#,
        r#"{"type":"function","function":{"name":"h","parameters":{"type":"object"}}}"#,
    ];
    assert_eq!(tools, expected, "only the allowed ones");
    let header = request.options.ignored.header_value();
    assert_eq!(header.as_deref(), Some("tools[].cache_control, tools[].function.examples, tools[].custom"));
    let Input::Chat(chat) = &request.input else { panic!("a chat") };
    assert!(chat.calls_tools && !chat.must_call);
}

#[test]
fn reasoning_in_parts_is_the_messages_reasoning() {
    let read = |message: &str| {
        let body = format!(r#"{{"model":"m","messages":[{message},{{"role":"user","content":"a"}}]}}"#);
        let request = chat::parse(body.as_bytes(), &ReadOptions::default()).expect(message);
        let message = &request.conversation().unwrap().messages[0];
        (message.reasoning.clone(), message.text().map(|text| text.into_owned()))
    };
    let said = |reasoning: &str, content: &str| (Some(reasoning.to_owned()), Some(content.to_owned()));
    for (message, expected) in [
        (
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"x"}]}"#,
            said("t", "x"),
        ),
        (
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"t"}]},
                {"type":"reasoning","summary":[{"type":"summary_text","text":"u"}]},{"type":"refusal","refusal":"no"}]}"#,
            said("t\nu", "no"),
        ),
        (
            r#"{"role":"assistant","reasoning_content":"r","content":[{"type":"thinking","thinking":"t"},"x"]}"#,
            said("r", "x"),
        ),
        (
            r#"{"role":"assistant","content":[{"type":"redacted_thinking","data":"abc"},{"type":"text","text":"x"}]}"#,
            (None, Some("x".to_owned())),
        ),
    ] {
        assert_eq!(read(message), expected, "{message}");
    }
}

#[test]
fn variables_that_no_template_reads_are_ignored_and_named() {
    let body = br#"{"model":"paper","messages":[{"role":"user","content":"Hi"}],"mood":1,
        "chat_template_kwargs":{"enable_thinking":false,"thinking":true,"b\u0000":1}}"#;
    let mut request = chat::parse(body, &ReadOptions::default()).expect("a good request");
    request.ignore_unread_variables(|name| name == "enable_thinking");
    let header = request.options.ignored.header_value();
    assert_eq!(header.as_deref(), Some("mood, chat_template_kwargs.thinking, chat_template_kwargs.b?"));
    let defaults = serde_json::json!({"enable_thinking": true}).as_object().cloned().expect("an object");
    let left: Vec<_> =
        request.conversation_mut().unwrap().take_template_variables(&defaults).into_iter().collect();
    assert_eq!(
        left,
        [("enable_thinking".to_owned(), false.into())],
        "the request goes before the server's default"
    );
}

#[test]
fn recommended_values_that_no_request_may_have_are_dropped() {
    let mut good = GenerationDefaults {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: Some(0.0),
        repetition_penalty: Some(1.05),
        max_tokens: Some(2048),
    };
    let same = good;
    assert!(drop_invalid(&mut good).is_empty());
    assert_eq!(good, same);
    let mut wrong = GenerationDefaults {
        temperature: Some(f32::NAN),
        top_k: Some(u32::MAX),
        top_p: Some(0.0),
        min_p: Some(f32::INFINITY),
        repetition_penalty: Some(-1.0),
        max_tokens: Some(u32::MAX),
    };
    let names: Vec<_> = drop_invalid(&mut wrong).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["temperature", "top_p", "min_p", "repetition_penalty", "top_k", "max_tokens"]);
    assert_eq!(wrong, GenerationDefaults::default());
}
