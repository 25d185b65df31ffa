//! The engine: a scheduler and an executor under the real clock.
//!
//! A thread of its own plans and ends steps; another runs them, so that a step that hangs can be left behind.
//! Requests go in through [`EngineHandle`], tokens come out of a [`TokenStream`]. It refuses to know text, HTTP
//! and what a batch computes.
#![forbid(unsafe_code)]

mod config;
mod engine;
mod error;
mod executor_thread;
mod handle;
mod outbox;
mod stats;
mod step_log;
mod stream;

pub use config::EngineConfig;
pub use error::{EngineError, EngineFailure, SubmitError};
pub use handle::{Engine, EngineHandle, EngineState};
pub use stats::{EngineStats, FailureCounts, IterationTokens};
pub use step_log::StepRecord;
pub use stream::{StreamEvent, TokenReport, TokenStream};
