//! Strict reading of request bodies: typed values with the path at which they stand, nothing materialised but
//! what is asked for. Refuses to know which parameters there are.

pub mod scan;

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::openai::error::{ApiError, echo};

/// Most members of an object that is read key by key.
pub const MAX_MEMBERS: usize = 1024;

/// A value in a body that [`scan::check`] accepted, still as text, with its path.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a, 'p> {
    raw: &'a RawValue,
    path: Path<'p>,
}

/// Where a value stands, as a chain back to the body; written out only for an error.
#[derive(Debug, Clone, Copy)]
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'p> {
    Body,
    Key(&'p str),
    Index(usize),
}

/// The types of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    /// `null`
    Null,
    /// `true` and `false`
    Boolean,
    /// Any number.
    Number,
    /// Any string.
    String,
    /// Any array.
    Array,
    /// Any object.
    Object,
}

impl<'a> Node<'a, 'static> {
    /// Checks a whole body; it must hold an object.
    ///
    /// # Errors
    /// `invalid_utf8`, `invalid_json`, or `invalid_type` when it holds something else.
    pub fn body(body: &'a [u8]) -> Result<Self, ApiError> {
        let node = Self { raw: scan::check(body)?, path: Path { parent: None, step: Step::Body } };
        match node.json_type() {
            JsonType::Object => Ok(node),
            _ => Err(ApiError::not_an_object(node.found())),
        }
    }
}

impl<'a> Node<'a, '_> {
    /// The type, by its first character.
    pub fn json_type(&self) -> JsonType {
        match self.raw.get().as_bytes().first() {
            Some(b'{') => JsonType::Object,
            Some(b'[') => JsonType::Array,
            Some(b'"') => JsonType::String,
            Some(b't' | b'f') => JsonType::Boolean,
            Some(b'n') => JsonType::Null,
            _ => JsonType::Number,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.json_type() == JsonType::Null
    }

    /// The path, like `messages[2].content`; long or odd keys are shortened and escaped.
    pub fn path(&self) -> String {
        let mut out = String::new();
        self.path.write(&mut out);
        out
    }

    /// The path of a member of this object.
    pub fn path_of(&self, key: &str) -> String {
        let mut out = String::new();
        Path { parent: Some(&self.path), step: Step::Key(key) }.write(&mut out);
        out
    }

    /// The value as JSON text.
    pub fn text(&self) -> &'a str {
        self.raw.get()
    }

    /// A boolean.
    pub fn boolean(&self) -> Result<bool, ApiError> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("a boolean")),
        }
    }

    /// A string of at most `max_bytes` bytes when decoded.
    pub fn string(&self, max_bytes: usize) -> Result<Cow<'a, str>, ApiError> {
        if self.json_type() != JsonType::String {
            return Err(self.wrong_type("a string"));
        }
        let text = decode(self.raw)?;
        if text.len() > max_bytes {
            return Err(ApiError::string_above_max_length(self.path(), max_bytes));
        }
        Ok(text)
    }

    /// One of the listed strings, by index; anything else, of whatever type, is an `invalid_value`.
    pub fn one_of(&self, allowed: &[&str]) -> Result<usize, ApiError> {
        let text = match self.json_type() {
            JsonType::String => decode(self.raw)?,
            _ => Cow::Borrowed(self.raw.get()),
        };
        let is_string = self.json_type() == JsonType::String;
        let idx = allowed.iter().position(|a| is_string && *a == text);
        idx.ok_or_else(|| ApiError::not_one_of(self.path(), &text, allowed))
    }

    /// A finite number.
    pub fn number(&self) -> Result<f64, ApiError> {
        if self.json_type() != JsonType::Number {
            return Err(self.wrong_type("a number"));
        }
        self.raw.get().parse().map_err(|_| self.wrong_type("a number"))
    }

    /// An integer from `min` to `max`; a number like 1.0 or 1e3 is one too, as in JSON Schema.
    pub fn integer(&self, min: i64, max: i64) -> Result<i64, ApiError> {
        if self.json_type() != JsonType::Number {
            return Err(self.wrong_type("an integer"));
        }
        let value = self.raw.get().parse::<i128>().or_else(|_| {
            let value = self.number()?;
            if value.fract() == 0.0 { Ok(value as i128) } else { Err(self.wrong_type("an integer")) }
        })?;
        if value < i128::from(min) {
            return Err(ApiError::integer_below_min_value(self.path(), min));
        }
        if value > i128::from(max) {
            return Err(ApiError::integer_above_max_value(self.path(), max));
        }
        Ok(value as i64)
    }

    /// Calls `each` with every element of an array, in order.
    ///
    /// # Errors
    /// `invalid_type` where it is no array, `array_above_max_length`, or what `each` gives.
    pub fn elements<'s>(
        &'s self,
        max: usize,
        mut each: impl FnMut(usize, Node<'a, 's>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        if self.json_type() != JsonType::Array {
            return Err(self.wrong_type("an array"));
        }
        let mut error = None;
        let mut each = |idx: usize, raw: &'a RawValue| {
            if idx >= max {
                return Err(ApiError::array_above_max_length(self.path(), max));
            }
            each(idx, Node { raw, path: Path { parent: Some(&self.path), step: Step::Index(idx) } })
        };
        let visitor = Walk { each_element: &mut each, each_member: &mut |_, _| Ok(()), error: &mut error };
        let outcome = serde_json::Deserializer::from_str(self.raw.get()).deserialize_seq(visitor);
        finish(outcome, error)
    }

    /// Calls `each` with every member of an object, in order; a repeated key comes repeatedly.
    ///
    /// # Errors
    /// `invalid_type` where it is no object, `object_above_max_properties`, or what `each` gives.
    pub fn members(
        &self,
        max: usize,
        mut each: impl FnMut(&str, Node<'a, '_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        if self.json_type() != JsonType::Object {
            return Err(self.wrong_type("an object"));
        }
        let mut error = None;
        let mut n_members = 0;
        let mut each = |key: &str, raw: &'a RawValue| {
            n_members += 1;
            if n_members > max {
                return Err(self.too_many_members(max));
            }
            each(key, Node { raw, path: Path { parent: Some(&self.path), step: Step::Key(key) } })
        };
        let visitor = Walk { each_element: &mut |_, _| Ok(()), each_member: &mut each, error: &mut error };
        let outcome = serde_json::Deserializer::from_str(self.raw.get()).deserialize_map(visitor);
        finish(outcome, error)
    }

    /// The value as a tree, if it has at most `max_values` values in it: a tree takes some 100 bytes a value.
    ///
    /// # Errors
    /// `schema_too_complex`.
    pub fn tree(&self, max_values: usize) -> Result<Value, ApiError> {
        if n_values_at_most(self.raw.get()) > max_values {
            return Err(ApiError::schema_too_complex(self.path()));
        }
        serde_json::from_str(self.raw.get()).map_err(syntax)
    }

    /// `invalid_type` at this value; `expected` with article.
    pub fn wrong_type(&self, expected: &str) -> ApiError {
        ApiError::invalid_type(self.path(), expected, self.found())
    }

    fn found(&self) -> &'static str {
        match self.json_type() {
            JsonType::Null => "null",
            JsonType::Boolean => "a boolean",
            JsonType::Number if self.raw.get().contains(['.', 'e', 'E']) => "a decimal number",
            JsonType::Number => "an integer",
            JsonType::String => "a string",
            JsonType::Array => "an array",
            JsonType::Object => "an object",
        }
    }

    fn too_many_members(&self, max: usize) -> ApiError {
        let is_body = matches!(self.path.step, Step::Body);
        let path = if is_body { None } else { Some(self.path()) };
        ApiError::object_above_max_properties(path, max)
    }
}

