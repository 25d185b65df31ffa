//! Requests for vectors: texts become token ids for a pooling model, and its answers become embeddings,
//! scores and classes. They run as requests with one output token, so that queues, limits, the ledger and
//! metrics treat them like all others. Does not know sockets and the computation of vectors.

mod collect;
mod internal_vector;
mod prepare;

pub(crate) use collect::collect_vectors;
pub(crate) use internal_vector::internal_vector;
pub(crate) use prepare::{Inputs, PooledInput, prepare};
