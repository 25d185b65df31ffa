//! `tojson` as transformers defines it: Python's `json.dumps` without HTML escaping. Does not know templates.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::long_number::LongInteger;
use crate::disguise::Disguise;

/// Values nested deeper than this are refused, as they would exhaust the stack.
const MAX_DEPTH: usize = 200;

/// The arguments of `json.dumps` that transformers' `tojson` accepts.
struct Style<'a> {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    disguise: &'a Disguise,
    limit_bytes: usize,
}

/// Renders `value`; stand-ins of `disguise` are treated as the characters that they replace.
pub(super) fn to_json(
    value: &Value,
    kwargs: &Kwargs,
    disguise: &Disguise,
    limit_bytes: usize,
) -> Result<String, Error> {
    let indent = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = indent.map(|indent| match indent.as_usize() {
        Some(n) => " ".repeat(n.min(64)),
        None => indent.to_string(),
    });
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let (item_separator, key_separator) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        disguise,
        limit_bytes,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

impl Style<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "recursion limit exceeded"));
        }
        if out.len() > self.limit_bytes {
            return Err(super::limits::out_of_memory());
        }
        if let Some(number) = value.downcast_object_ref::<LongInteger>() {
            out.push_str(&number.0);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.write_items(&items, depth, ('[', ']'), out, |style, item, out| {
                    style.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(&keys, depth, ('{', '}'), out, |style, key, out| {
                    style.write_key(key, out);
                    out.push_str(&style.key_separator);
                    style.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                let text = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, text));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        items: &[Value],
        depth: usize,
        (open, close): (char, char),
        out: &mut String,
        write_one: impl Fn(&Self, &Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (idx, item) in items.iter().enumerate() {
            if idx > 0 {
                out.push_str(&self.item_separator);
            }
            self.write_newline(depth + 1, out);
            write_one(self, item, out)?;
        }
        if !items.is_empty() {
            self.write_newline(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_newline(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    /// Keys that are not strings are converted to strings, as in Python.
    fn write_key(&self, key: &Value, out: &mut String) {
        match key.kind() {
            ValueKind::String => self.write_string(key.as_str().unwrap_or_default(), out),
            ValueKind::None => out.push_str("\"null\""),
            ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
            _ => self.write_string(&key.to_string(), out),
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => push_escape(c, out),
                _ if self.ensure_ascii && !c.is_ascii() => match self.disguise.real(c) {
                    Some(real) if !real.is_ascii() => push_escape(real, out),
                    Some(_) => out.push(c),
                    None => push_escape(c, out),
                },
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `\uXXXX`; a surrogate pair beyond the basic plane.
fn push_escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a string cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

fn write_number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return;
    }
    match f64::try_from(value.clone()) {
        Ok(number) => out.push_str(&python_float(number)),
        Err(_) => out.push_str(&value.to_string()),
    }
}

/// `repr(float)`: the shortest digits that parse to the same value, with an exponent below 1e-4 and from 1e16
/// on.
pub(super) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = format!("{number}");
    if text.contains('.') { text } else { text + ".0" }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_read_as_python_prints_them() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(python_float(number), text);
        }
    }
}
