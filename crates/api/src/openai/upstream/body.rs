//! A neutral request as the body of a chat completion or a text completion. Parameters that OpenAI's API
//! lacks have vLLM's names, which SGLang, llama.cpp and Throng read too.

use serde_json::{Map, Value, json};
use throng_core::request::EarlyStopping;
use throng_text::exact_number;
use throng_text::grammar::ConstraintSpec;

use crate::cache_hints::retention_name;
use crate::error::ApiError;
use crate::spec::{
    ChatInput, Conversation, GenerationOptions, GenerationSpec, ImagePart, Input, OutputConstraint, Prompt,
    PromptsInput, TruncationSide,
};

/// Writes the body of a request to an engine, without the model's name. Moves the texts of a conversation
/// out of the request, and records its parameters that have no effect there.
///
/// # Errors
/// A 400 for reports of tokens: the engine's answer is read as text.
pub fn request_body(spec: &mut GenerationSpec) -> Result<String, ApiError> {
    let mut body = Map::new();
    match &mut spec.input {
        Input::Chat(chat) => put_chat(chat, &mut body),
        Input::Prompts(prompts) => put_prompts(prompts, &mut body)?,
    }
    put_options(&mut spec.options, &mut body)?;
    Ok(exact_number::to_json(&Value::Object(body)))
}

fn put_chat(chat: &mut ChatInput, body: &mut Map<String, Value>) {
    let ChatInput {
        conversation,
        calls_tools: _,
        must_call,
        chosen_function,
        only_first_call,
        shows_reasoning: _,
    } = chat;
    put_conversation(conversation, body);
    let choice = match chosen_function {
        _ if conversation.calls_no_tools => Some("none".into()),
        Some(name) => Some(json!({"type": "function", "function": {"name": name}})),
        None => must_call.then(|| "required".into()),
    };
    if !conversation.tools.is_empty() {
        body.insert("tools".to_owned(), std::mem::take(&mut conversation.tools).into());
        put(body, "tool_choice", choice);
        put(body, "parallel_tool_calls", only_first_call.then_some(false));
    }
}

fn put_conversation(conversation: &mut Conversation, body: &mut Map<String, Value>) {
    // Engines accept `system`; those that accept `developer` treat both alike.
    body.insert("messages".to_owned(), conversation.take_messages(false, &image_value));
    put(body, "add_generation_prompt", conversation.add_generation_prompt);
    if conversation.continues_final_message() {
        put(body, "continue_final_message", Some(true));
        put(body, "add_generation_prompt", Some(false));
    }
    put(body, "add_special_tokens", conversation.add_special_tokens);
    let documents = std::mem::take(&mut conversation.documents);
    put(body, "documents", (!documents.is_empty()).then_some(documents));
    // Efforts other than OpenAI's three exist only in other APIs.
    put(
        body,
        "reasoning_effort",
        conversation.reasoning_effort.map(|effort| match effort {
            "xhigh" | "max" => "high",
            effort => effort,
        }),
    );
    let mut variables = std::mem::take(&mut conversation.chat_template_kwargs);
    if let Some(is_on) = conversation.enable_thinking {
        variables.entry("enable_thinking").or_insert(is_on.into());
    }
    put(body, "chat_template_kwargs", (!variables.is_empty()).then_some(variables));
}

/// An image as a part of a message.
fn image_value(image: &ImagePart) -> Value {
    let mut url = json!({"url": image.source.to_url()});
    if let Some(detail) = image.detail {
        url["detail"] = detail.into();
    }
    json!({"type": "image_url", "image_url": url})
}

fn put_prompts(input: &mut PromptsInput, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let PromptsInput { prompts, add_special_tokens, repeats_texts } = input;
    let value = |prompt: &mut Prompt| match prompt {
        Prompt::Text(text) => Ok(Value::from(std::mem::take(text))),
        Prompt::Tokens(tokens) => Ok(Value::from(std::mem::take(tokens))),
        Prompt::Infill(infill) => {
            let reason = "Gaps are filled by models of this server alone, not by an engine behind it.";
            Err(ApiError::unsupported_by_model(infill.param, reason))
        }
    };
    let prompt = match &mut prompts[..] {
        [only] => value(only)?,
        several => several.iter_mut().map(value).collect::<Result<_, _>>()?,
    };
    body.insert("prompt".to_owned(), prompt);
    put(body, "add_special_tokens", (!*add_special_tokens).then_some(false));
    put(body, "echo", repeats_texts.then_some(true));
    Ok(())
}

