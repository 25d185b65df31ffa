//! The engine: a scheduler and an executor under the real clock.
//!
//! Requests go in through [`EngineHandle`], tokens come out of a [`TokenStream`]. All decisions are those of
//! [`EngineCore`], a plain value without threads and clock; a thread around it turns messages into inputs and carries out
//! effects, and further threads make executors and run steps, so that one that hangs can be left behind. Does not know text,
//! HTTP and what a batch computes.
//!
//! A module imports only from modules above it:
//!
//! 1. `config`, `error`, `step_log`, `stats`
//! 2. `event`, `intake`
//! 3. `engine_core`: `input` and `effect`, `traces`, then `streams`, then the core itself
//! 4. `input_log`, `outbox`
//! 5. `shared`, `message`
//! 6. `stream`, `executor_thread`, `masks`
//! 7. `engine_thread`
//! 8. `handle`
#![forbid(unsafe_code)]

mod config;
mod engine_core;
mod engine_thread;
mod error;
mod executor_thread;
mod handle;
mod input_log;
mod intake;
mod masks;
mod message;
mod outbox;
mod shared;
mod stats;
mod step_log;
mod stream;

pub use config::EngineConfig;
pub use engine_core::{Effect, EngineCore, Epoch, Input, StepDone, StepError};
pub use error::{EngineError, EngineFailure, StreamEvent, SubmitError};
pub use handle::{Engine, EngineHandle};
pub use input_log::{InputLog, LoggedInput};
pub use intake::{EngineState, Intake};
pub use outbox::TraceSlot;
pub use stats::{EngineStats, FailureCounts, IterationTokens};
pub use step_log::StepRecord;
pub use stream::TokenStream;
