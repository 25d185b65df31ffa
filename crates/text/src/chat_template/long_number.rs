//! Numbers for templates that no type of the template engine holds. Does not know where they stand.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value};

/// An integer of more than 127 bits, which Python writes with all its digits.
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

/// A number as Python reads it: an integer of any length, or the nearest double.
pub(super) fn long_number(text: &str) -> Value {
    if text.contains(['.', 'e', 'E']) {
        return Value::from(text.parse().unwrap_or(f64::NAN));
    }
    match text.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(LongInteger(text.to_owned())),
    }
}
