//! JSON whose end is missing, as in a truncated answer. Does not know its purpose.

use serde_json::Value;

/// Parses the value that `text` starts with and closes open parts: a string at the end of the text, lists
/// and objects after their last complete member. `None` if no value starts here.
pub(super) fn closed(text: &str) -> Option<Value> {
    let mut open = Vec::new();
    let mut in_string = false;
    let mut is_escaped = false;
    // End of the last complete part: after the last bracket, or before the last comma.
    let mut whole = None;
    for (at, c) in text.char_indices() {
        match c {
            _ if in_string => {
                in_string = is_escaped || c != '"';
                is_escaped = c == '\\' && !is_escaped;
            }
            '"' => in_string = true,
            '{' => open.push('}'),
            '[' => open.push(']'),
            '}' | ']' => drop(open.pop()),
            _ => {}
        }
        if !in_string && matches!(c, '{' | '[' | '}' | ']' | ',') {
            whole = Some(if c == ',' { at } else { at + 1 });
        }
    }
    let ends: String = open.iter().rev().collect();
    let parsed = |text: &str| crate::exact_number::parse(&format!("{text}{ends}")).ok();
    let all = if in_string { parsed(&with_string_end(text)) } else { parsed(text) };
    all.or_else(|| parsed(&text[..whole?]))
}

/// Appends the end of the string that the text ends in, in place of an incomplete escape.
fn with_string_end(text: &str) -> String {
    let n_back = text.len() - text.trim_end_matches('\\').len();
    let mut end = text.len() - n_back % 2;
    // `\u` and fewer than four digits.
    let digits = text[..end].trim_end_matches(|c: char| c.is_ascii_hexdigit());
    if text.len() - digits.len() < 4
        && let Some(before) = digits.strip_suffix("\\u")
        && (before.len() - before.trim_end_matches('\\').len()) % 2 == 0
    {
        end = before.len();
    }
    format!("{}\"", &text[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_open_is_closed() {
        let cases = [
            (r#"{"city": "Par"#, json!({"city": "Par"})),
            (r#"{"city": "Paris""#, json!({"city": "Paris"})),
            (r#"{"city": "Paris", "#, json!({"city": "Paris"})),
            (r#"{"city": "Paris", "da"#, json!({"city": "Paris"})),
            (r#"{"city": "Paris", "day":"#, json!({"city": "Paris"})),
            (r#"{"city": "Paris", "day": tr"#, json!({"city": "Paris"})),
            (r#"{"n": 12"#, json!({"n": 12})),
            (r#"{"#, json!({})),
            (r#"{"ci"#, json!({})),
            (r#"{"a": [1, {"b": "]}\"x\\"#, json!({"a": [1, {"b": "]}\"x\\"}]})),
            (r#"{"a": "x\"#, json!({"a": "x"})),
            (r#"{"a": "\u00"#, json!({"a": ""})),
            (r#"{"a": "\u00e9"#, json!({"a": "é"})),
            (r#"["Paris", {"#, json!(["Paris", {}])),
            (r#"{"a": 1}"#, json!({"a": 1})),
        ];
        for (text, value) in cases {
            assert_eq!(closed(text), Some(value), "{text}");
        }
        for text in ["", "x", "}", "{]", "{'a': 1"] {
            assert!(closed(text).is_none_or(|value| value == json!({})), "{text}");
        }
        // Must succeed however the text is truncated.
        let text = "{\"a\": [true, -1.5e3, {\"b\\\\\": \"é\\n\\ud83d\\ude00\"}], \"c\": null}";
        for (at, _) in text.char_indices().skip(1) {
            assert!(closed(&text[..at]).is_some_and(|value| value.is_object()), "{}", &text[..at]);
        }
    }
}