/// Destructures every option, so that a new one must be sent or left out explicitly.
fn put_options(options: &mut GenerationOptions, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    put_sampling(options, body);
    #[rustfmt::skip]
    let GenerationOptions {
        // Options written by `put_sampling`.
        n: _, best_of: _, use_beam_search: _, length_penalty: _, early_stopping: _, max_tokens: _, min_tokens: _,
        default_max_tokens: _, temperature: _, top_p: _, top_k: _, min_p: _, presence_penalty: _,
        frequency_penalty: _, repetition_penalty: _, seed: _, logit_bias: _, allowed_token_ids: _, bad_words: _,
        stop: _, stop_token_ids: _, include_stop_str_in_output: _, ignore_eos: _,
        // Options for the form of the answer written here, for this gateway's own engines and for its
        // admission.
        may_end_with_context: _, model: _, stream_options: _, request_id: _, return_tokens_as_token_ids: _,
        max_draft_tokens: _, service_class: _, takes_only_model: _, include_timings: _,
        names, stream, skip_special_tokens, spaces_between_special_tokens, truncate_prompt_tokens,
        truncation_side, logprobs, prompt_logprobs, return_token_ids, priority, cache_salt, prompt_cache_key, keep_cached_s,
        user, ignored,
        thinking_token_budget, thinks_if_it_can, constraint,
    } = options;
    let reported = [
        (names.logprobs, logprobs.is_some()),
        ("prompt_logprobs", prompt_logprobs.is_some()),
        ("return_token_ids", *return_token_ids == Some(true)),
    ];
    if let Some((param, _)) = reported.into_iter().find(|(_, is_given)| *is_given) {
        let reason = "The engine that serves this model gives text alone; /v1/chat/completions passes it on.";
        return Err(ApiError::unsupported_by_model(param, reason));
    }
    put(body, "stream", stream.filter(|is_streaming| *is_streaming));
    put(body, "skip_special_tokens", *skip_special_tokens);
    put(body, "spaces_between_special_tokens", *spaces_between_special_tokens);
    put(body, "truncate_prompt_tokens", *truncate_prompt_tokens);
    put(body, "truncation_side", (*truncation_side == TruncationSide::Right).then_some("right"));
    put(body, "priority", priority.filter(|priority| *priority != 0));
    put(body, "cache_salt", cache_salt.as_deref());
    put(body, "prompt_cache_key", prompt_cache_key.as_deref());
    put(body, "prompt_cache_retention", keep_cached_s.map(retention_name));
    put(body, "user", user.as_deref());
    match thinking_token_budget {
        // Engines refuse it for models without reasoning, and the gateway cannot tell which models these
        // are.
        Some(_) if *thinks_if_it_can => ignored.add("thinking_token_budget"),
        budget => put(body, "thinking_token_budget", *budget),
    }
    constraint.as_ref().map_or(Ok(()), |asked| put_constraint(asked, body))
}

/// Writes the options for sampling and stopping.
fn put_sampling(options: &GenerationOptions, body: &mut Map<String, Value>) {
    put(body, "n", options.n.filter(|n| *n != 1));
    put(body, "best_of", options.best_of);
    put(body, "use_beam_search", options.use_beam_search);
    put(body, "length_penalty", options.length_penalty.map(exact));
    put(
        body,
        "early_stopping",
        options.early_stopping.map(|when| match when {
            EarlyStopping::WhenFull => Value::Bool(true),
            EarlyStopping::WhenUnlikelyToImprove => Value::Bool(false),
            EarlyStopping::WhenUnableToImprove => "never".into(),
        }),
    );
    put(body, "max_tokens", options.max_tokens.or(options.default_max_tokens.map(i64::from)));
    put(body, "min_tokens", options.min_tokens);
    put(body, "temperature", options.temperature.map(exact));
    put(body, "top_p", options.top_p.map(exact));
    put(body, "top_k", options.top_k);
    put(body, "min_p", options.min_p.map(exact));
    put(body, "presence_penalty", options.presence_penalty.map(exact));
    put(body, "frequency_penalty", options.frequency_penalty.map(exact));
    put(body, "repetition_penalty", options.repetition_penalty.map(exact));
    put(body, "seed", options.seed);
    let biases: Map<String, Value> =
        options.logit_bias.iter().map(|(token, bias)| (token.to_string(), exact(*bias).into())).collect();
    put(body, "logit_bias", (!biases.is_empty()).then_some(biases));
    put(body, "allowed_token_ids", options.allowed_token_ids.clone());
    put_list(body, "bad_words", &options.bad_words);
    put_list(body, "stop", &options.stop);
    put_list(body, "stop_token_ids", &options.stop_token_ids);
    put(body, "include_stop_str_in_output", options.include_stop_str_in_output);
    put(body, "ignore_eos", options.ignore_eos);
}

fn put_constraint(asked: &OutputConstraint, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    let (key, value) = match &asked.spec {
        ConstraintSpec::JsonObject => ("response_format", json!({"type": "json_object"})),
        ConstraintSpec::JsonSchema(schema) => {
            let named = json!({"name": "answer", "schema": schema, "strict": true});
            ("response_format", json!({"type": "json_schema", "json_schema": named}))
        }
        ConstraintSpec::StructuralTag(tag) => ("response_format", tag.clone()),
        ConstraintSpec::Regex(regex) => ("structured_outputs", json!({"regex": regex})),
        ConstraintSpec::Choice(choices) => ("structured_outputs", json!({"choice": choices})),
        ConstraintSpec::Lark(grammar) | ConstraintSpec::Gbnf(grammar) => {
            ("structured_outputs", json!({"grammar": grammar}))
        }
        ConstraintSpec::ToolCalls(_) => {
            let reason = "The engine that serves this model writes calls of tools in its own form.";
            return Err(ApiError::unsupported_by_model(&asked.param, reason));
        }
    };
    body.insert(key.to_owned(), value);
    Ok(())
}

