//! Strict reading of request bodies: typed values with their paths; only requested values are materialised.
//! Does not know which parameters there are.

mod budget;
mod place;
mod reading;
pub mod scan;
mod walk;

pub use budget::{MAX_TREE_VALUES, TreeBudget};
pub use reading::Reading;

use std::borrow::Cow;

use serde::Deserializer;
use serde_json::value::RawValue;

use self::walk::{Walk, decode, finish};
use crate::error::{ApiError, echo};

/// Maximum number of members of an object that is read key by key.
pub const MAX_MEMBERS: usize = 1024;

/// Maximum nesting of a value that is read as a tree.
pub const MAX_TREE_DEPTH: usize = 48;

/// Maximum bytes of a value that is read as a tree, strings included.
pub const MAX_TREE_BYTES: usize = 1 << 20;

/// A value in a body that [`scan::check`] accepted, still as text, with its path.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a, 'p> {
    raw: &'a RawValue,
    path: Path<'p>,
    reading: Option<&'p Reading>,
}

/// Path of a value, as a chain up to the body. Formatted only for errors.
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

/// Type of a JSON value.
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
    /// Checks a whole body, which must be an object.
    ///
    /// # Errors
    /// `invalid_utf8`, `invalid_json`, or `invalid_type` when it is not an object.
    pub fn body(body: &'a [u8]) -> Result<Self, ApiError> {
        Self::of(body, None)
    }
}

impl<'a, 'p> Node<'a, 'p> {
    /// Checks a body like [`Self::body`], with the strictness of `reading`.
    ///
    /// # Errors
    /// Errors of [`Self::body`].
    pub fn body_of(body: &'a [u8], reading: &'p Reading) -> Result<Self, ApiError> {
        Self::of(body, Some(reading))
    }

    fn of(body: &'a [u8], reading: Option<&'p Reading>) -> Result<Self, ApiError> {
        let node = Self { raw: scan::check(body)?, path: Path { parent: None, step: Step::Body }, reading };
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

    /// Whether the value is `null`.
    pub fn is_null(&self) -> bool {
        self.json_type() == JsonType::Null
    }

    /// The path, like `messages[2].content`; long or unusual keys are shortened and escaped.
    pub fn path(&self) -> String {
        let mut out = String::new();
        self.path.write(&mut out, true);
        out
    }

    /// The path of a member of this object.
    pub fn path_of(&self, key: &str) -> String {
        let mut out = String::new();
        let path = Path { parent: Some(&self.path), step: Step::Key(key) };
        path.write(&mut out, true);
        out
    }

    /// The value as JSON text.
    pub fn text(&self) -> &'a str {
        self.raw.get()
    }

