//! Upstream engines: any server with OpenAI's API (vLLM, SGLang, llama.cpp, TensorRT-LLM). They take text,
//! so they stand beside the replicas, which take tokens. Requests are JSON and answers event streams; parts
//! that the gateway does not need pass through unread. Does not know keys, limits and the ledger.

mod attempt;
mod chunk_usage;
mod connection;
mod events;
mod fault;
mod forwarding;
mod model;
mod probe;
mod reason;
mod request;
mod smallest_request;
mod stream;
mod trouble;
mod usage;
mod watch;

pub use attempt::{AnsweringEngine, Submission, Unanswered, UpstreamAnswer, submit};
pub use chunk_usage::without_usage;
pub use connection::Upstream;
pub use events::{EventKind, data_of};
pub use fault::Fault;
pub use forwarding::{Forwarding, HOPS_HEADER, REGIONS_HEADER};
pub use model::{MAX_MODELS, UpstreamModel, UpstreamModels, UpstreamReplica};
pub use probe::{learn_models, probe};
pub use reason::{RejectionReason, rejection_reason};
pub use request::{Endpoint, UpstreamRequest, named_model};
pub use stream::{StreamFault, UpstreamStream};
pub use trouble::Trouble;
pub use usage::{ReportedUsage, Usage, UsageBounds, UsageCount, estimated_tokens};
pub use watch::{measure, watch};
