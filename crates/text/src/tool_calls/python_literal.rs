//! Converts a Python literal to JSON: strings, numbers, `True`, `False`, `None`, lists, tuples and dicts.
//! Does not know calls.

use serde_json::Number;
use serde_json::value::RawValue;

use super::json_text::escape;

/// Maximum nesting of lists and dicts.
const MAX_DEPTH: usize = 48;

/// Converts `text`, a single literal, to JSON; `None` if it is not one. Numbers that are valid JSON are
/// unchanged.
pub(super) fn to_json(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text, json: String::new(), is_cut: false };
    reader.value(0)?;
    reader.rest.trim_start().is_empty().then_some(reader.json)
}

/// Converts `text`, the start of a string, to the start of a JSON string; `None` if it is not one.
pub(super) fn open_string(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text, json: String::new(), is_cut: true };
    let text = reader.strings()?;
    reader.write_string(&text);
    reader.json.pop();
    reader.rest.is_empty().then_some(reader.json)
}

struct Reader<'a> {
    rest: &'a str,
    json: String,
    /// Whether the text may end inside of a string.
    is_cut: bool,
}

/// Prefixes of Python's strings.
const PREFIXES: &[&str] = &["", "r", "u", "b", "f", "br", "rb", "fr", "rf"];

impl Reader<'_> {
    fn takes(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        (depth < MAX_DEPTH).then_some(())?;
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.list("]", depth),
            '(' => self.list(")", depth),
            '{' => self.dict(depth),
            _ => match self.strings() {
                Some(text) => {
                    self.write_string(&text);
                    Some(())
                }
                None => self.word(),
            },
        }
    }

    fn list(&mut self, close: &str, depth: usize) -> Option<()> {
        self.elements('[', close, ']', |reader| reader.value(depth + 1))
    }

    fn dict(&mut self, depth: usize) -> Option<()> {
        self.elements('{', "}", '}', |reader| {
            let start = reader.json.len();
            reader.value(depth + 1)?;
            if !reader.json[start..].starts_with('"') {
                let key = reader.json.split_off(start);
                reader.write_string(&key);
            }
            reader.takes(":").then_some(())?;
            reader.json.push(':');
            reader.value(depth + 1)
        })
    }

    /// Elements between brackets, separated by commas.
    fn elements(
        &mut self,
        open: char,
        close: &str,
        end: char,
        mut one: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        // All brackets are one byte long.
        self.rest = &self.rest[1..];
        self.json.push(open);
        let mut is_first = true;
        while !self.takes(close) {
            if !is_first {
                self.json.push(',');
            }
            is_first = false;
            one(self)?;
            if !self.takes(",") {
                self.takes(close).then_some(())?;
                break;
            }
        }
        self.json.push(end);
        Some(())
    }

    fn write_string(&mut self, text: &str) {
        self.json.push('"');
        text.chars().for_each(|c| escape(c, |c| self.json.push(c)));
        self.json.push('"');
    }

    /// Adjacent strings, which form one string.
    fn strings(&mut self) -> Option<String> {
        let mut text = self.string()?;
        while let Some(more) = self.string() {
            text += &more;
        }
        Some(text)
    }

    /// A string with its prefix and its one or three quotation marks; `None` without consuming input if there
    /// is none.
    fn string(&mut self) -> Option<String> {
        let source = self.rest.trim_start();
        let n_prefix = source.find(['"', '\'']).filter(|n| *n <= 2)?;
        let prefix = source[..n_prefix].to_ascii_lowercase();
        let source = &source[n_prefix..];
        let one = &source[..1];
        let mark = if source.starts_with(&one.repeat(3)) { one.repeat(3) } else { one.to_owned() };
        PREFIXES.contains(&prefix.as_str()).then_some(())?;
        let is_raw = prefix.contains('r');
        let mut text = String::new();
        let mut chars = source[mark.len()..].chars();
        loop {
            if let Some(rest) = chars.as_str().strip_prefix(&mark) {
                self.rest = rest;
                return Some(text);
            }
            match chars.next() {
                Some('\\') if is_raw => text.extend(['\\'].into_iter().chain(chars.next())),
                Some('\\') => escaped(&mut chars, &mut text),
                Some(c) => text.push(c),
                None if self.is_cut => {
                    self.rest = "";
                    return Some(text);
                }
                None => return None,
            }
        }
    }

    fn word(&mut self) -> Option<()> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => self.json.push_str("true"),
            "False" | "false" => self.json.push_str("false"),
            "None" | "null" => self.json.push_str("null"),
            _ => self.json.push_str(&number(word)?),
        }
        Some(())
    }
}