    /// Reads a boolean.
    pub fn boolean(&self) -> Result<bool, ApiError> {
        match self.raw.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.wrong_type("a boolean")),
        }
    }

    /// Reads a string of at most `max_bytes` bytes when decoded.
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

    /// Reads one of the listed strings and returns its index; any other value is an `invalid_value`.
    pub fn one_of(&self, allowed: &[&str]) -> Result<usize, ApiError> {
        let text = match self.json_type() {
            JsonType::String => decode(self.raw)?,
            _ => Cow::Borrowed(self.raw.get()),
        };
        let is_string = self.json_type() == JsonType::String;
        let idx = allowed.iter().position(|a| is_string && *a == text);
        idx.ok_or_else(|| ApiError::not_one_of(self.path(), &text, allowed))
    }

    /// Reads a finite number.
    pub fn number(&self) -> Result<f64, ApiError> {
        if self.json_type() != JsonType::Number {
            return Err(self.wrong_type("a number"));
        }
        self.raw.get().parse().map_err(|_| self.wrong_type("a number"))
    }

    /// Reads an integer from `min` to `max`; 1.0 or 1e3 counts as an integer, as in JSON Schema.
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
    /// `invalid_type` if it is not an array, `array_above_max_length`, or errors of `each`.
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
            let path = Path { parent: Some(&self.path), step: Step::Index(idx) };
            each(idx, Node { raw, path, reading: self.reading })
        };
        let visitor = Walk { each_element: &mut each, each_member: &mut |_, _| Ok(()), error: &mut error };
        let outcome = serde_json::Deserializer::from_str(self.raw.get()).deserialize_seq(visitor);
        finish(outcome, error)
    }

    /// Calls `each` with every member of an object, in order; a repeated key is passed each time.
    ///
    /// # Errors
    /// `invalid_type` if it is not an object, `object_above_max_properties`, or errors of `each`.
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
            let path = Path { parent: Some(&self.path), step: Step::Key(key) };
            each(key, Node { raw, path, reading: self.reading })
        };
        let visitor = Walk { each_element: &mut |_, _| Ok(()), each_member: &mut each, error: &mut error };
        let outcome = serde_json::Deserializer::from_str(self.raw.get()).deserialize_map(visitor);
        finish(outcome, error)
    }

    /// Calls `each` with the members of an object that have one of the `known` keys (at most 64), at most
    /// once for each key. Other keys are ignored or, in strict mode, refused.
    ///
    /// # Errors
    /// `invalid_type` if it is not an object, `unknown_parameter`, `duplicate_key`, or errors of `each`.
    pub fn known_members(
        &self,
        known: &[&str],
        mut each: impl FnMut(&str, Node<'a, '_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let mut seen = 0_u64;
        self.members(usize::MAX, |key, value| {
            let Some(idx) = known.iter().position(|name| *name == key) else { return value.ignore_unknown() };
            if seen & (1 << idx) != 0 {
                return Err(ApiError::duplicate_key(value.path()));
            }
            seen |= 1 << idx;
            each(key, value)
        })
    }

    /// Reads members like [`Self::known_members`], but always refuses other keys, for an object in which
    /// they would change the answer.
    ///
    /// # Errors
    /// Errors of [`Self::known_members`].
    pub fn only_members(
        &self,
        known: &[&str],
        each: impl FnMut(&str, Node<'a, '_>) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        Node { reading: None, ..*self }.known_members(known, each)
    }

    /// Reads a token id; the size of the vocabulary is not known here.
    ///
    /// # Errors
    /// `invalid_type`, or `invalid_token` if no vocabulary could contain it.
    pub fn token_id(&self) -> Result<u32, ApiError> {
        match self.integer(i64::MIN, i64::MAX) {
            Ok(id) => u32::try_from(id).map_err(|_| ApiError::invalid_token(self.path(), None)),
            Err(error) if error.code() == "invalid_type" => Err(error),
            Err(_) => Err(ApiError::invalid_token(self.path(), None)),
        }
    }

    /// Reads a list of token ids.
    ///
    /// # Errors
    /// Errors of [`Self::elements`] and [`Self::token_id`].
    pub fn token_ids(&self, max: usize) -> Result<Vec<u32>, ApiError> {
        // Nearly every list has plain integers only. Others are read again, for the error or for numbers
        // like 1.0.
        if let Ok(tokens) = serde_json::from_str::<Vec<u32>>(self.raw.get())
            && tokens.len() <= max
        {
            return Ok(tokens);
        }
        let mut tokens = Vec::new();
        self.elements(max, |_, element| {
            tokens.push(element.token_id()?);
            Ok(())
        })?;
        Ok(tokens)
    }

    /// Whether it is an empty array or object.
    pub fn is_empty_container(&self) -> bool {
        let text = self.raw.get();
        matches!(self.json_type(), JsonType::Array | JsonType::Object)
            && text[1..text.len() - 1].trim().is_empty()
    }

    /// Stores `value` in `slot`, which must be empty.
    ///
    /// # Errors
    /// `duplicate_key`.
    pub fn put<T>(&self, slot: &mut Option<T>, value: T) -> Result<(), ApiError> {
        match slot.replace(value) {
            Some(_) => Err(ApiError::duplicate_key(self.path())),
            None => Ok(()),
        }
    }

    /// The error `invalid_type` for this value. `expected` has its article ("a string").
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
    /// Writes the path, with or without array indices.
    fn write(&self, out: &mut String, with_indices: bool) {
        if let Some(parent) = self.parent {
            parent.write(out, with_indices);
        }
        match self.step {
            Step::Body => {}
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(&echo(key));
            }
            Step::Index(idx) if with_indices => out.push_str(&format!("[{idx}]")),
            Step::Index(_) => out.push_str("[]"),
        }
    }
}
