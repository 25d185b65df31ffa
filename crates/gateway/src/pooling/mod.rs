//! Requests for vectors: from texts to token ids that a pooling model takes, and from its answers to
//! embeddings, scores and classes. They run as requests of one output token each, so that queues, limits, the
//! ledger and metrics treat them as all others. Does not know sockets and how vectors are computed.

mod aside;
mod collect;
mod prepare;

pub(crate) use aside::vector_aside;
pub(crate) use collect::collect_vectors;
pub(crate) use prepare::{Inputs, PooledInput, prepare};
