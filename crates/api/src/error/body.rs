//! Faults of a request's body: its JSON, its types, its values. Does not know endpoints.

use std::borrow::Cow;

use super::{ApiError, echo};

/// Errors about JSON and the values in it.
impl ApiError {
    /// The body is not valid JSON. `line` and `column` count from 1.
    pub fn invalid_json(reason: &str, line: usize, column: usize) -> Self {
        let message = format!("The request body is not valid JSON: {reason} at line {line} column {column}.");
        Self::bad_request("invalid_json", message)
    }

    /// Moderation rules refuse the text of `param`, which falls in this category.
    pub fn content_filter(param: &str, category: &str) -> Self {
        let message = format!("The content of '{param}' is not allowed by this server: {}.", echo(category));
        Self::bad_request("content_filter", message).with_param(param)
    }

    /// The body is not UTF-8. `offset` is that of the first invalid byte.
    pub fn invalid_utf8(offset: usize) -> Self {
        let message = format!("The request body is not valid UTF-8: the first fault is at byte {offset}.");
        Self::bad_request("invalid_utf8", message)
    }

    /// JSON nested more deeply than `max`. `line` and `column` count from 1.
    pub fn json_too_deep(max: usize, line: usize, column: usize) -> Self {
        let message = format!(
            "The request body is nested too deeply: more than {max} levels at line {line} column {column}."
        );
        Self::bad_request("json_too_deep", message)
    }

    /// A `\u` escape is half of a surrogate pair, so the string is not valid Unicode. The caller adds
    /// `param`.
    pub fn invalid_unicode(line: usize, column: usize) -> Self {
        let message =
            format!("The request body has a lone surrogate in a \\u escape at line {line} column {column}.");
        Self::bad_request("invalid_unicode", message)
    }

    /// A number of more than `max_chars` characters.
    pub fn number_too_long(max_chars: usize, line: usize, column: usize) -> Self {
        let message = format!(
            "The request body has a number of more than {max_chars} characters at line {line} column {column}."
        );
        Self::bad_request("number_too_long", message)
    }

    /// The body is JSON, but not an object. `found` has its article ("an array").
    pub fn not_an_object(found: &str) -> Self {
        let message = format!("Invalid request body: expected an object, but got {found} instead.");
        Self::bad_request("invalid_type", message)
    }

    /// A known key occurs twice in an object.
    pub fn duplicate_key(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::bad_request("duplicate_key", format!("Duplicate parameter: '{}'.", echo(&param)))
            .with_param(param)
    }

    /// A required parameter is absent or null.
    pub fn missing_required_parameter(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Missing required parameter: '{}'.", echo(&param));
        Self::bad_request("missing_required_parameter", message).with_param(param)
    }

    /// A value has the wrong JSON type. `expected` and `found` have their article ("a string").
    pub fn invalid_type(param: impl Into<String>, expected: &str, found: &str) -> Self {
        let param = param.into();
        let message =
            format!("Invalid type for '{}': expected {expected}, but got {found} instead.", echo(&param));
        Self::bad_request("invalid_type", message).with_param(param)
    }

    /// A value of the right type is invalid. `reason` is a whole sentence.
    pub fn invalid_value(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::bad_request("invalid_value", reason.into()).with_param(param)
    }

    /// A value is not one of the allowed strings.
    pub fn not_one_of(param: impl Into<String>, found: &str, allowed: &[&str]) -> Self {
        let list = allowed.iter().map(|a| format!("'{a}'")).collect::<Vec<_>>().join(", ");
        let message = format!("Invalid value: '{}'. Supported values are: {list}.", echo(found));
        Self::invalid_value(param, message)
    }

    /// An array is empty but needs an element.
    pub fn empty_array(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': empty. Expected at least one element.", echo(&param));
        Self::bad_request("empty_array", message).with_param(param)
    }