/// Converts a number to JSON: Python also permits `1_000`, `1.`, `.5` and `+1`.
fn number(word: &str) -> Option<String> {
    let digits = word.replace('_', "");
    let starts = digits.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    if !starts {
        return None;
    }
    if serde_json::from_str::<&RawValue>(&digits).is_ok() {
        return Some(digits);
    }
    let integer = digits.parse::<i64>().ok().map(Number::from);
    let number = integer.or_else(|| digits.parse::<f64>().ok().and_then(Number::from_f64));
    number.map(|number| number.to_string())
}

/// Decodes an escape after its backslash; an escape that Python does not define stays unchanged.
fn escaped(chars: &mut std::str::Chars<'_>, text: &mut String) {
    let Some(kind) = chars.next() else { return };
    let said = match kind {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'a' => Some('\u{7}'),
        'b' => Some('\u{8}'),
        'v' => Some('\u{b}'),
        'f' => Some('\u{c}'),
        '\\' | '\'' | '"' => Some(kind),
        '\n' => return,
        '0'..='7' => Some(octal(kind, chars)),
        'x' => code(chars, 2),
        'u' => unit(chars),
        'U' => code(chars, 8),
        _ => None,
    };
    match said {
        Some(c) => text.push(c),
        None => text.extend(['\\', kind]),
    }
}

/// The character of up to three octal digits.
fn octal(first: char, chars: &mut std::str::Chars<'_>) -> char {
    let mut value = first.to_digit(8).unwrap_or_default();
    for _ in 0..2 {
        let Some(digit) = chars.as_str().chars().next().and_then(|c| c.to_digit(8)) else { break };
        value = value * 8 + digit;
        chars.next();
    }
    char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The character of `\uXXXX`, or of a surrogate pair of two such escapes, as in JSON.
fn unit(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let high = u16::from_str_radix(chars.as_str().get(..4)?, 16).ok()?;
    chars.nth(3)?;
    let low = chars.as_str().strip_prefix("\\u").and_then(|rest| rest.get(..4));
    let low = low.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let pair = low.and_then(|low| char::decode_utf16([high, low]).next()).and_then(Result::ok);
    match pair.filter(|_| (0xd800..0xdc00).contains(&high)) {
        Some(c) => {
            chars.nth(5)?;
            Some(c)
        }
        None => Some(char::from_u32(high.into()).unwrap_or(char::REPLACEMENT_CHARACTER)),
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
            ("\"\\ud83d\\ude00 \\ud83d\"", json!("😀 \u{fffd}")),
            ("{1.5: (), (2,): {}}", json!({"1.5": [], "[2]": {}})),
            ("'''it's\n\"two\"''' r'\\d' \"\"", json!("it's\n\"two\"\\d")),
            ("{b'a': \"\"\"\\\"\"\"\"}", json!({"a": "\""})),
            ("'\\u12 \\x4 \\101\\0 \\q'", json!("\\u12 \\x4 A\0 \\q")),
        ];
        for (text, value) in cases {
            let json = to_json(text).expect("a literal");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&json).expect("JSON"), value, "{text}");
        }
        for number in ["1e999", "123456789012345678901234567890", "-0.10"] {
            assert_eq!(to_json(number).as_deref(), Some(number), "numbers are passed on as they are");
        }
        for text in ["", "x", "'a", "[1", "{'a'}", "f()", "1 2", "'a' b", &"[".repeat(1000)] {
            assert_eq!(to_json(text), None, "{text}");
        }
    }
}