impl Path<'_> {
    fn write(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(out);
        }
        match self.step {
            Step::Body => {}
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&echo(key));
            }
            Step::Index(idx) => out.push_str(&format!("[{idx}]")),
        }
    }
}

/// Walks one array or object and stops at the first error, which serde itself could not carry.
struct Walk<'f, 'a> {
    each_element: &'f mut dyn FnMut(usize, &'a RawValue) -> Result<(), ApiError>,
    each_member: &'f mut dyn FnMut(&str, &'a RawValue) -> Result<(), ApiError>,
    error: &'f mut Option<ApiError>,
}

impl<'a> Visitor<'a> for Walk<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array or object")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut idx = 0;
        while let Some(raw) = seq.next_element::<&'a RawValue>()? {
            if let Err(error) = (self.each_element)(idx, raw) {
                *self.error = Some(error);
                return Err(A::Error::custom("stopped"));
            }
            idx += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Text)? {
            let raw = map.next_value::<&'a RawValue>()?;
            if let Err(error) = (self.each_member)(&key, raw) {
                *self.error = Some(error);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A string that is copied only where it has escapes.
struct Text;

impl<'a> DeserializeSeed<'a> for Text {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Cow<'a, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Text {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

fn decode(raw: &RawValue) -> Result<Cow<'_, str>, ApiError> {
    Text.deserialize(&mut serde_json::Deserializer::from_str(raw.get())).map_err(syntax)
}

fn finish(outcome: serde_json::Result<()>, error: Option<ApiError>) -> Result<(), ApiError> {
    match error {
        Some(error) => Err(error),
        None => outcome.map_err(syntax),
    }
}

fn syntax(error: serde_json::Error) -> ApiError {
    ApiError::invalid_json("syntax error", error.line(), error.column())
}

/// An upper bound of the number of values: every value but the first follows a comma, colon or bracket.
fn n_values_at_most(json: &str) -> usize {
    let mut n_values = 1;
    let mut in_string = false;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => drop(bytes.next()),
            b',' | b':' | b'[' | b'{' if !in_string => n_values += 1,
            _ => {}
        }
    }
    n_values
}