fn put(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.to_owned(), value.into());
    }
}

fn put_list<T: Clone + Into<Value>>(body: &mut Map<String, Value>, key: &str, list: &[T]) {
    put(body, key, (!list.is_empty()).then(|| list.to_vec()));
}

/// A number with the digits that the client wrote: a plain conversion would turn 0.7 into
/// 0.699999988079071.
fn exact(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anthropic::Messages;
    use crate::dialect::Dialect;
    use crate::field::ReadOptions;
    use crate::ollama;
    use crate::openai::ChatCompletions;

    fn body(dialect: &dyn Dialect, request: &str) -> Value {
        let mut read = dialect.parse(request.as_bytes(), &ReadOptions::default()).expect("valid");
        let body = request_body(&mut read.spec).expect("an engine takes it");
        serde_json::from_str(&body).expect("JSON")
    }

    #[test]
    fn a_message_of_anthropics_becomes_a_chat() {
        let request = r#"{"model":"m","max_tokens":9,"temperature":0.7,"top_k":5,"stream":true,
            "system":"Be brief.","stop_sequences":["END"],"metadata":{"user_id":"u"},
            "thinking":{"type":"enabled","budget_tokens":2048},
            "tools":[{"name":"sum","input_schema":{"type":"object","properties":{"a":{"maximum":18446744073709551616}}}}],
            "tool_choice":{"type":"tool","name":"sum","disable_parallel_tool_use":true},
            "messages":[
                {"role":"user","content":"1 + 1?"},
                {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"sum","input":{"a":1}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"2"}]}
            ]}"#;
        let mut read = Messages.parse(request.as_bytes(), &ReadOptions::default()).expect("valid");
        let body = request_body(&mut read.spec).expect("an engine takes it");
        assert!(body.contains(r#""maximum":18446744073709551616"#), "{body}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        let call =
            json!({"id": "t", "type": "function", "function": {"name": "sum", "arguments": r#"{"a":1}"#}});
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "t"},
        ]);
        assert_eq!(body["messages"], expected);
        assert_eq!(body["tools"][0]["function"]["name"], "sum");
        assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "sum"}}));
        assert_eq!(body["parallel_tool_calls"], false);
        assert_eq!(
            (&body["temperature"], &body["top_k"], &body["max_tokens"]),
            (&json!(0.7), &json!(5), &json!(9))
        );
        assert_eq!(
            (&body["stop"], &body["stream"], &body["user"]),
            (&json!(["END"]), &json!(true), &json!("u"))
        );
        assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true}));
        assert!(body.get("thinking_token_budget").is_none() && body.get("model").is_none(), "{body}");
        assert_eq!(read.spec.options.ignored.header_value().as_deref(), Some("thinking_token_budget"));
    }

    #[test]
    fn requests_of_ollamas_become_chats_and_completions() {
        let schema = r#"{"type":"object"}"#;
        let chat = format!(
            r#"{{"model":"m","format":{schema},"think":"max","options":{{"num_predict":4,"repeat_penalty":1.1}},
                "messages":[{{"role":"user","content":"Hi"}}]}}"#
        );
        let chat = body(&ollama::Chat, &chat);
        assert_eq!(chat["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
        assert_eq!((&chat["max_tokens"], &chat["repetition_penalty"]), (&json!(4), &json!(1.1)));
        assert_eq!((&chat["stream"], &chat["reasoning_effort"]), (&json!(true), &json!("high")));
        let raw = body(&ollama::Generate, r#"{"model":"m","prompt":"Once","raw":true,"stream":false}"#);
        assert_eq!(raw, json!({"prompt": "Once"}));
    }

    #[test]
    fn grammars_are_asked_for_under_the_name_that_engines_share_and_reports_of_tokens_are_refused() {
        let messages = r#""model":"m","messages":[{"role":"user","content":"Hi"}]"#;
        let asked = body(&ChatCompletions, &format!(r#"{{{messages},"guided_regex":"a|b"}}"#));
        assert_eq!(asked["structured_outputs"], json!({"regex": "a|b"}));
        let request = format!(r#"{{{messages},"logprobs":true,"top_logprobs":2}}"#);
        let mut read = ChatCompletions.parse(request.as_bytes(), &ReadOptions::default()).expect("valid");
        let refused = request_body(&mut read.spec).expect_err("tokens");
        assert_eq!((refused.param(), refused.status().as_u16()), (Some("top_logprobs"), 400));
    }
}
