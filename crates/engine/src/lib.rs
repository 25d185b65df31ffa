//! The engine: a scheduler and an executor under the real clock.
//!
//! Requests go in through [`EngineHandle`], tokens come out of a [`TokenStream`]. All decisions are made by
//! [`EngineCore`], a plain value of `core` without threads and clock; a thread around it turns messages
//! into inputs and carries out effects, and further threads make executors and run steps, so that one that
//! hangs can be abandoned. Does not know text, HTTP and what a batch computes.
//!
//! A module imports only from modules above it:
//!
//! 1. `error`, `outbox`
//! 2. `shared`, `message`
//! 3. `stream`, `executor_thread`, `masks`, `store`
//! 4. `engine_thread`
//! 5. `handle`
#![forbid(unsafe_code)]

mod engine_thread;
mod error;
mod executor_thread;
mod handle;
mod masks;
mod message;
mod outbox;
mod shared;
mod store;
mod stream;

pub use error::EngineError;
pub use handle::{Engine, EngineHandle};
pub use outbox::TraceSlot;
pub use store::{ExportedBlock, ExportedBlocks, Peers, Pull, PullBlocks, StoreSettings, Tiers};
pub use stream::TokenStream;
pub use throng_core::engine::{
    Effect, EngineConfig, EngineCore, EngineFailure, EngineState, EngineStats, Epoch, FailureCounts, Input,
    InputLog, Intake, IterationTokens, LoggedInput, StepDone, StepError, StepRecord, StreamEvent,
    SubmitError,
};
