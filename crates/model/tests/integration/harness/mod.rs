//! The backends of this crate, and what all tests of models share.

use throng_model::BackendKind;

pub use throng_testkit::golden::Expected;
pub use throng_testkit::one_sequence::{LIMITS, OneSequence, with_kind};

/// Every backend that runs on this machine.
pub const BACKENDS: [BackendKind; 2] = [BackendKind::Reference, BackendKind::Cpu];
