//! The environment of chat templates in transformers, built on minijinja. Does not know conversations.

use std::sync::Arc;

use jiff::{Timestamp, Zoned, tz::TimeZone};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, StringInput, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, filters};

use super::limits::{Limits, PrintedBytes, RefusedByTemplate, out_of_memory};
use super::{percent, python_json, python_strings, source};
use crate::disguise::Disguise;
use crate::error::TemplateError;

/// The name of the compiled template in the environment.
pub(super) const TEMPLATE: &str = "chat_template";

/// An environment with `template` compiled; [`for_request`] adds the parts that depend on a request.
pub(super) fn compile(template: &str) -> Result<Environment<'static>, TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.map_err(|error| TemplateError::Syntax(error.to_string()))?;
    let mut env = Environment::new();
    env.set_syntax(syntax);
    env.set_debug(false);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python_method);
    python_strings::add_filters(&mut env);
    // Placeholders, so that templates compile; each request replaces them by versions with its limits.
    python_strings::add_bounded_filters(&mut env, Limits::for_input(0, 0));
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(RefusedByTemplate(message)))
    });
    env.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
            )
    });
    // As in Python, and unlike in minijinja, `none` is not iterable: templates test this before they use a length.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // A placeholder, so that the template compiles; each request replaces it.
    env.add_filter(source::CHECK_FILTER, |value: Value| value);
    percent::add_filter(&mut env);
    env.add_template_owned(TEMPLATE, source::prepare(&percent::rewritten(template)))
        .map_err(|error| TemplateError::Syntax(error.to_string()))?;
    Ok(env)
}

/// The environment of one rendering: `compiled` with the request's filters, functions and limits.
pub(super) fn for_request(
    compiled: &Environment<'static>,
    limits: Limits,
    disguise: &Arc<Disguise>,
    now_unix_s: Option<i64>,
) -> Environment<'static> {
    let mut env = compiled.clone();
    env.set_fuel(Some(limits.n_steps));
    env.add_filter(source::CHECK_FILTER, move |value: Value| limits.check(value));
    let printed = PrintedBytes::new(limits);
    python_strings::add_bounded_filters(&mut env, limits);
    env.set_formatter(move |out, _state, value| {
        let write = |text: &str, out: &mut minijinja::Output<'_>| {
            printed.add(text.len())?;
            out.write_str(text).map_err(|_| Error::new(ErrorKind::WriteFailure, "output is full"))
        };
        match value.as_str() {
            Some(text) => write(text, out),
            None => write(&value.to_string(), out),
        }
    });
    let disguise = Arc::clone(disguise);
    env.add_filter("tojson", move |value: &Value, kwargs: Kwargs| {
        python_json::to_json(value, &kwargs, &disguise, limits.n_bytes)
    });
    env.add_filter("replace", move |text: StringInput<'_>, from: StringInput<'_>, to: StringInput<'_>| {
        replace(text.as_str(), from.as_str(), to.as_str(), None, limits)
    });
    env.add_filter(
        "join",
        move |values: &Value, joiner: Option<StringInput<'_>>, attribute: Option<&str>| {
            join(values, joiner.as_ref().map_or("", |joiner| joiner.as_str()), attribute, limits)
        },
    );
    // Both create as many elements as their arguments say.
    env.add_filter("batch", move |state: &State<'_, '_>, values: Value, n: usize, filler: Option<Value>| {
        if n > limits.n_elements() { Err(out_of_memory()) } else { filters::batch(state, values, n, filler) }
    });
    env.add_filter("slice", move |state: &State<'_, '_>, values: Value, n: usize, filler: Option<Value>| {
        if n > limits.n_elements() { Err(out_of_memory()) } else { filters::slice(state, values, n, filler) }
    });
    env.set_unknown_method_callback(move |state, value, method, args| {
        bounded_method(limits, state, value, method, args)
    });
    env.add_function("strftime_now", move |format: &str| strftime(now_unix_s, format));
    env
}

/// The date in the form `format`, in the server's local time if the system has a time zone.
fn strftime(now_unix_s: Option<i64>, format: &str) -> Result<String, Error> {
    let failed = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let now = match now_unix_s {
        Some(seconds) => Timestamp::from_second(seconds).map_err(failed)?.to_zoned(TimeZone::UTC),
        None => Zoned::now(),
    };
    jiff::fmt::strtime::format(format, &now).map_err(failed)
}

fn replace(text: &str, from: &str, to: &str, count: Option<usize>, limits: Limits) -> Result<String, Error> {
    let n_found = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    if n_found.saturating_mul(to.len()).saturating_add(text.len()) > limits.n_bytes.saturating_mul(2) {
        return Err(out_of_memory());
    }
    Ok(count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)))
}

fn join(values: &Value, joiner: &str, attribute: Option<&str>, limits: Limits) -> Result<String, Error> {
    let mut joined = String::new();
    if values.is_undefined() {
        return Ok(joined);
    }
    for (idx, value) in values.try_iter()?.checked().enumerate() {
        let mut value = value?;
        for name in attribute.iter().flat_map(|path| path.split('.')) {
            value = value.get_attr(name)?;
        }
        if idx > 0 {
            joined.push_str(joiner);
        }
        match value.as_str() {
            Some(text) => joined.push_str(text),
            None => joined.push_str(&value.to_string()),
        }
        if joined.len() > limits.n_bytes {
            return Err(out_of_memory());
        }
    }
    Ok(joined)
}

/// Methods whose results can be much larger than their input are bounded; all others are unchanged.
fn bounded_method(
    limits: Limits,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), method) {
        (Some(text), "replace") => {
            let (from, to, count): (&str, &str, Option<i64>) = from_args(args)?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            replace(text, from, to, count, limits).map(Value::from)
        }
        (Some(joiner), "join") => {
            let (values,): (&Value,) = from_args(args)?;
            join(values, joiner, None, limits).map(Value::from)
        }
        (Some(text), _) => match python_strings::method(text, method, args, limits) {
            Some(answer) => answer,
            None => python_method(state, value, method, args),
        },
        _ => python_method(state, value, method, args),
    }
}

/// Methods of Python's strings that templates use and minijinja-contrib lacks.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args);
    };
    let cut = |at: Option<usize>, separator: &str, whole_first: bool| match at {
        Some(at) => (text[..at].to_owned(), separator.to_owned(), text[at + separator.len()..].to_owned()),
        None if whole_first => (text.to_owned(), String::new(), String::new()),
        None => (String::new(), String::new(), text.to_owned()),
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(Value::from(cut(text.find(separator), separator, true)))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(Value::from(cut(text.rfind(separator), separator, false)))
        }
        "rsplit" => {
            let (separator, max): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let n_parts = max.and_then(|max| usize::try_from(max).ok()).map_or(usize::MAX, |max| max + 1);
            let mut parts: Vec<Value> = text.rsplitn(n_parts, separator).map(Value::from).collect();
            parts.reverse();
            Ok(Value::from(parts))
        }
        "index" => {
            let (needle,): (&str,) = from_args(args)?;
            let at = text
                .find(needle)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Ok(Value::from(text[..at].chars().count()))
        }
        "casefold" => Ok(Value::from(text.to_lowercase())),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}
