//! Serde visitors for bodies: they walk one array or object, or decode one string. Do not know types and
//! paths.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Walks one array or object and stops at the first error of the callback, which serde itself could not
/// carry.
pub(super) struct Walk<'f, 'a> {
    pub(super) each_element: &'f mut dyn FnMut(usize, &'a RawValue) -> Result<(), ApiError>,
    pub(super) each_member: &'f mut dyn FnMut(&str, &'a RawValue) -> Result<(), ApiError>,
    pub(super) error: &'f mut Option<ApiError>,
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

/// A string that is copied only if it contains escapes.
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

pub(super) fn decode(raw: &RawValue) -> Result<Cow<'_, str>, ApiError> {
    Text.deserialize(&mut serde_json::Deserializer::from_str(raw.get())).map_err(syntax)
}

pub(super) fn finish(outcome: serde_json::Result<()>, error: Option<ApiError>) -> Result<(), ApiError> {
    match error {
        Some(error) => Err(error),
        None => outcome.map_err(syntax),
    }
}

pub(super) fn syntax(error: serde_json::Error) -> ApiError {
    ApiError::invalid_json("syntax error", error.line(), error.column())
}

/// Size of the tree of some JSON.
pub(super) struct Extent {
    pub(super) n_values_at_most: usize,
    pub(super) depth: usize,
}

impl Extent {
    /// Counts commas, colons and brackets: every value but the first follows one.
    pub(super) fn of(json: &str) -> Self {
        let (mut n_values, mut depth, mut deepest, mut in_string) = (1, 0_usize, 0, false);
        let mut bytes = json.bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => in_string = !in_string,
                b'\\' if in_string => drop(bytes.next()),
                b',' | b':' if !in_string => n_values += 1,
                b'[' | b'{' if !in_string => {
                    n_values += 1;
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        Self { n_values_at_most: n_values, depth: deepest }
    }
}
