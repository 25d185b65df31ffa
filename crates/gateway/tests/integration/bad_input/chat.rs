//! Bodies of chat completions. Does not know how they are tested.

use super::Endpoint::{Chat, Completion, Detokenize, Tokenize};
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

/// A valid body with further fields.
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
    ] {
        t.refused(2, Chat, body, "", "invalid_json");
    }
    t.chat(2, r#""temperature":1e400"#, "temperature", "invalid_json");
    add_scanned(t);
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

/// Text that many parsers accept as JSON, but that is refused anywhere in a body.
fn add_scanned(t: &mut Table) {
    let nested = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    for n in [64, 100, 5_000, 100_000] {
        let arrays = nested("[", "]", n);
        let objects = nested(r#"{"a":"#, "}", n);
        for deep in [&arrays, &objects] {
            t.chat(0, &format!(r#""x":{deep}"#), "", "json_too_deep");
            t.chat(0, &format!(r#""metadata":{{"a":{deep}}}"#), "", "json_too_deep");
            t.chat(0, &format!(r#""chat_template_kwargs":{{"a":{deep}}}"#), "", "json_too_deep");
            t.chat(0, &format!(r#""documents":[{deep}]"#), "", "json_too_deep");
            t.messages(0, &format!(r#"[{{"role":"user","content":{deep}}}]"#), "", "json_too_deep");
        }
        t.refused(0, Completion, format!(r#"{{"model":"{MODEL}","prompt":{arrays}}}"#), "", "json_too_deep");
        t.refused(0, Tokenize, format!(r#"{{"prompt":{arrays}}}"#), "", "json_too_deep");
        t.refused(0, Detokenize, format!(r#"{{"tokens":{arrays}}}"#), "", "json_too_deep");
    }
    t.refused(0, Chat, "[".repeat(100_000), "", "json_too_deep");
    t.chat_ok(0, &format!(r#""x":{}"#, nested("[", "]", 63)));
    for lone in ["\\ud800", "\\udfff", "\\ud800\\ud800", "\\ud800x", "\\udc00\\ud800", "\\uD83D\\n"] {
        t.chat(0, &format!(r#""x":"{lone}""#), "x", "invalid_unicode");
        t.chat(0, &format!(r#""x{lone}":1"#), "", "invalid_unicode");
        t.chat(0, &format!(r#""stop":["{lone}"]"#), "stop[0]", "invalid_unicode");
        let message = format!(r#"[{{"role":"user","content":"{lone}"}}]"#);
        t.messages(0, &message, "messages[0].content", "invalid_unicode");
        t.refused(0, Tokenize, format!(r#"{{"prompt":"{lone}"}}"#), "prompt", "invalid_unicode");
    }
    for n in [65, 1000, 100_000] {
        let long = "1".repeat(n);
        for number in [long.clone(), format!("-{long}"), format!("0.{long}"), format!("1e-{long}")] {
            t.chat(0, &format!(r#""seed":{number}"#), "seed", "number_too_long");
            t.chat(0, &format!(r#""x":[{number}]"#), "x[0]", "number_too_long");
        }
    }
    let long = format!("[1,{}]", "1".repeat(65));
    let body = format!(r#"{{"model":"{MODEL}","prompt":{long}}}"#);
    t.refused(0, Completion, body, "prompt[1]", "number_too_long");
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
    let image =
        |url: &str| part(&format!(r#"{{"type":"image_url","image_url":{{"url":"{url}","detail":"low"}}}}"#));
    let at_url = "messages[0].content[0].image_url.url";
    for url in [
        "http://127.0.0.1/a.png",
        "https://127.1/a.png",
        "http://2130706433/",
        "http://0x7f.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://10.1.2.3/",
        "http://localhost/a.png",
        "http://metadata.google.internal/",
        "http://user@example.com/a.png",
        "http://example.com\\\\@127.0.0.1/",
        "file:///etc/passwd",
        "ftp://example.com/a.png",
        "example.com/a.png",
        "",
        "data:text/html;base64,AAAA",
        "data:image/png,AAAA",
    ] {
        t.messages(34, &image(url), at_url, "invalid_image_url");
    }
    for content in ["", "A", "====", "AA-A"] {
        t.messages(35, &image(&format!("data:image/png;base64,{content}")), at_url, "invalid_image");
    }
    // Only models of text are served, whatever the image is.
    for url in ["https://example.com/a.png", "data:image/png;base64,iVBORw0KGgo="] {
        t.messages(35, &image(url), "messages[0].content[0].image_url", "unsupported_parameter");
    }
    let bare = part(r#"{"type":"image_url","image_url":"http://127.0.0.1/"}"#);
    t.messages(34, &bare, "messages[0].content[0].image_url", "invalid_image_url");
    let missing = part(r#"{"type":"image_url","image_url":{}}"#);
    t.messages(34, &missing, at_url, "missing_required_parameter");
    let call = r#"{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"not JSON"}}]}"#;
    t.messages(31, &format!("[{call}]"), "messages[1].tool_calls", "invalid_value");
    let user = r#"{"role":"user","content":"y"}"#;
    t.messages(31, &format!("[{call},{user}]"), "messages[1].tool_calls", "invalid_value");
    let reply = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    t.messages_ok(32, &format!("[{call},{reply}]"));
    add_replies(t, call, reply);
    add_keys(t);
}

/// Tool messages, each of which answers a call.
fn add_replies(t: &mut Table, call: &str, reply: &str) {
    let tool = |id: &str| format!(r#"{{"role":"tool",{id}"content":"1"}}"#);
    let id = "messages[2].tool_call_id";
    for none in ["", r#""tool_call_id":null,"#] {
        t.messages(0, &format!("[{call},{}]", tool(none)), id, "missing_required_parameter");
        t.messages(0, &format!("[{}]", tool(none)), "messages[0].tool_call_id", "missing_required_parameter");
    }
    for unknown in ["b", "", "A"] {
        let unknown = tool(&format!(r#""tool_call_id":"{unknown}","#));
        t.messages(0, &format!("[{call},{unknown}]"), id, "invalid_value");
        t.messages(0, &format!("[{call},{reply},{unknown}]"), "messages[3].tool_call_id", "invalid_value");
        t.messages(0, &format!("[{unknown}]"), "messages[0].tool_call_id", "invalid_value");
    }
    t.messages(0, &format!("[{call},{}]", tool(r#""tool_call_id":1,"#)), id, "invalid_type");
    t.messages(0, &format!("[{reply}]"), "messages[0].tool_call_id", "invalid_value");
    t.messages(0, &format!("[{call},{reply},{reply}]"), "messages[3].tool_call_id", "invalid_value");
    let user = r#"{"role":"user","content":"y"}"#;
    t.messages(0, &format!("[{call},{reply},{user},{reply}]"), "messages[4].tool_call_id", "invalid_value");
    t.messages_ok(0, &format!("[{call},{reply},{call},{reply}]"));
    let foreign = r#"[{"role":"user","content":"x","tool_call_id":"a"}]"#;
    t.messages(0, foreign, "messages[0].tool_call_id", "invalid_value");
    let calls = |calls: &str| format!(r#"[{{"role":"assistant","tool_calls":{calls}}},{reply}]"#);
    let one = r#"{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    t.messages_ok(0, &calls(&format!("[{one}]")));
    t.messages(0, &calls(&format!("[{one},{one}]")), "messages[0].tool_calls[1].id", "invalid_value");
    t.messages(0, &calls("[]"), "messages[1].tool_call_id", "invalid_value");
    for silent in ["", r#","content":null"#, r#","content":null,"tool_calls":[]"#] {
        t.messages_ok(0, &format!(r#"[{user},{{"role":"assistant"{silent}}},{user}]"#));
    }
    t.messages_ok(0, r#"[{"role":"assistant","content":"x","tool_calls":[]},{"role":"user","content":"y"}]"#);
    t.messages(0, &calls("{}"), "messages[0].tool_calls", "invalid_type");
    t.messages(0, &calls("[1]"), "messages[0].tool_calls[0]", "invalid_type");
    t.messages(0, &calls("[{}]"), "messages[0].tool_calls[0].id", "missing_required_parameter");
    let missing = r#"[{"id":"a","type":"function"}]"#;
    t.messages(0, &calls(missing), "messages[0].tool_calls[0].function", "missing_required_parameter");
    let custom = one.replace(r#""function","#, r#""custom","#);
    t.messages(0, &calls(&format!("[{custom}]")), "messages[0].tool_calls[0].type", "invalid_value");
    let object = one.replace(r#""{}""#, "{}");
    let path = "messages[0].tool_calls[0].function.arguments";
    t.messages(0, &calls(&format!("[{object}]")), path, "invalid_type");
    for text in ["", "null", "[1]", "{", r#"{\"a\":\"\\ud800\"}"#, &"[".repeat(10_000)] {
        let call = one.replace("{}", text);
        t.messages_ok(32, &calls(&format!("[{call}]")));
    }
    let wide = one.replace("{}", &format!(r#"{{\"a\":[{}]}}"#, repeated("0", 100_000)));
    t.messages(0, &calls(&format!("[{wide}]")), path, "schema_too_complex");
    t.messages(0, r#"[{"role":"function","content":"x"}]"#, "messages[0].name", "missing_required_parameter");
    t.messages_ok(0, r#"[{"role":"function","name":"f","content":"x"}]"#);
}

/// A body with every object that has keys of its own, and each of them: its path and its beginning.
pub(super) fn nested() -> (String, Vec<(&'static str, &'static str)>) {
    let call = r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f"}}]}"#;
    let reply = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    let messages = format!(r#"[{{"role":"user","content":[{{"type":"text","text":"x"}}]}},{call},{reply}]"#);
    let tools = r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#;
    let choice = r#"{"type":"function","function":{"name":"f"}}"#;
    let format = r#"{"type":"json_schema","json_schema":{"name":"x","schema":{}}}"#;
    let body = format!(
        r#"{{"model":"{MODEL}","messages":{messages},"tools":{tools},"tool_choice":{choice},
            "response_format":{format},"stream_options":{{"include_usage":true}},"stream":true}}"#
    );
    let places = vec![
        ("messages[0]", r#"{"role":"user""#),
        ("messages[0].content[0]", r#"{"type":"text""#),
        ("messages[1]", r#"{"role":"assistant""#),
        ("messages[1].tool_calls[0]", r#"{"id":"a""#),
        ("messages[1].tool_calls[0].function", r#"{"name":"f"}}]}"#),
        ("messages[2]", r#"{"role":"tool""#),
        ("tools[0]", r#"{"type":"function","function":{"name":"f","p"#),
        ("tools[0].function", r#"{"name":"f","p"#),
        ("tool_choice", r#"{"type":"function","function":{"name":"f"}}"#),
        ("tool_choice.function", r#"{"name":"f"}},"#),
        ("response_format", r#"{"type":"json_schema""#),
        ("response_format.json_schema", r#"{"name":"x""#),
        ("stream_options", r#"{"include_usage""#),
    ];
    (body, places)
}

/// The same body with another member at the beginning of the object that begins so.
pub(super) fn with_member(body: &str, place: &str, member: &str) -> String {
    let at = body.rfind(place).expect("the place is there");
    format!("{}{member},{}", &body[..=at], &body[at + 1..])
}

/// Objects with keys of their own: a duplicate key is refused with its path. Unknown ones are ignored, see
/// `clients.rs`.
fn add_keys(t: &mut Table) {
    let call = r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f"}}]}"#;
    let reply = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    let (body, places) = nested();
    for (path, place) in places {
        let at = body.rfind(place).expect("the place is there");
        let end = at + body[at..].find(':').expect("a member");
        let key = &body[at + 1..end];
        let name = key.trim_matches('"');
        let twice = format!("{}{key}:null,{}", &body[..=at], &body[at + 1..]);
        let expected = if name == "role" { "invalid_value" } else { "duplicate_key" };
        t.refused(8, Chat, twice, &format!("{path}.{name}"), expected);
    }
    t.messages(0, r#"[{"role":"user","content":[]}]"#, "messages[0].content", "empty_array");
    let empty = call.replace(r#""role""#, r#""content":[],"role""#);
    t.messages(0, &format!("[{empty},{reply}]"), "messages[0].content", "empty_array");
    let empty = reply.replace(r#""1""#, "[]");
    t.messages(0, &format!("[{call},{empty}]"), "messages[1].content", "empty_array");
    t.messages_ok(
        0,
        r#"[{"role":"user","content":[{"type":"text","text":"","cache_control":{"type":"x"}}]}]"#,
    );
    let both = r#"[{"role":"user","content":[{"type":"text","text":"a","refusal":"b"}]}]"#;
    t.messages(0, both, "messages[0].content[0].refusal", "unknown_parameter");
    t.messages_ok(
        0,
        r#"[{"role":"assistant","content":"a","refusal":null,"annotations":[],"audio":null,"function_call":null,
            "reasoning":"t","reasoning_content":"t","name":"n","id":"1"},{"role":"user","content":"b"}]"#,
    );
    add_marks(t);
    let two = r#"[{"role":"assistant","content":"a","reasoning":"t","reasoning_content":"u"}]"#;
    t.messages(0, two, "messages[0].reasoning_content", "duplicate_key");
}

/// Keys of messages and parts that are not OpenAI's.
fn add_marks(t: &mut Table) {
    let user = r#"{"role":"user","content":"a"}"#;
    for key in ["prefix", "partial"] {
        let last = |role: &str| format!(r#"[{user},{{"role":"{role}","content":"b","{key}":true}}]"#);
        t.messages_ok(0, &last("assistant"));
        t.messages_ok(0, &last("user").replace("true", "false"));
        t.messages(0, &last("user"), &format!("messages[1].{key}"), "invalid_value");
        t.messages(0, &last("assistant").replace("true", "1"), &format!("messages[1].{key}"), "invalid_type");
        // History, of which a part was continued once.
        t.messages_ok(0, &format!(r#"[{user},{{"role":"assistant","content":"b","{key}":true}},{user}]"#));
        for more in [r#""add_generation_prompt":true"#, r#""continue_final_message":false"#] {
            let body = saying(&last("assistant"));
            let body = format!("{},{more}}}", &body[..body.len() - 1]);
            t.refused(0, Chat, body, &format!("messages[1].{key}"), "mutually_exclusive");
        }
    }
    for (key, nothing) in [("images", "[]"), ("videos", "null"), ("files", "[]"), ("attachments", "{}")] {
        let message = |value: &str| format!(r#"[{{"role":"user","content":"a","{key}":{value}}}]"#);
        t.messages_ok(0, &message(nothing));
        t.messages(0, &message(r#"["x"]"#), &format!("messages[0].{key}"), "unsupported_parameter");
    }
    let parts = |role: &str, parts: &str| format!(r#"[{{"role":"{role}","content":[{parts}]}},{user}]"#);
    for thought in [
        r#"{"type":"thinking","thinking":"t","signature":"s"}"#,
        r#"{"type":"thinking","thinking":[{"type":"text","text":"t"}],"closed":true}"#,
        r#"{"type":"reasoning","reasoning":"t"}"#,
        r#"{"type":"reasoning","summary":[{"type":"summary_text","text":"t"}],"encrypted_content":"x"}"#,
        r#"{"type":"redacted_thinking","data":"x"}"#,
    ] {
        t.messages_ok(0, &parts("assistant", &format!(r#"{thought},{{"type":"text","text":"b"}}"#)));
        t.messages_ok(0, &parts("assistant", thought));
        let at = "messages[0].content[0]";
        t.messages(0, &parts("user", thought), at, "unsupported_parameter");
    }
    t.messages_ok(0, &parts("user", r#""a","b""#));
    t.messages_ok(
        0,
        &parts("user", r#"{"type":"text","text":"a","image_url":null,"citations":[1],"index":0}"#),
    );
    let both = r#"{"type":"text","text":"a","image_url":{"url":"https://example.com/a.png"}}"#;
    t.messages(0, &parts("user", both), "messages[0].content[0].image_url", "unknown_parameter");
    t.messages(
        0,
        &parts("user", r#"{"type":"tool_result"}"#),
        "messages[0].content[0].type",
        "invalid_value",
    );
}

fn add_beams(t: &mut Table) {
    let beams = |more: &str| format!(r#""use_beam_search":true,{more}"#);
    t.chat_ok(0, &beams(r#""n":3,"max_tokens":4,"length_penalty":-2,"early_stopping":"never""#));
    t.chat_ok(0, &beams(r#""max_tokens":4,"early_stopping":true,"repetition_penalty":1,"logit_bias":{}"#));
    t.chat(0, &beams(r#""stream":true"#), "stream", "invalid_value");
    t.chat(0, &beams(r#""n":3,"best_of":2"#), "best_of", "invalid_value");
    t.chat(0, &beams(r#""early_stopping":"always""#), "early_stopping", "invalid_value");
    t.chat(0, &beams(r#""early_stopping":1"#), "early_stopping", "invalid_type");
    t.chat(0, &beams(r#""length_penalty":101"#), "length_penalty", "decimal_above_max_value");
    for (more, param) in [
        (r#""presence_penalty":1"#, "presence_penalty"),
        (r#""frequency_penalty":1"#, "frequency_penalty"),
        (r#""repetition_penalty":1.1"#, "repetition_penalty"),
        (r#""logit_bias":{"5":1}"#, "logit_bias"),
        (r#""allowed_token_ids":[5]"#, "allowed_token_ids"),
        (r#""bad_words":["x"]"#, "bad_words"),
        (r#""thinking_token_budget":5"#, "thinking_token_budget"),
        (r#""guided_regex":"a+""#, "guided_regex"),
        (r#""response_format":{"type":"json_object"}"#, "response_format"),
    ] {
        t.chat(0, &beams(more), param, "unsupported_parameter");
    }
    t.chat(0, r#""length_penalty":1.5"#, "length_penalty", "invalid_value");
    t.chat(0, r#""early_stopping":true"#, "early_stopping", "invalid_value");
}

fn add_numbers(t: &mut Table) {
    t.chat(43, r#""max_tokens":5,"max_completion_tokens":6"#, "max_tokens", "mutually_exclusive");
    t.chat_ok(43, r#""max_tokens":5,"max_completion_tokens":5"#);
    t.chat(44, r#""min_tokens":6,"max_tokens":5"#, "min_tokens", "invalid_value");
    t.chat(46, r#""n":3,"best_of":2"#, "best_of", "invalid_value");
    t.chat(46, r#""best_of":2,"stream":true"#, "best_of", "invalid_value");
    t.chat_ok(0, r#""n":2,"best_of":3"#);
    t.chat(0, r#""best_of":129"#, "best_of", "integer_above_max_value");
    add_beams(t);
    t.chat_ok(47, r#""n":1.0"#);
    t.chat_ok(47, r#""max_tokens":1e1"#);
    t.chat(0, r#""n":1.5"#, "n", "invalid_type");
    t.chat(0, r#""n":0"#, "n", "integer_below_min_value");
    t.chat(0, r#""n":129"#, "n", "integer_above_max_value");
    t.chat(0, r#""max_tokens":0"#, "max_tokens", "integer_below_min_value");
    t.chat(0, r#""max_completion_tokens":0"#, "max_completion_tokens", "integer_below_min_value");
    t.chat_ok(0, r#""speculative.n_max":0"#);
    t.chat(0, r#""speculative.n_max":-1"#, "speculative.n_max", "integer_below_min_value");
    t.chat(0, r#""speculative.n_max":true"#, "speculative.n_max", "invalid_type");
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
    for below in ["0", "-1", "1e-46", "1e-400"] {
        let more = format!(r#""repetition_penalty":{below}"#);
        t.chat(53, &more, "repetition_penalty", "decimal_below_min_value");
    }
    for above in ["101", "1e39", "1e308"] {
        let more = format!(r#""repetition_penalty":{above}"#);
        t.chat(53, &more, "repetition_penalty", "decimal_above_max_value");
    }
    t.chat(52, r#""top_p":1e-50"#, "top_p", "decimal_below_min_value");
    t.chat_ok(50, r#""temperature":1e-50,"repetition_penalty":1e-40,"top_p":1e-40,"min_p":1e-50"#);
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
    for list in ["allowed_token_ids", "stop_token_ids"] {
        t.chat(0, &format!(r#""{list}":{{}}"#), list, "invalid_type");
        t.chat(0, &format!(r#""{list}":[1.5]"#), &format!("{list}[0]"), "invalid_type");
    }
    add_nothing_left(t);
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

/// Parameters that leave no token to choose. The model's end is token 0 or 257, the letter `A` token 65.
fn add_nothing_left(t: &mut Table) {
    let refused = [
        r#""allowed_token_ids":[65],"bad_words":["A"]"#,
        r#""allowed_token_ids":[65,66],"bad_words":["A","B"],"temperature":0"#,
        r#""allowed_token_ids":[65],"bad_words":["BA"]"#,
        r#""allowed_token_ids":[65],"stop_token_ids":[65],"min_tokens":1"#,
        r#""allowed_token_ids":[0,257],"stop_token_ids":[0,257],"min_tokens":3"#,
        r#""allowed_token_ids":[65,66],"bad_words":["A"],"stop_token_ids":[66],"min_tokens":2"#,
    ];
    for more in refused {
        t.chat(0, more, "allowed_token_ids", "invalid_value");
    }
    t.chat_ok(0, r#""allowed_token_ids":[65,66],"bad_words":["A"],"max_tokens":2"#);
    t.chat_ok(0, r#""allowed_token_ids":[65],"stop_token_ids":[65],"max_tokens":2"#);
    t.chat_ok(0, r#""allowed_token_ids":[65,66],"stop_token_ids":[65],"min_tokens":2,"max_tokens":4"#);
    let biases = r#""logit_bias":{"65":-100,"66":-100}"#;
    t.chat_ok(59, &format!(r#""allowed_token_ids":[65,66],{biases},"max_tokens":2"#));
    let all: Vec<_> = (0..1000).map(|id| id.to_string()).collect();
    let more = format!(r#""stop_token_ids":[{}],"min_tokens":1"#, all.join(","));
    t.chat(0, &more, "min_tokens", "invalid_value");
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
    for key in
        ["tokenize", "messages", "tools", "eos_token", "x_token", "chat_template", "padding", "max_length"]
    {
        let more = format!(r#""chat_template_kwargs":{{"{key}":true}}"#);
        t.chat(76, &more, &format!("chat_template_kwargs.{key}"), "unknown_parameter");
    }
    t.chat_ok(76, r#""chat_template_kwargs":{"no_template_reads_this":{"a":[1]}}"#);
    t.chat(8, r#""chat_template_kwargs":{"a":1,"a":2}"#, "chat_template_kwargs.a", "duplicate_key");
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
    t.chat_ok(0, r#""response_format":{"type":"json_object"}"#);
    t.chat_ok(0, r#""structured_outputs":{"regex":"a"}"#);
    t.chat(0, r#""response_format":{"type":"xml"}"#, "response_format.type", "invalid_value");
    t.chat(0, r#""response_format":{}"#, "response_format.type", "missing_required_parameter");
    let format = |format: &str| format!(r#""response_format":{format}"#);
    let schema = "response_format.json_schema";
    t.chat(0, &format(r#"{"type":"json_schema"}"#), schema, "missing_required_parameter");
    let unnamed = format(r#"{"type":"json_schema","json_schema":{}}"#);
    t.chat(0, &unnamed, "response_format.json_schema.name", "missing_required_parameter");
    t.chat(0, &format(r#"{"type":"json_schema","json_schema":[]}"#), schema, "invalid_type");
    for (member, value) in [("schema", "[]"), ("strict", "1"), ("name", "1"), ("description", "{}")] {
        let wrong = format!(r#"{{"type":"json_schema","json_schema":{{"{member}":{value}}}}}"#);
        t.chat(0, &format(&wrong), &format!("{schema}.{member}"), "invalid_type");
    }
    t.chat(0, r#""response_format":"text""#, "response_format", "invalid_type");
    t.chat_ok(0, r#""response_format":{"type":"text"},"guided_json":null,"use_beam_search":false,"structured_outputs":{}"#);
    for (name, value) in [
        ("logits_processors", r#"["x"]"#),
        ("logprob_token_ids", "[1]"),
        ("kv_transfer_params", r#"{"a":1}"#),
        ("stream_interval", "2"),
        ("functions", r#"[{"name":"f"}]"#),
        ("function_call", r#"{"name":"f"}"#),
        ("modalities", r#"["text","audio"]"#),
        ("web_search_options", "{}"),
        ("echo", "true"),
    ] {
        t.chat(0, &format!(r#""{name}":{value}"#), name, "unsupported_parameter");
    }
    for (name, value) in [
        ("use_beam_search", "1"),
        ("length_penalty", r#""1""#),
        ("logprob_token_ids", "{}"),
        ("functions", "{}"),
        ("mm_processor_kwargs", "[]"),
        ("audio", "1"),
        ("echo", "0"),
        ("store", "1"),
        ("metadata", "[]"),
        ("user", "1"),
        ("parallel_tool_calls", "1"),
        ("seed", r#""1""#),
        ("stream_options", "[]"),
        ("logit_bias", "[]"),
        ("tools", "{}"),
        ("tool_choice", "[]"),
        ("documents", "{}"),
        ("bad_words", r#""a""#),
        ("ignore_eos", "0"),
        ("min_p", "true"),
        ("n", "[1]"),
    ] {
        let code = if name == "tool_choice" { "invalid_value" } else { "invalid_type" };
        t.chat(0, &format!(r#""{name}":{value}"#), name, code);
    }
}

fn add_tools(t: &mut Table) {
    let tool = |function: &str| format!(r#"{{"type":"function","function":{function}}}"#);
    let good = tool(r#"{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}"#);
    let tools = |list: &str| format!(r#""tool_choice":"none","tools":[{list}]"#);
    t.chat_ok(74, &tools(""));
    t.chat_ok(74, r#""tools":[]"#);
    t.chat_ok(74, r#""tools":[],"tool_choice":"auto""#);
    t.chat(74, r#""tools":[],"tool_choice":"required""#, "tool_choice", "invalid_value");
    t.chat(74, r#""tool_choice":"none""#, "tool_choice", "invalid_value");
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
    t.chat_ok(0, &format!(r#""tools":[{good}]"#));
    t.chat_ok(0, &format!(r#""tools":[{good}],"tool_choice":"auto","parallel_tool_calls":false"#));
    let strict = tool(r#"{"name":"g","strict":true}"#);
    t.chat_ok(0, &format!(r#""tools":[{good},{strict}]"#));
    t.chat_ok(0, &tools(&strict));
    t.chat_ok(0, &format!(r#""tools":[{good}],"tool_choice":"required","thinking_token_budget":-1"#));
    for budget in ["-2", "1.5", r#""1""#] {
        let code = if budget == "-2" { "integer_below_min_value" } else { "invalid_type" };
        t.chat(0, &format!(r#""thinking_token_budget":{budget}"#), "thinking_token_budget", code);
    }
    t.chat(0, r#""tool_choice":"required""#, "tool_choice", "invalid_value");
    t.chat(0, r#""tool_choice":"maybe""#, "tool_choice", "invalid_value");
    for choice in [r#""none""#, r#""auto""#, r#"{"type":"function","function":{"name":"f"}}"#] {
        t.chat(0, &format!(r#""tool_choice":{choice}"#), "tool_choice", "invalid_value");
        let none = format!(r#""tools":null,"tool_choice":{choice}"#);
        t.chat(0, &none, "tool_choice", "invalid_value");
    }
    t.chat_ok(0, r#""tool_choice":null,"parallel_tool_calls":true"#);
    let chosen = |choice: &str| format!(r#""tools":[{good}],"tool_choice":{choice}"#);
    let other = chosen(r#"{"type":"function","function":{"name":"g"}}"#);
    t.chat(0, &other, "tool_choice.function.name", "invalid_value");
    let missing = "missing_required_parameter";
    t.chat(0, &chosen("{}"), "tool_choice.type", missing);
    t.chat(0, &chosen(r#"{"type":"function"}"#), "tool_choice.function", missing);
    t.chat(0, &chosen(r#"{"type":"function","function":{}}"#), "tool_choice.function.name", missing);
    t.chat(0, &chosen(r#"{"type":"wizard"}"#), "tool_choice.type", "invalid_value");
    t.chat_ok(0, &chosen(r#"{"type":"function","function":{"name":"f"}}"#));
    add_choices(t, &chosen);
    let deep = format!(r#"{{"name":"f","parameters":{{"a":{}1{}}}}}"#, "[".repeat(1000), "]".repeat(1000));
    t.chat(67, &tools(&tool(&deep)), "tools[0].function.parameters", "schema_too_complex");
}

/// Choices as clients send them that were made for other servers.
fn add_choices(t: &mut Table, chosen: &dyn Fn(&str) -> String) {
    for word in ["auto", "none", "required", "any"] {
        t.chat_ok(0, &chosen(&format!(r#"{{"type":"{word}"}}"#)));
    }
    t.chat_ok(0, &chosen(r#""any""#));
    t.chat_ok(0, &chosen(r#"{"type":"function","name":"f"}"#));
    let allowed =
        |members: &str| chosen(&format!(r#"{{"type":"allowed_tools","allowed_tools":{{{members}}}}}"#));
    let function = r#"{"type":"function","function":{"name":"f"}}"#;
    for mode in ["auto", "required"] {
        t.chat_ok(0, &allowed(&format!(r#""mode":"{mode}","tools":[{function}]"#)));
    }
    t.chat_ok(
        0,
        &chosen(r#"{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}"#),
    );
    let (missing, at) = ("missing_required_parameter", "tool_choice.allowed_tools");
    t.chat(0, &allowed(&format!(r#""tools":[{function}]"#)), &format!("{at}.mode"), missing);
    t.chat(0, &allowed(r#""mode":"auto""#), &format!("{at}.tools"), missing);
    t.chat(0, &allowed(r#""mode":"none","tools":[]"#), &format!("{at}.mode"), "invalid_value");
    t.chat(0, &allowed(r#""mode":"auto","tools":[]"#), &format!("{at}.tools"), "empty_array");
    let other = function.replace(r#""f""#, r#""g""#);
    let name = format!("{at}.tools[1].function.name");
    t.chat(0, &allowed(&format!(r#""mode":"auto","tools":[{function},{other}]"#)), &name, "invalid_value");
    let custom = r#"{"type":"custom","custom":{"name":"f"}}"#;
    let at = format!("{at}.tools[0].type");
    t.chat(0, &allowed(&format!(r#""mode":"auto","tools":[{custom}]"#)), &at, "invalid_value");
    let flat = r#""tools":[{"type":"function","name":"f","parameters":{}},{"name":"g","input_schema":{"type":"object"}}]"#;
    t.chat_ok(0, flat);
    let twice = r#""tools":[{"type":"function","name":"f"},{"name":"f","input_schema":{}}]"#;
    t.chat(0, twice, "tools[1].name", "duplicate_name");
    let both = r#""tools":[{"name":"f","parameters":{},"input_schema":{}}]"#;
    t.chat(0, both, "tools[0].input_schema", "duplicate_key");
    let hosted = r#""tools":[{"type":"web_search","name":"f"}]"#;
    t.chat(0, hosted, "tools[0].type", "invalid_value");
    let wrong = r#""tools":[{"type":"function","name":"f","parameters":[]}]"#;
    t.chat(0, wrong, "tools[0].parameters", "invalid_function_parameters");
}
