//! A request's parameters as a table. One row has a parameter's name, type, range, target and description.
//! Reading, range checks and the OpenAPI document all use the row, so they cannot disagree. Does not know
//! which parameters an endpoint has.

use std::sync::Arc;

use super::error::ApiError;
use super::ignored::IgnoredParameters;
use super::image_hosts::ImageHosts;
use super::json::{JsonType, MAX_MEMBERS, Node, Reading};
use super::model_name::{MAX_MODEL_NAME_BYTES, model_name};

/// The operator's settings for reading requests.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Whether unknown parameters, also those of nested objects, are errors instead of being ignored.
    pub strict_parameters: bool,
    /// Maximum number of stop strings of a request.
    pub max_stop_strings: usize,
    /// Lowest priority value of a client; lower values are raised to it.
    pub most_urgent_priority: i32,
    /// Whether some model takes images; otherwise they are refused before they are read.
    pub takes_images: bool,
    /// Hosts that URLs of images may name beside public ones.
    pub image_hosts: Arc<ImageHosts>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            strict_parameters: false,
            max_stop_strings: 4,
            most_urgent_priority: 0,
            takes_images: false,
            image_hosts: Arc::default(),
        }
    }
}

/// One parameter of a request of type `T`. `null` counts as absent.
#[derive(Debug)]
pub struct Field<T: 'static> {
    /// Key of the parameter.
    pub name: &'static str,
    /// Description in the OpenAPI document.
    pub about: &'static str,
    /// Type of the value and its target.
    pub kind: Kind<T>,
}

/// Creates a parameter, in one line of a table.
pub(super) const fn field<T>(name: &'static str, kind: Kind<T>, about: &'static str) -> Field<T> {
    Field { name, about, kind }
}

/// Type of a parameter's value and its target in the request.
pub enum Kind<T> {
    /// A boolean.
    Boolean(fn(&mut T) -> &mut Option<bool>),
    /// An integer in a closed range.
    Integer(i64, i64, fn(&mut T) -> &mut Option<i64>),
    /// A number in a range.
    Number(Range, fn(&mut T) -> &mut Option<f32>),
    /// A string with a model's name.
    ModelName(fn(&mut T) -> &mut Option<String>),
    /// A string of at most this many bytes.
    Text(usize, fn(&mut T) -> &mut Option<String>),
    /// A value of this shape with a reader of its own.
    Custom(Shape, Read<T>),
    /// A value that is checked and then ignored.
    Ignored(Shape),
    /// Ignored; strict servers refuse it as unsupported, unless the predicate finds the value neutral.
    Hint(Shape, fn(&Node<'_, '_>) -> bool),
    /// Refused as unsupported, unless the predicate finds the value neutral.
    Refused(Shape, fn(&Node<'_, '_>) -> bool),
}

/// Reads a value into a request.
pub type Read<T> = fn(&mut T, &Node<'_, '_>, &ReadOptions) -> Result<(), ApiError>;

/// A range of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Minimum, or exclusive lower bound.
    pub min: f64,
    /// Whether `min` itself is excluded.
    pub above_min: bool,
    /// Largest accepted value.
    pub max: f64,
}

/// The part of a parameter's JSON Schema that this API needs.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A value of any type.
    Any,
    /// A boolean.
    Boolean,
    /// An integer in a closed range.
    Integer(i64, i64),
    /// A number in a range.
    Number(Range),
    /// A string of at most this many bytes.
    Text(usize),
    /// One of the listed strings.
    Choice(&'static [&'static str]),
    /// An array of at most this many elements of a shape.
    Array(usize, &'static Shape),
    /// An object.
    Object,
    /// Metadata: at most 16 strings of at most 512 bytes, with keys of at most 64 bytes.
    StringMap,
    /// A value of any of these shapes.
    AnyOf(&'static [Shape]),
}

impl<T> std::fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shape().fmt(f)
    }
}

impl Range {
    /// All numbers from `min` to `max`.
    pub const fn closed(min: f64, max: f64) -> Self {
        Self { min, above_min: false, max }
    }

    /// All numbers above `min` up to `max`.
    pub const fn above(min: f64, max: f64) -> Self {
        Self { min, above_min: true, max }
    }

    /// Reads a number in the range.
    pub fn read(&self, node: &Node<'_, '_>) -> Result<f64, ApiError> {
        let value = node.number()?;
        self.check(value, node)?;
        Ok(value)
    }

    /// Reads a number and rounds it to single precision, in which it must still be in the range: 1e-50 is
    /// above 0, but its rounding is not.
    pub fn read_f32(&self, node: &Node<'_, '_>) -> Result<f32, ApiError> {
        let value = self.read(node)? as f32;
        self.check(f64::from(value), node)?;
        Ok(value)
    }

    /// Whether a number is in the range; false for NaN.
    pub fn contains(&self, value: f64) -> bool {
        !self.is_below(value) && value <= self.max
    }

    fn is_below(&self, value: f64) -> bool {
        value < self.min || (self.above_min && value == self.min)
    }

    fn check(&self, value: f64, node: &Node<'_, '_>) -> Result<(), ApiError> {
        if self.is_below(value) {
            let sign = if self.above_min { ">" } else { ">=" };
            return Err(ApiError::decimal_below_min_value(node.path(), &format!("{sign} {}", self.min)));
        }
        if value > self.max {
            return Err(ApiError::decimal_above_max_value(node.path(), self.max));
        }
        Ok(())
    }
}

