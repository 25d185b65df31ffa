//! JSON as Python's `json` module writes it: with `NaN`, `Infinity` and `-Infinity`, which JSON does not
//! have. They are read as the objects that transformers has for them, `{"__float__": "Infinity"}`.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The words, longest first.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads `json`, with or without these words.
///
/// # Errors
/// When `json` is invalid JSON apart from the words, or not a `T`.
pub fn from_slice<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json).or_else(|error| match spelled_out(json) {
        Some(json) => serde_json::from_slice(&json),
        None => Err(error),
    })
}

/// A number, finite or not.
pub fn number(value: &Value) -> Option<f64> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some("NaN") => Some(f64::NAN),
        _ => value.as_f64(),
    }
}

/// Replaces the words by objects; `None` if none occurs outside of strings.
fn spelled_out(json: &[u8]) -> Option<Vec<u8>> {
    let mut spelled = Vec::with_capacity(json.len());
    let (mut rest, mut in_text, mut n_found) = (json, false, 0);
    while let Some((&byte, after)) = rest.split_first() {
        let word = WORDS.iter().find(|word| !in_text && rest.starts_with(word.as_bytes()));
        if let Some(word) = word {
            spelled.extend_from_slice(format!("{{\"__float__\":\"{word}\"}}").as_bytes());
            (rest, n_found) = (&rest[word.len()..], n_found + 1);
            continue;
        }
        in_text ^= byte == b'"';
        spelled.push(byte);
        rest = after;
        if in_text
            && byte == b'\\'
            && let Some((&escaped, after)) = rest.split_first()
        {
            spelled.push(escaped);
            rest = after;
        }
    }
    (n_found > 0).then_some(spelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_words_are_numbers_and_texts_stay_texts() {
        let json =
            br#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": "NaN \" Infinity", "e\\": [NaN]}"#;
        let value: Value = from_slice(json).unwrap();
        assert_eq!(number(&value["a"][1]), Some(f64::INFINITY));
        assert_eq!(number(&value["a"][0]), Some(0.0));
        assert_eq!(number(&value["b"]), Some(f64::NEG_INFINITY));
        assert!(number(&value["c"]).unwrap().is_nan() && number(&value["e\\"][0]).unwrap().is_nan());
        assert_eq!((value["d"].as_str(), number(&value["d"])), (Some("NaN \" Infinity"), None));
        for broken in [r#"{"a": Infinit}"#, r#"{"a": Infinity"#, r#"{"a": InfinityNaN}"#, "\"\\"] {
            assert!(from_slice::<Value>(broken.as_bytes()).is_err(), "{broken}");
        }
    }
}