    /// An array has too many elements.
    pub fn array_above_max_length(param: impl Into<String>, max: usize) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': array too long. Expected at most {max} elements.", echo(&param));
        Self::bad_request("array_above_max_length", message).with_param(param)
    }

    /// An object has too many members. `param` is `None` for the body itself.
    pub fn object_above_max_properties(param: Option<String>, max: usize) -> Self {
        let name = param.as_deref().map_or(Cow::Borrowed("request body"), echo);
        let message = format!("Invalid '{name}': too many properties. Expected at most {max}.");
        let error = Self::bad_request("object_above_max_properties", message);
        param.into_iter().fold(error, Self::with_param)
    }

    /// A string is longer than `max_bytes` bytes of UTF-8.
    pub fn string_above_max_length(param: impl Into<String>, max_bytes: usize) -> Self {
        let param = param.into();
        let message =
            format!("Invalid '{}': string too long. Expected at most {max_bytes} bytes.", echo(&param));
        Self::bad_request("string_above_max_length", message).with_param(param)
    }

    /// A map such as `logit_bias` has too many entries.
    pub fn too_many(param: impl Into<String>, max: usize) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': too many entries. Expected at most {max}.", echo(&param));
        Self::bad_request("too_many", message).with_param(param)
    }

    /// An integer is below the minimum.
    pub fn integer_below_min_value(param: impl Into<String>, min: i64) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': integer below minimum value. Expected >= {min}.", echo(&param));
        Self::bad_request("integer_below_min_value", message).with_param(param)
    }

    /// An integer is above the maximum.
    pub fn integer_above_max_value(param: impl Into<String>, max: i64) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': integer above maximum value. Expected <= {max}.", echo(&param));
        Self::bad_request("integer_above_max_value", message).with_param(param)
    }

    /// A number is below its range. `bound` reads like ">= 0" or "> 0".
    pub fn decimal_below_min_value(param: impl Into<String>, bound: &str) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': decimal below minimum value. Expected {bound}.", echo(&param));
        Self::bad_request("decimal_below_min_value", message).with_param(param)
    }

    /// A number is above its range.
    pub fn decimal_above_max_value(param: impl Into<String>, max: f64) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': decimal above maximum value. Expected <= {max}.", echo(&param));
        Self::bad_request("decimal_above_max_value", message).with_param(param)
    }

    /// A token id is outside of the model's vocabulary or, without `vocabulary_size`, of any model's.
    pub fn invalid_token(param: impl Into<String>, vocabulary_size: Option<u32>) -> Self {
        let param = param.into();
        let range = vocabulary_size.map_or_else(String::new, |size| format!(" below {size}"));
        let message = format!("Invalid '{}': token ids are non-negative integers{range}.", echo(&param));
        Self::bad_request("invalid_token", message).with_param(param)
    }

    /// Two parameters exclude each other.
    pub fn mutually_exclusive(param: impl Into<String>, other: &str) -> Self {
        let param = param.into();
        let message = format!("'{}' and '{}' cannot be used together.", echo(&param), echo(other));
        Self::bad_request("mutually_exclusive", message).with_param(param)
    }

    /// A parameter is unknown (strict mode), or never accepted.
    pub fn unknown_parameter(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Unknown parameter: '{}'.", echo(&param));
        Self::bad_request("unknown_parameter", message).with_param(param)
    }

    /// A known parameter, or one of its values, is not supported. `reason` is a whole sentence.
    pub fn unsupported_parameter(param: impl Into<String>, reason: &str) -> Self {
        let param = param.into();
        let message = format!("Unsupported parameter: '{}'. {reason}", echo(&param));
        Self::bad_request("unsupported_parameter", message).with_param(param)
    }

    /// Two tools have the same name.
    pub fn duplicate_name(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': this name is already taken by another tool.", echo(&param));
        Self::bad_request("duplicate_name", message).with_param(param)
    }

    /// A tool's `parameters` are not a JSON Schema of an object.
    pub fn invalid_function_parameters(param: impl Into<String>, reason: &str) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': {reason}", echo(&param));
        Self::bad_request("invalid_function_parameters", message).with_param(param)
    }

    /// A part of the body has more values than the server accepts.
    pub fn schema_too_complex(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("Invalid '{}': too large or too deeply nested.", echo(&param));
        Self::bad_request("schema_too_complex", message).with_param(param)
    }
}
