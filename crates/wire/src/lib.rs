//! The protocol between gateways and workers: tokens in, tokens out, as lines of JSON over HTTP/2, and KV
//! blocks as binary frames. Its messages are made of the types of `core`, and of a vocabulary of `text`; does
//! not know sockets and who answers.
//!
//! Compatibility: fields that are not known are ignored, fields that are missing have defaults, and what has
//! no meaning here (an event, a status, a kind of error) is read as the variant that says so. A change beyond
//! that is a new version: both sides name the versions that they speak, and the gateway takes the newest
//! common one.
#![forbid(unsafe_code)]

mod artifact;
mod constraint;
mod description;
mod error;
mod event;
mod frames;
mod lines;
mod request;
mod status;
mod vocabulary;

pub use artifact::{Artifact, ArtifactKind, digest};
pub use constraint::{Constraint, Form, Reasoning, ToolCalls};
pub use description::{Description, NEWEST_VERSION, OLDEST_VERSION, Pooling, Versions};
pub use error::{ErrorKind, WireError};
pub use event::Event;
pub use frames::{BlockFrame, Frame, FrameBuffer, FrameError};
pub use lines::{LineBuffer, LineTooLong, line};
pub use request::{Command, Generate};
pub use status::{MAX_CACHE_NAMES, Status};
pub use vocabulary::{EncoderKeys, InfillKeys, Vocabulary};

/// Path of a worker's [`Description`].
pub const DESCRIBE: &str = "/worker/describe";
/// Path of its [`Status`].
pub const STATUS: &str = "/worker/status";
/// Path of its heartbeats: lines of [`Status`], one every [`HEARTBEAT_MS`].
pub const WATCH: &str = "/worker/watch";
/// The time between two lines of [`WATCH`]. A worker that is silent for much longer does not get on.
pub const HEARTBEAT_MS: u64 = 250;
/// Path of generation: the body begins with the line of a [`Generate`], lines of [`Command`]s may follow
/// while it runs. The answer is lines of [`Event`]s, the first of them [`Event::Accepted`] or
/// [`Event::Failed`].
pub const GENERATE: &str = "/worker/generate";
/// Followed by the digest of an [`Artifact`].
pub const ARTIFACTS: &str = "/worker/artifacts/";
/// The header with the version of the protocol that a request is written in.
pub const VERSION_HEADER: &str = "throng-protocol";
/// Most bytes of a line. Log-probabilities of a long prompt are one.
pub const MAX_LINE_BYTES: usize = 32 << 20;
/// Most bytes of a frame without its length. A block of the largest models takes some megabytes.
pub const MAX_FRAME_BYTES: usize = 64 << 20;
/// Most bytes of a description or a status.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Most bytes of an artifact.
pub const MAX_ARTIFACT_BYTES: usize = 256 << 20;
