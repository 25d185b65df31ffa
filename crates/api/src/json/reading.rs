//! Strictness and ignored parameters of reading a body, shared by all its values. Does not know parameters.

use std::cell::RefCell;
use std::sync::Arc;

use super::Node;
use crate::error::ApiError;
use crate::ignored::IgnoredParameters;
use crate::image_hosts::ImageHosts;

/// State of reading one body.
#[derive(Debug, Default)]
pub struct Reading {
    is_strict: bool,
    takes_images: bool,
    image_hosts: Arc<ImageHosts>,
    ignored: RefCell<IgnoredParameters>,
}

impl Reading {
    /// Creates the initial state. In strict mode, unknown keys are refused; otherwise they are ignored and
    /// recorded.
    pub fn new(is_strict: bool) -> Self {
        Self { is_strict, ..Self::default() }
    }

    /// Sets whether images are read; otherwise they are refused. Their URLs may name the hosts of the list as
    /// well as public ones.
    pub fn with_images(self, takes_images: bool, image_hosts: Arc<ImageHosts>) -> Self {
        Self { takes_images, image_hosts, ..self }
    }

    /// Parameters without effect.
    pub fn into_ignored(self) -> IgnoredParameters {
        self.ignored.into_inner()
    }
}

impl Node<'_, '_> {
    /// Whether unknown keys are refused; always true for a body that is read without a [`Reading`].
    pub fn is_strict(&self) -> bool {
        self.reading.is_none_or(|reading| reading.is_strict)
    }

    /// Whether images are read; otherwise they are refused.
    pub fn takes_images(&self) -> bool {
        self.reading.is_some_and(|reading| reading.takes_images)
    }

    /// Hosts that URLs of images may name beside public ones.
    pub fn image_hosts(&self) -> Option<&ImageHosts> {
        self.reading.map(|reading| &*reading.image_hosts)
    }

    /// Records that this value has no effect.
    pub fn ignore(&self) {
        self.ignore_as(&self.pattern());
    }

    /// Records that the parameter `name` has no effect.
    pub fn ignore_as(&self, name: &str) {
        if let Some(reading) = self.reading {
            reading.ignored.borrow_mut().add(name);
        }
    }

    /// Ignores the value of an unknown key, and records it unless it is null.
    ///
    /// # Errors
    /// `unknown_parameter` in strict mode.
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
