//! How a body is read, and what of it has no effect: shared by all values of one body. Does not know
//! parameters.

use std::cell::RefCell;

use super::Node;
use crate::error::ApiError;
use crate::ignored::IgnoredParameters;

/// The state of reading one body.
#[derive(Debug, Default)]
pub struct Reading {
    is_strict: bool,
    ignored: RefCell<IgnoredParameters>,
}

impl Reading {
    /// The beginning. A strict one refuses unknown keys, others ignore and note them.
    pub fn new(is_strict: bool) -> Self {
        Self { is_strict, ignored: RefCell::default() }
    }

    /// Parameters without effect.
    pub fn into_ignored(self) -> IgnoredParameters {
        self.ignored.into_inner()
    }
}

impl Node<'_, '_> {
    /// Whether unknown keys are refused; also for a body that is read without a [`Reading`].
    pub fn is_strict(&self) -> bool {
        self.reading.is_none_or(|reading| reading.is_strict)
    }

    /// Notes that this value has no effect.
    pub fn ignore(&self) {
        self.ignore_as(&self.pattern());
    }

    /// Notes that the parameter `name` has no effect.
    pub fn ignore_as(&self, name: &str) {
        if let Some(reading) = self.reading {
            reading.ignored.borrow_mut().add(name);
        }
    }

    /// Ignores the value of a key that is not known. One that is null asks for nothing and is not noted.
    ///
    /// # Errors
    /// `unknown_parameter` where the reading is strict.
    pub fn ignore_unknown(&self) -> Result<(), ApiError> {
        if self.is_strict() {
            return Err(ApiError::unknown_parameter(self.path()));
        }
        if !self.is_null() {
            self.ignore();
        }
        Ok(())
    }

    /// The path without indices, like `messages[].content`.
    fn pattern(&self) -> String {
        let mut out = String::new();
        self.path.write(&mut out, false);
        out
    }
}
