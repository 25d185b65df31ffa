//! A Python literal as JSON: strings, numbers, `True`, `False`, `None`, lists, tuples and dicts. Does not know calls.

use serde_json::{Map, Number, Value};

/// Lists and dicts inside each other.
const MAX_DEPTH: usize = 48;

/// Reads `text` as one literal; `None` if it is none.
pub(super) fn to_json(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.rest.trim_start().is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn takes(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        (depth < MAX_DEPTH).then_some(())?;
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.list('[', "]", depth),
            '(' => self.list('(', ")", depth),
            '{' => self.dict(depth),
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            _ => self.word(),
        }
    }

    fn list(&mut self, open: char, close: &str, depth: usize) -> Option<Value> {
        self.rest = &self.rest[open.len_utf8()..];
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(self.value(depth + 1)?);
            if !self.takes(",") {
                return self.takes(close).then_some(Value::Array(items));
            }
        }
        Some(Value::Array(items))
    }

    fn dict(&mut self, depth: usize) -> Option<Value> {
        self.rest = &self.rest[1..];
        let mut members = Map::new();
        while !self.takes("}") {
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                other => other.to_string(),
            };
            self.takes(":").then_some(())?;
            members.insert(key, self.value(depth + 1)?);
            if !self.takes(",") {
                return self.takes("}").then_some(Value::Object(members));
            }
        }
        Some(Value::Object(members))
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest[1..].chars();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => match chars.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'x' => text.push(code(&mut chars, 2)?),
                    'u' => text.push(code(&mut chars, 4)?),
                    'U' => text.push(code(&mut chars, 8)?),
                    '\n' => {}
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    other => text.extend(['\\', other]),
                },
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }

    fn word(&mut self) -> Option<Value> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            _ => {
                let digits = word.replace('_', "");
                let integer = digits.parse::<i64>().ok().map(Number::from);
                // Python writes `1.` and `.5`, which JSON does not.
                let number = || digits.parse::<f64>().ok().and_then(Number::from_f64);
                let starts = digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
                starts.then(|| integer.or_else(number)).flatten().map(Value::Number)
            }
        }
    }
}

fn code(chars: &mut std::str::Chars<'_>, n_digits: usize) -> Option<char> {
    let digits = chars.as_str().get(..n_digits)?;
    let code = u32::from_str_radix(digits, 16).ok()?;
    chars.nth(n_digits - 1)?;
    Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_read_as_python_reads_them() {
        let cases = [
            ("'it\\'s \\u00e9\\n'", json!("it's é\n")),
            (" [1, -2.5, (True, None,), ] ", json!([1, -2.5, [true, null]])),
            ("{'a': {\"b\": []}, 1: 'x'}", json!({"a": {"b": []}, "1": "x"})),
            ("1_000", json!(1000)),
            (".5", json!(0.5)),
        ];
        for (text, value) in cases {
            assert_eq!(to_json(text), Some(value), "{text}");
        }
        for text in ["", "x", "'a", "[1", "{'a'}", "f()", "1 2", "\"\\u12\"", &"[".repeat(1000)] {
            assert_eq!(to_json(text), None, "{text}");
        }
    }
}
