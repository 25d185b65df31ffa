//! The decisions of an engine: admission, the effects of inputs, and records. Does not know threads,
//! channels and a clock.
//!
//! A module imports only from modules above it:
//!
//! 1. `config`, `error`, `step_log`, `stats`
//! 2. `intake`
//! 3. `engine_core`: `input` and `effect`, `traces`, then `streams`, then the core itself
//! 4. `input_log`, `recorded_request`, then `recording`

mod config;
mod engine_core;
mod error;
mod input_log;
mod intake;
mod recorded_request;
pub mod recording;
mod stats;
mod step_log;

pub use config::{DEFAULT_EXECUTOR_TIMEOUT_MS, EngineConfig};
pub use engine_core::{Effect, EngineCore, Epoch, Input, PlainToken, StepDone, StepError};
pub use error::{EngineFailure, StreamEvent, SubmitError};
pub use input_log::{InputLog, LoggedInput};
pub use intake::{EngineState, Intake};
pub use recorded_request::{END, RecordedOutput, RecordedRequest};
pub use stats::{EngineStats, FailureCounts, IterationTokens};
pub use step_log::{StepLog, StepRecord};
