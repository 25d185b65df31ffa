//! Foreign engines as upstreams: any server with OpenAI's API (vLLM, SGLang, llama.cpp, TensorRT-LLM). They take text, so they stand
//! beside the replicas, which take tokens. JSON goes in and an event stream comes out; what need not be read is passed through. Keys,
//! limits, budgets and the ledger hold as for models of this gateway; `docs/design.md` lists what does not.

mod attempt;
mod events;
mod fault;
mod forward;
mod model;
mod probe;
mod reason;
mod request;
mod running;
mod setting;
mod smallest_request;
mod stream;
mod trouble;
mod upstream;
mod usage;

pub(crate) use forward::answer;
pub(crate) use model::{ForeignModel, ForeignModels, ForeignReplica, MAX_MODELS};
pub(crate) use probe::{learn_models, measure, probe};
pub(crate) use request::{Endpoint, named_model};
pub(crate) use setting::Setting;
pub(crate) use upstream::Upstream;
