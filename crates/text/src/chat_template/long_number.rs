//! Numbers for templates that exceed the template engine's number types. Does not know where they occur.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value};

/// An integer of more than 127 bits, printed with all its digits as in Python.
#[derive(Debug)]
pub(super) struct LongInteger(pub(super) String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses a number like Python: an integer of any length, or the nearest double.
pub(super) fn long_number(text: &str) -> Value {
    if text.contains(['.', 'e', 'E']) {
        return Value::from(text.parse().unwrap_or(f64::NAN));
    }
    match text.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(LongInteger(text.to_owned())),
    }
}
