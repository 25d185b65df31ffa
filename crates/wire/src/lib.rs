//! The protocol between gateways and workers: tokens in, tokens out, as lines of JSON over HTTP/2, and KV
//! blocks as binary frames. Messages consist of types of `core`, and of a vocabulary of `text`. Does not
//! know sockets and services.
//!
//! Compatibility: unknown fields are ignored, missing fields have defaults, and an unknown event, status or
//! kind of error is read as the variant for unknown ones. Other changes need a new version: both sides name
//! the versions that they support, and the gateway chooses the newest common one.
#![forbid(unsafe_code)]

mod artifact;
mod blocks;
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
pub use blocks::{BlocksRequest, Holder, MAX_REQUESTED_BLOCKS, MalformedBlocksRequest};
pub use constraint::{Constraint, Form, Reasoning, ToolCalls};
pub use description::{Description, NEWEST_VERSION, OLDEST_VERSION, Pooling, Versions};
pub use error::{ErrorKind, WireError};
pub use event::Event;
pub use frames::{BlockFrame, Frame, FrameBuffer, FrameError};
pub use lines::{LineBuffer, LineTooLong, line};
pub use request::{Command, ContentsTooLarge, Generate, content_bytes};
pub use status::{MAX_CACHE_NAMES, Status};
pub use vocabulary::{EncoderKeys, InfillKeys, Vocabulary};

/// Path of a worker's [`Description`].
pub const DESCRIBE: &str = "/worker/describe";
/// Path of a worker's [`Status`].
pub const STATUS: &str = "/worker/status";
/// Path of a worker's heartbeats: lines of [`Status`], one every [`HEARTBEAT_MS`].
pub const WATCH: &str = "/worker/watch";
/// Interval in ms of lines of [`WATCH`]. A worker that is silent for much longer has stalled.
pub const HEARTBEAT_MS: u64 = 250;
/// Path of generation: the body begins with the line of a [`Generate`], followed by the pixel values of its
/// contents, one content after the other; lines of [`Command`]s may follow while it runs. The answer consists
/// of lines of [`Event`]s, the first of them [`Event::Accepted`] or [`Event::Failed`].
pub const GENERATE: &str = "/worker/generate";
/// Prefix of the path of an [`Artifact`], which ends with its digest.
pub const ARTIFACTS: &str = "/worker/artifacts/";
/// Path of KV blocks, for other workers: the body is a [`BlocksRequest`]. The answer consists of binary
/// frames: a layout, then blocks with checksums, in the order of their names, up to the first that the worker
/// does not have.
pub const BLOCKS: &str = "/worker/blocks";
/// Header with the version of the protocol of a request.
pub const VERSION_HEADER: &str = "throng-protocol";
/// Maximum bytes of a line. The log-probabilities of a long prompt are one line.
pub const MAX_LINE_BYTES: usize = 32 << 20;
/// Maximum bytes of the pixel values of a request.
pub const MAX_CONTENT_BYTES: usize = 512 << 20;
/// Maximum bytes of a frame without its length field. A block of the largest models has some megabytes.
pub const MAX_FRAME_BYTES: usize = 64 << 20;
/// Maximum bytes of a description or a status.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Maximum bytes of an artifact.
pub const MAX_ARTIFACT_BYTES: usize = 256 << 20;
