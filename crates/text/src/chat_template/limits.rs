//! The limits of a template: steps, nesting, and bytes of each value and of the output. Does not know
//! conversations.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::error::TemplateError;

/// Marks an error as exceeded memory, as opposed to the template's own errors.
#[derive(Debug, thiserror::Error)]
#[error("memory limit exceeded")]
pub(super) struct OutOfMemory;

/// Marks an error as raised by the template itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct RefusedByTemplate(pub(super) String);

/// Steps that any template may take, and further ones for each value of its input. A template that iterates
/// over all messages once for each message stays within this limit up to about a thousand messages.
const BASE_STEPS: u64 = 300_000;
const STEPS_PER_VALUE: u64 = 2_000;
const MAX_STEPS: u64 = 100_000_000;

/// Bytes of one value, and of the output, that any template may have, in addition to a multiple of its input.
const BASE_BYTES: usize = 4 << 20;
const INPUT_FACTOR: usize = 4;

/// Lists and maps nested deeper than this are refused when assigned: printing and dropping them recurses.
const MAX_NESTING: usize = 200;

/// Sums of lists up to this long are copied when they are assigned.
const MAX_COPIED: usize = 1024;

/// Maximum number of values inspected inside an assigned value.
const MAX_LOOKED_AT: usize = 256;

/// The limits of one rendering.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) n_steps: u64,
    pub(super) n_bytes: usize,
}

impl Limits {
    /// Limits for an input of this many JSON values and bytes.
    pub(super) fn for_input(n_values: usize, n_bytes: usize) -> Self {
        let n_steps =
            BASE_STEPS.saturating_add(STEPS_PER_VALUE.saturating_mul(n_values as u64)).min(MAX_STEPS);
        Self { n_steps, n_bytes: BASE_BYTES.saturating_add(n_bytes.saturating_mul(INPUT_FACTOR)) }
    }

    /// Number of list elements that take the same memory as the longest text.
    pub(super) fn n_elements(&self) -> usize {
        self.n_bytes / size_of::<Value>()
    }

    /// Returns `value` if it is within the limits; called for every assignment in a template.
    pub(super) fn check(&self, value: Value) -> Result<Value, Error> {
        let mut n_left = MAX_LOOKED_AT;
        self.look(&value, 0, &mut n_left)?;
        // minijinja represents the sum of two lists as a pair of both, so that repeated sums grow exponentially even if
        // the lists are empty.
        let is_sum = value.kind() == ValueKind::Iterable && value.len().is_some_and(|n| n <= MAX_COPIED);
        if is_sum {
            value.try_iter()?.checked().collect::<Result<Vec<_>, _>>().map(Value::from)
        } else {
            Ok(value)
        }
    }

    fn look(&self, value: &Value, depth: usize, n_left: &mut usize) -> Result<(), Error> {
        if depth > MAX_NESTING {
            return Err(Error::new(ErrorKind::InvalidOperation, "recursion limit exceeded"));
        }
        if let Some(text) = value.as_str() {
            return if text.len() > self.n_bytes { Err(out_of_memory()) } else { Ok(()) };
        }
        if value.len().is_some_and(|n| n > self.n_elements()) {
            return Err(out_of_memory());
        }
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
            return Ok(());
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            if *n_left == 0 {
                return Ok(());
            }
            *n_left -= 1;
            let item = if is_map { value.get_item(&item)? } else { item };
            self.look(&item, depth + 1, n_left)?;
        }
        Ok(())
    }
}

pub(super) fn out_of_memory() -> Error {
    Error::new(ErrorKind::InvalidOperation, "memory limit exceeded").with_source(OutOfMemory)
}

/// Counts the bytes that a template prints, captured or not.
#[derive(Debug, Clone)]
pub(super) struct PrintedBytes {
    n_bytes: Arc<AtomicUsize>,
    limit: usize,
}

impl PrintedBytes {
    /// Factor of the limit for all output, because captured output is counted again each time the capture is
    /// printed.
    const RECAPTURES: usize = 8;

    pub(super) fn new(limits: Limits) -> Self {
        Self {
            n_bytes: Arc::new(AtomicUsize::new(0)),
            limit: limits.n_bytes.saturating_mul(Self::RECAPTURES),
        }
    }

    pub(super) fn add(&self, n_bytes: usize) -> Result<(), Error> {
        if self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed) > self.limit {
            return Err(out_of_memory());
        }
        Ok(())
    }
}

/// The rendered text, up to a limit.
#[derive(Debug)]
pub(super) struct BoundedOutput {
    pub(super) bytes: Vec<u8>,
    pub(super) limit: usize,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buf.len() > self.limit {
            return Err(io::Error::other(OutOfMemory));
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Maps an error of minijinja to [`TemplateError`].
pub(super) fn classify(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Exhausted { limit: "steps" };
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(RefusedByTemplate(message)) = cause.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        let io_error = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if cause.is::<OutOfMemory>() || io_error.is_some_and(|inner| inner.is::<OutOfMemory>()) {
            return TemplateError::Exhausted { limit: "memory" };
        }
        if let Some(inner) = cause.downcast_ref::<Error>() {
            let detail = inner.detail().unwrap_or_default();
            if detail.contains("recursion limit") {
                return TemplateError::Exhausted { limit: "depth" };
            }
            if detail.contains("too large") || detail.contains("too many elements") {
                return TemplateError::Exhausted { limit: "memory" };
            }
        }
        source = cause.source();
    }
    TemplateError::Render(error.to_string())
}