impl<T> Kind<T> {
    /// The shape in the JSON Schema.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Boolean(_) => Shape::Boolean,
            Self::Integer(min, max, _) => Shape::Integer(*min, *max),
            Self::Number(range, _) => Shape::Number(*range),
            Self::ModelName(_) => Shape::Text(MAX_MODEL_NAME_BYTES),
            Self::Text(max_bytes, _) => Shape::Text(*max_bytes),
            Self::Custom(shape, _) | Self::Ignored(shape) => *shape,
            Self::Hint(shape, _) | Self::Refused(shape, _) => *shape,
        }
    }
}

impl<T> Field<T> {
    /// Reads a non-null value into `target`.
    pub fn read(&self, target: &mut T, node: &Node<'_, '_>, options: &ReadOptions) -> Result<(), ApiError> {
        match &self.kind {
            Kind::Boolean(slot) => *slot(target) = Some(node.boolean()?),
            Kind::Integer(min, max, slot) => *slot(target) = Some(node.integer(*min, *max)?),
            Kind::Number(range, slot) => *slot(target) = Some(range.read_f32(node)?),
            Kind::ModelName(slot) => *slot(target) = Some(model_name(node)?),
            Kind::Text(max_bytes, slot) => *slot(target) = Some(node.string(*max_bytes)?.into_owned()),
            Kind::Custom(_, read) => read(target, node, options)?,
            Kind::Ignored(shape) => {
                node.ignore();
                shape.check(node)?;
            }
            Kind::Hint(shape, asks_for_nothing) | Kind::Refused(shape, asks_for_nothing) => {
                shape.check(node)?;
                let is_hint = matches!(self.kind, Kind::Hint(..)) && !node.is_strict();
                match asks_for_nothing(node) {
                    true => {}
                    false if is_hint => node.ignore(),
                    false => {
                        let reason = "This server does not support it.";
                        return Err(ApiError::unsupported_parameter(node.path(), reason));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Shape {
    /// Whether a value has the shape.
    pub fn check(&self, node: &Node<'_, '_>) -> Result<(), ApiError> {
        match *self {
            Self::Any => Ok(()),
            Self::Boolean => node.boolean().map(drop),
            Self::Integer(min, max) => node.integer(min, max).map(drop),
            Self::Number(range) => range.read(node).map(drop),
            Self::Text(max_bytes) => node.string(max_bytes).map(drop),
            Self::Choice(allowed) => node.one_of(allowed).map(drop),
            Self::Array(max, shape) => node.elements(max, |_, element| shape.check(&element)),
            Self::Object if node.json_type() == JsonType::Object => Ok(()),
            Self::Object => Err(node.wrong_type("an object")),
            Self::StringMap => {
                let mut keys: Vec<String> = Vec::new();
                node.members(16, |key, value| {
                    if key.len() > 64 {
                        return Err(ApiError::string_above_max_length(value.path(), 64));
                    }
                    if keys.iter().any(|other| other == key) {
                        return Err(ApiError::duplicate_key(value.path()));
                    }
                    keys.push(key.to_owned());
                    value.string(512).map(drop)
                })
            }
            Self::AnyOf(shapes) => {
                let mut outcome = Ok(());
                for shape in shapes {
                    outcome = shape.check(node);
                    if outcome.is_ok() {
                        break;
                    }
                }
                outcome
            }
        }
    }
}

/// Keys that would redirect a request or carry secrets. They are always refused, never ignored.
const FORBIDDEN: &[&str] = &[
    "api_base",
    "api_key",
    "api_type",
    "api_version",
    "base_url",
    "custom_llm_provider",
    "default_headers",
    "default_query",
    "extra_body",
    "extra_headers",
    "extra_query",
    "headers",
    "http_client",
    "organization",
    "proxies",
    "proxy",
];

/// A part of a request with its table of parameters.
pub struct Bound<'t, T: 'static> {
    /// The parameters that the body may have.
    pub fields: &'static [Field<T>],
    /// The part of the request that values are written to.
    pub target: &'t mut T,
}

/// A [`Bound`] of any request type.
pub trait Part {
    /// The index of the parameter with this name.
    fn position(&self, name: &str) -> Option<usize>;

    /// Reads a non-null value into the parameter at `idx`.
    fn read(&mut self, idx: usize, node: &Node<'_, '_>, options: &ReadOptions) -> Result<(), ApiError>;
}

impl<T> Part for Bound<'_, T> {
    fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    fn read(&mut self, idx: usize, node: &Node<'_, '_>, options: &ReadOptions) -> Result<(), ApiError> {
        self.fields[idx].read(self.target, node, options)
    }
}

/// Reads a request's body into the parts of the request. Returns the parameters without effect.
///
/// # Errors
/// The errors of [`Node::body`], `duplicate_key`, `unknown_parameter`, and those of reading a parameter.
pub fn read_body(
    body: &[u8],
    parts: &mut [&mut dyn Part],
    options: &ReadOptions,
) -> Result<IgnoredParameters, ApiError> {
    let reading = Reading::new(options.strict_parameters)
        .with_images(options.takes_images, options.image_hosts.clone());
    let mut seen = Vec::new();
    Node::body_of(body, &reading)?.members(MAX_MEMBERS, |key, value| {
        let found = parts.iter().enumerate().find_map(|(part, p)| Some((part, p.position(key)?)));
        let Some((part, idx)) = found else {
            if FORBIDDEN.contains(&key) {
                return Err(ApiError::unknown_parameter(value.path()));
            }
            return value.ignore_unknown();
        };
        if seen.contains(&(part, idx)) {
            return Err(ApiError::duplicate_key(value.path()));
        }
        seen.push((part, idx));
        if value.is_null() { Ok(()) } else { parts[part].read(idx, &value, options) }
    })?;
    Ok(reading.into_ignored())
}
