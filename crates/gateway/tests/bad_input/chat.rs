//! Bodies of chat completions. Refuses to know who reads them.

use super::Endpoint::Chat;
use super::{Expected, MODEL, Table};

pub(super) fn add(t: &mut Table) {
    add_json(t);
    add_model(t);
    add_messages(t);
    add_numbers(t);
    add_lists(t);
    add_switches(t);
    add_unsupported(t);
    add_tools(t);
}

/// A good body with something more.
fn with(more: &str) -> String {
    format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"Hi"}}],{more}}}"#)
}

/// A body with these messages.
fn saying(messages: &str) -> String {
    format!(r#"{{"model":"{MODEL}","messages":{messages}}}"#)
}

fn repeated(item: &str, n: usize) -> String {
    vec![item; n].join(",")
}

impl Table {
    fn chat(&mut self, row: u32, more: &str, param: &str, code: &'static str) {
        self.refused(row, Chat, with(more), param, code);
    }

    fn chat_ok(&mut self, row: u32, more: &str) {
        self.case(row, Chat, with(more), Expected::Accepted);
    }

    fn messages(&mut self, row: u32, messages: &str, param: &str, code: &'static str) {
        self.refused(row, Chat, saying(messages), param, code);
    }

    fn messages_ok(&mut self, row: u32, messages: &str) {
        self.case(row, Chat, saying(messages), Expected::Accepted);
    }
}

fn add_json(t: &mut Table) {
    let good = saying(r#"[{"role":"user","content":"Hi"}]"#);
    for body in [
        String::new(),
        " \n".to_owned(),
        "{".to_owned(),
        good[..good.len() - 1].to_owned() + ",}",
        good.replace('"', "'"),
        good.clone() + "/* */",
        good.clone() + "x",
        good.clone() + &good,
        "\u{feff}".to_owned() + &good,
        with(r#""x":NaN"#),
        with(r#""temperature":Infinity"#),
        with(r#""temperature":1e400"#),
        with(r#""x":"\ud800""#),
        with(&format!(r#""seed":{}"#, "1".repeat(1000))),
        with(&format!(r#""x":{}{}"#, "[".repeat(100_000), "]".repeat(100_000))),
        "[".repeat(100_000),
    ] {
        t.refused(2, Chat, body, "", "invalid_json");
    }
    for body in ["[]", "1", "\"x\"", "null", "true"] {
        t.refused(0, Chat, body, "", "invalid_type");
    }
    for broken in [with(r#""x~":1"#), with(r#""x":"~""#), with(r#""user":"~""#)] {
        let bytes = broken.bytes().map(|b| if b == b'~' { 0xff } else { b });
        t.refused(5, Chat, bytes.collect::<Vec<_>>(), "", "invalid_utf8");
    }
    t.messages_ok(7, r#"[{"role":"user","content":"a\u0000b"}]"#);
    t.chat(8, r#""model":"other""#, "model", "duplicate_key");
    t.chat(8, r#""mod\u0065l":"paper""#, "model", "duplicate_key");
    t.chat(8, r#""temperature":1,"temperature":null"#, "temperature", "duplicate_key");
    t.messages(8, r#"[{"role":"user","content":"a","content":"b"}]"#, "messages[0].content", "duplicate_key");
    let keys: Vec<_> = (0..2000).map(|i| format!(r#""k{i}":1"#)).collect();
    t.chat(0, &keys.join(","), "", "object_above_max_properties");
}

fn add_model(t: &mut Table) {
    let body = |model: &str| format!(r#"{{"model":{model},"messages":[{{"role":"user","content":"Hi"}}]}}"#);
    t.refused(
        22,
        Chat,
        r#"{"messages":[{"role":"user","content":"Hi"}]}"#,
        "model",
        "missing_required_parameter",
    );
    t.refused(22, Chat, body("null"), "model", "missing_required_parameter");
    t.refused(22, Chat, body("123"), "model", "invalid_type");
    for name in ["", "a\\r\\nb", &"m".repeat(10_000)] {
        t.refused(22, Chat, body(&format!("\"{name}\"")), "model", "invalid_value");
    }
}

fn add_messages(t: &mut Table) {
    t.refused(23, Chat, r#"{"model":"paper"}"#, "messages", "missing_required_parameter");
    t.messages(23, "null", "messages", "missing_required_parameter");
    t.messages(0, "[]", "messages", "empty_array");
    t.messages(25, r#""Hi""#, "messages", "invalid_type");
    t.messages(25, "{}", "messages", "invalid_type");
    t.messages(25, "[123]", "messages[0]", "invalid_type");
    t.messages(25, "[{}]", "messages[0].role", "missing_required_parameter");
    for role in [r#""wizard""#, r#""User""#, "1", "null"] {
        let message = format!(r#"[{{"role":{role},"content":"Hi"}}]"#);
        t.messages(26, &message, "messages[0].role", "invalid_value");
    }
    t.messages_ok(28, r#"[{"role":"user","content":""}]"#);
    let many = repeated(r#"{"role":"user","content":""}"#, 100_000);
    t.messages(29, &format!("[{many}]"), "messages", "array_above_max_length");
    t.messages(0, r#"[{"role":"user","content":5}]"#, "messages[0].content", "invalid_type");
    t.messages(0, r#"[{"role":"user"}]"#, "messages[0].content", "missing_required_parameter");
    t.messages_ok(
        0,
        r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
    );
    let part = |part: &str| format!(r#"[{{"role":"user","content":[{part}]}}]"#);
    t.messages(0, &part(r#"{"type":"text"}"#), "messages[0].content[0].text", "missing_required_parameter");
    t.messages(0, &part(r#"{"text":"a"}"#), "messages[0].content[0].type", "missing_required_parameter");
    t.messages(0, &part(r#"{"type":"wizard"}"#), "messages[0].content[0].type", "invalid_value");
    t.messages(0, &part("1"), "messages[0].content[0]", "invalid_type");
    let image = part(r#"{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}"#);
    t.messages(34, &image, "messages[0].content[0].image_url", "unsupported_parameter");
    let call = r#"{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"not JSON"}}]}"#;
    t.messages(31, &format!("[{call}]"), "messages[1].tool_calls", "invalid_value");
    let user = r#"{"role":"user","content":"y"}"#;
    t.messages(31, &format!("[{call},{user}]"), "messages[1].tool_calls", "invalid_value");
    let wrong = r#"{"role":"tool","tool_call_id":"b","content":"1"}"#;
    t.messages(31, &format!("[{call},{wrong}]"), "messages[1].tool_calls", "invalid_value");
    let reply = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    t.messages_ok(32, &format!("[{call},{reply}]"));
}

fn add_numbers(t: &mut Table) {
    t.chat(43, r#""max_tokens":5,"max_completion_tokens":6"#, "max_tokens", "mutually_exclusive");
    t.chat_ok(43, r#""max_tokens":5,"max_completion_tokens":5"#);
    t.chat(44, r#""min_tokens":6,"max_tokens":5"#, "min_tokens", "invalid_value");
    t.chat(46, r#""n":3,"best_of":2"#, "best_of", "invalid_value");
    t.chat(46, r#""best_of":2,"stream":true"#, "best_of", "invalid_value");
    t.chat(0, r#""best_of":2"#, "best_of", "unsupported_parameter");
    t.chat_ok(47, r#""n":1.0"#);
    t.chat_ok(47, r#""max_tokens":1e1"#);
    t.chat(0, r#""n":1.5"#, "n", "invalid_type");
    t.chat(0, r#""n":0"#, "n", "integer_below_min_value");
    t.chat(0, r#""n":129"#, "n", "integer_above_max_value");
    t.chat(0, r#""max_tokens":0"#, "max_tokens", "integer_below_min_value");
    t.chat(0, r#""max_completion_tokens":0"#, "max_completion_tokens", "integer_below_min_value");
    t.chat(0, r#""max_tokens":-1"#, "max_tokens", "integer_below_min_value");
    t.chat(0, r#""max_tokens":"5""#, "max_tokens", "invalid_type");
    t.chat(0, r#""max_tokens":true"#, "max_tokens", "invalid_type");
    t.chat(38, r#""max_tokens":100000"#, "max_tokens", "context_length_exceeded");
    t.chat(38, r#""max_completion_tokens":100000"#, "max_completion_tokens", "context_length_exceeded");
    t.chat_ok(50, r#""temperature":1e-30"#);
    t.chat_ok(0, r#""temperature":0"#);
    t.chat(0, r#""temperature":-0.1"#, "temperature", "decimal_below_min_value");
    t.chat(0, r#""temperature":2.01"#, "temperature", "decimal_above_max_value");
    t.chat(0, r#""temperature":"1""#, "temperature", "invalid_type");
    for below in ["0", "-1"] {
        t.chat(52, &format!(r#""top_p":{below}"#), "top_p", "decimal_below_min_value");
    }
    t.chat(52, r#""top_p":1.01"#, "top_p", "decimal_above_max_value");
    t.chat(52, r#""top_k":-2"#, "top_k", "integer_below_min_value");
    t.chat(52, r#""top_k":1.5"#, "top_k", "invalid_type");
    t.chat(52, r#""min_p":2"#, "min_p", "decimal_above_max_value");
    t.chat_ok(0, r#""top_k":-1,"min_p":0,"top_p":1"#);
    for name in ["presence_penalty", "frequency_penalty"] {
        t.chat(53, &format!(r#""{name}":2.01"#), name, "decimal_above_max_value");
        t.chat(53, &format!(r#""{name}":-2.01"#), name, "decimal_below_min_value");
    }
    t.chat(53, r#""repetition_penalty":0"#, "repetition_penalty", "decimal_below_min_value");
    t.chat_ok(0, r#""seed":-9223372036854775808"#);
    t.chat(0, r#""seed":9223372036854775808"#, "seed", "integer_above_max_value");
    t.chat(0, r#""logprobs":true,"top_logprobs":21"#, "top_logprobs", "integer_above_max_value");
    t.chat(0, r#""top_logprobs":2"#, "top_logprobs", "invalid_value");
    t.chat_ok(0, r#""logprobs":true,"top_logprobs":20"#);
    t.chat_ok(0, r#""logprobs":false,"top_logprobs":0"#);
    t.chat(0, r#""logprobs":1"#, "logprobs", "invalid_type");
    t.chat(0, r#""prompt_logprobs":21"#, "prompt_logprobs", "integer_above_max_value");
    t.chat(0, r#""prompt_logprobs":1,"stream":true"#, "prompt_logprobs", "invalid_value");
    t.chat(0, r#""priority":2147483648"#, "priority", "integer_above_max_value");
}

fn add_lists(t: &mut Table) {
    for n in [5, 1000] {
        let stop = repeated(r#""x""#, n);
        t.chat(55, &format!(r#""stop":[{stop}]"#), "stop", "array_above_max_length");
    }
    t.chat_ok(0, r#""stop":["a","b","c","d"]"#);
    t.chat_ok(0, r#""stop":null"#);
    t.chat(56, r#""stop":"""#, "stop", "invalid_value");
    t.chat(56, r#""stop":["a",""]"#, "stop[1]", "invalid_value");
    t.chat(56, &format!(r#""stop":["{}"]"#, "x".repeat(1 << 20)), "stop[0]", "string_above_max_length");
    t.chat(56, r#""stop":5"#, "stop", "invalid_type");
    t.chat(56, r#""stop":[null]"#, "stop[0]", "invalid_type");
    t.chat(58, r#""logit_bias":{"5":101}"#, "logit_bias.5", "decimal_above_max_value");
    t.chat(58, r#""logit_bias":{"5":NaN}"#, "", "invalid_json");
    t.chat(58, r#""logit_bias":{"5":"1"}"#, "logit_bias.5", "invalid_type");
    t.chat(0, r#""logit_bias":{"x":1}"#, "logit_bias.x", "invalid_token");
    t.chat(0, r#""logit_bias":{"1000":1}"#, "logit_bias.1000", "invalid_token");
    t.chat(0, r#""logit_bias":{"5":1,"05":2}"#, "logit_bias.5", "duplicate_key");
    let biases: Vec<_> = (0..100_000).map(|i| format!(r#""{i}":1"#)).collect();
    t.chat(58, &format!(r#""logit_bias":{{{}}}"#, biases.join(",")), "logit_bias", "too_many");
    let biases: Vec<_> = (0..1000).map(|i| format!(r#""{i}":-100"#)).collect();
    t.chat_ok(59, &format!(r#""max_tokens":4,"logit_bias":{{{}}}"#, biases.join(",")));
    t.chat(0, r#""allowed_token_ids":[]"#, "allowed_token_ids", "empty_array");
    t.chat(0, r#""allowed_token_ids":[1,1000]"#, "allowed_token_ids[1]", "invalid_token");
    t.chat(0, r#""allowed_token_ids":[-1]"#, "allowed_token_ids[0]", "invalid_token");
    t.chat(0, r#""stop_token_ids":[4294967296]"#, "stop_token_ids[0]", "invalid_token");
    t.chat(0, r#""stop_token_ids":["1"]"#, "stop_token_ids[0]", "invalid_type");
    t.chat(0, r#""bad_words":[""]"#, "bad_words[0]", "invalid_value");
    t.chat(65, &format!(r#""user":"{}""#, "u".repeat(1 << 20)), "user", "string_above_max_length");
    let metadata: Vec<_> = (0..17).map(|i| format!(r#""k{i}":"v""#)).collect();
    let metadata = format!(r#""metadata":{{{}}}"#, metadata.join(","));
    t.chat(65, &metadata, "metadata", "object_above_max_properties");
    t.chat(65, r#""metadata":{"a":{}}"#, "metadata.a", "invalid_type");
    let long = format!(r#""metadata":{{"a":"{}"}}"#, "v".repeat(513));
    t.chat(65, &long, "metadata.a", "string_above_max_length");
    t.chat_ok(65, r#""user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto""#);
}

fn add_switches(t: &mut Table) {
    t.chat(61, r#""stream":"yes""#, "stream", "invalid_type");
    t.chat(62, r#""stream_options":{"include_usage":true}"#, "stream_options", "invalid_value");
    t.chat_ok(62, r#""stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}"#);
    let bad = r#""stream":true,"stream_options":{"include_usage":1}"#;
    t.chat(0, bad, "stream_options.include_usage", "invalid_type");
    t.chat_ok(64, r#""colour":"blue""#);
    for key in ["api_base", "base_url", "headers", "extra_headers", "api_key"] {
        t.chat(0, &format!(r#""{key}":"http://127.0.0.1/""#), key, "unknown_parameter");
    }
    t.chat(
        0,
        r#""add_generation_prompt":true,"continue_final_message":true"#,
        "continue_final_message",
        "mutually_exclusive",
    );
    t.chat(0, r#""request_id":"a b""#, "request_id", "invalid_value");
    t.chat(0, r#""cache_salt":"""#, "cache_salt", "invalid_value");
    t.chat(0, r#""truncation_side":"middle""#, "truncation_side", "invalid_value");
    t.chat(0, r#""reasoning_effort":"huge""#, "reasoning_effort", "invalid_value");
    for key in ["tokenize", "messages"] {
        let more = format!(r#""chat_template_kwargs":{{"{key}":true}}"#);
        t.chat(76, &more, &format!("chat_template_kwargs.{key}"), "unknown_parameter");
    }
    t.chat(0, r#""chat_template_kwargs":[]"#, "chat_template_kwargs", "invalid_type");
    t.chat(77, r#""chat_template":"{{ x }}""#, "chat_template", "unsupported_parameter");
}

fn add_unsupported(t: &mut Table) {
    let deep = format!(r#"{{"a":{}1{}}}"#, r#"{"a":"#.repeat(1000), "}".repeat(1000));
    let wide: Vec<_> = (0..100_000).map(|i| format!(r#""p{i}":{{}}"#)).collect();
    let wide = format!(r#"{{"properties":{{{}}}}}"#, wide.join(","));
    let long = format!(r#"{{"enum":["{}"]}}"#, "x".repeat(5 << 20));
    for schema in [deep, wide, long] {
        let more = format!(
            r#""response_format":{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}}"#
        );
        t.chat(67, &more, "response_format", "schema_too_complex");
    }
    t.chat(73, r#""guided_regex":"a","grammar":"b""#, "grammar", "mutually_exclusive");
    t.chat(
        73,
        r#""response_format":{"type":"json_object"},"guided_json":{"type":"object"}"#,
        "guided_json",
        "mutually_exclusive",
    );
    t.chat(0, r#""response_format":{"type":"json_object"}"#, "response_format", "unsupported_parameter");
    t.chat(0, r#""response_format":{"type":"xml"}"#, "response_format.type", "invalid_value");
    t.chat(0, r#""response_format":{}"#, "response_format.type", "missing_required_parameter");
    t.chat(0, r#""response_format":"text""#, "response_format", "invalid_type");
    t.chat_ok(0, r#""response_format":{"type":"text"},"guided_json":null,"use_beam_search":false,"structured_outputs":{}"#);
    for (name, value) in [
        ("structured_outputs", r#"{"regex":"a"}"#),
        ("guided_choice", r#"["a"]"#),
        ("use_beam_search", "true"),
        ("length_penalty", "1.5"),
        ("logits_processors", r#"["x"]"#),
        ("logprob_token_ids", "[1]"),
        ("kv_transfer_params", r#"{"a":1}"#),
        ("thinking_token_budget", "5"),
        ("stream_interval", "2"),
        ("functions", r#"[{"name":"f"}]"#),
        ("function_call", r#"{"name":"f"}"#),
        ("modalities", r#"["text","audio"]"#),
        ("prediction", r#"{"type":"content","content":"x"}"#),
        ("web_search_options", "{}"),
        ("echo", "true"),
    ] {
        t.chat(0, &format!(r#""{name}":{value}"#), name, "unsupported_parameter");
    }
}

fn add_tools(t: &mut Table) {
    let tool = |function: &str| format!(r#"{{"type":"function","function":{function}}}"#);
    let good = tool(r#"{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}"#);
    let tools = |list: &str| format!(r#""tool_choice":"none","tools":[{list}]"#);
    t.chat(74, &tools(""), "tools", "invalid_value");
    let many: Vec<_> = (0..1000).map(|i| tool(&format!(r#"{{"name":"f{i}"}}"#))).collect();
    t.chat(74, &tools(&many.join(",")), "tools", "array_above_max_length");
    for name in ["a b", &"n".repeat(65), ""] {
        let list = tools(&tool(&format!(r#"{{"name":"{name}"}}"#)));
        t.chat(74, &list, "tools[0].function.name", "invalid_value");
    }
    t.chat(74, &tools(&format!("{good},{good}")), "tools[1].function.name", "duplicate_name");
    for parameters in ["1", "[]", r#"{"type":"string"}"#, r#"{"properties":[]}"#, r#"{"required":[1]}"#] {
        let list = tools(&tool(&format!(r#"{{"name":"f","parameters":{parameters}}}"#)));
        t.chat(74, &list, "tools[0].function.parameters", "invalid_function_parameters");
    }
    t.chat(0, &tools("{}"), "tools[0].type", "missing_required_parameter");
    t.chat(0, &tools(r#"{"type":"function"}"#), "tools[0].function", "missing_required_parameter");
    t.chat(0, &tools(&tool("{}")), "tools[0].function.name", "missing_required_parameter");
    t.chat_ok(0, &tools(&good));
    t.chat(0, &format!(r#""tools":[{good}]"#), "tools", "unsupported_parameter");
    t.chat(0, &format!(r#""tools":[{good}],"tool_choice":"auto""#), "tools", "unsupported_parameter");
    t.chat(0, r#""tool_choice":"required""#, "tool_choice", "invalid_value");
    t.chat(0, r#""tool_choice":"maybe""#, "tool_choice", "invalid_value");
    t.chat_ok(0, r#""tool_choice":"auto","parallel_tool_calls":true"#);
}
