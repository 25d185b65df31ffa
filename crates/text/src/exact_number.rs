//! JSON numbers in value trees that neither an `i64`, a `u64` nor a double represents exactly. Does not
//! know their purpose.
//!
//! [`Value`] stores such a number as the nearest double. [`parse`] stores it as an object with one member,
//! `{"$throng.number": "18446744073709551616"}`, which can be serialized like any value. A client that
//! writes this object means the number.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::decimal::Decimal;

/// The name of the member that holds the digits.
const KEY: &str = "$throng.number";

/// Maximum length of a run of digits that a double always represents.
const SAFE_DIGITS: usize = 15;

/// Parses JSON without changing a number.
///
/// # Errors
/// The syntax error of the JSON text.
pub fn parse(json: &str) -> serde_json::Result<Value> {
    let long = long_numbers(json);
    if long.is_empty() {
        return serde_json::from_str(json);
    }
    let mut written = String::with_capacity(json.len() + long.len() * (KEY.len() + 8));
    let mut end = 0;
    for (start, number) in long {
        written.push_str(&json[end..start]);
        written.push_str(&format!("{{\"{KEY}\":\"{number}\"}}"));
        end = start + number.len();
    }
    written.push_str(&json[end..]);
    serde_json::from_str(&written)
}

/// Formats a value as JSON, with all digits of its numbers.
pub fn to_json(value: &Value) -> String {
    let json = value.to_string();
    let begin = format!("{{\"{KEY}\":\"");
    let (mut written, mut rest) = (String::with_capacity(json.len()), json.as_str());
    // Quotation marks inside of strings are escaped, so that this text occurs nowhere else.
    while let Some((before, after)) = rest.split_once(begin.as_str()) {
        written.push_str(before);
        let number = after.split_once("\"}").filter(|(number, _)| is_literal(number));
        rest = match number {
            Some((number, after)) => {
                written.push_str(number);
                after
            }
            None => {
                written.push_str(&begin);
                after
            }
        };
    }
    written + rest
}

/// The text of a number, as exact as the value stores it; `None` if the value is not a number.
pub fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Object(members) => exact_text(members).map(Cow::Borrowed),
        _ => None,
    }
}

/// Whether a value is a number, or an object of [`parse`] that represents one.
pub fn is_number(value: &Value) -> bool {
    match value {
        Value::Object(members) => exact_text(members).is_some(),
        _ => value.is_number(),
    }
}

/// The nearest double of a number; `None` if the value is not a number.
pub fn as_f64(value: &Value) -> Option<f64> {
    match value {
        Value::Object(members) => exact_text(members)?.parse().ok(),
        _ => value.as_f64(),
    }
}

/// The text of the number that an object of [`parse`] represents.
pub fn exact_text(members: &Map<String, Value>) -> Option<&str> {
    members.get(KEY)?.as_str().filter(|text| members.len() == 1 && is_literal(text))
}

fn is_literal(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && serde_json::from_str::<f64>(text).is_ok()
}

/// The numbers in a text that a [`Value`] would change, with their positions. Parses only the necessary
/// syntax.
fn long_numbers(json: &str) -> Vec<(usize, &str)> {
    let bytes = json.as_bytes();
    let (mut found, mut at, mut in_string) = (Vec::new(), 0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let n_bytes = bytes[at..].iter().take_while(|b| is_part(b)).count();
                let number = &json[at..at + n_bytes];
                if is_changed(number) {
                    found.push((at, number));
                }
                at += n_bytes - 1;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Whether a [`Value`] would change a number.
fn is_changed(number: &str) -> bool {
    let n_digits = number.bytes().filter(u8::is_ascii_digit).count();
    if n_digits <= SAFE_DIGITS && !number.contains(['e', 'E']) {
        return false;
    }
    match serde_json::from_str::<serde_json::Number>(number) {
        // Doubles are written with the fewest digits that distinguish them.
        Ok(read) if read.is_f64() => Decimal::parse(number) != Decimal::parse(&read.to_string()),
        // Integers that fit are kept, and the parser refuses other text.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let exact = |text: &str| json!({ KEY: text });
        for (written, expected) in [
            ("1", json!(1)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551615", json!(u64::MAX)),
            ("0.1", json!(0.1)),
            ("1e5", json!(1e5)),
            ("1.50", json!(1.5)),
            ("2.5e+10", json!(2.5e10)),
            ("18446744073709551616", exact("18446744073709551616")),
            ("-9223372036854775809", exact("-9223372036854775809")),
            ("0.12345678901234567890", exact("0.12345678901234567890")),
            ("1e-400", exact("1e-400")),
            ("1000000000000000000000000", json!(1e24)),
        ] {
            assert_eq!(parse(written).expect(written), expected, "{written}");
            let nested = format!("{{\"a {written} \\\" \": [{written},{written} ], \"b\":{written}}}");
            let key = format!("a {written} \" ");
            assert_eq!(
                parse(&nested).expect(&nested),
                json!({ key: [expected, expected], "b": expected }),
                "{nested}"
            );
        }
        assert_eq!(
            text(&parse("18446744073709551616").expect("a number")).as_deref(),
            Some("18446744073709551616")
        );
        let json = r#"{"a":[18446744073709551616,1,"{\"$throng.number\":\"1\"}"],"b":{"c":-1e-400}}"#;
        assert_eq!(to_json(&parse(json).expect("JSON")), json);
        for other in [json!({ KEY: "x" }), json!({ KEY: "1", "b": 2 }), json!([{ KEY: {} }])] {
            assert_eq!(to_json(&other), other.to_string());
        }
        assert_eq!(text(&json!({ KEY: "x" })), None);
        assert_eq!(text(&json!({ KEY: "1", "b": 2 })), None);
        for broken in ["[12345678901234567890123", "1.2.3.4.5.6.7.8.9.0.1.2.3.4.5.6", "\"", "\"\\", "--", ""]
        {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }
}
