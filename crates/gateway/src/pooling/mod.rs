//! Requests for vectors: from texts to token ids that a pooling model takes, and from its answers to
//! embeddings, scores and classes. They run as requests of one output token each, so that queues, limits, the
//! ledger and metrics treat them as all others. Does not know sockets and how vectors are computed.

mod collect;
mod internal_vector;
mod prepare;

pub(crate) use collect::collect_vectors;
pub(crate) use internal_vector::internal_vector;
pub(crate) use prepare::{Inputs, PooledInput, prepare};
