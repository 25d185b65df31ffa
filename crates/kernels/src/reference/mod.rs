//! Every operation in plain loops with f32 accumulation, its formula and its source above it: the truth the lanes
//! are tested against. Refuses to be fast, to know instruction sets and to allocate more than a row.

mod attention;
mod matmul;
mod rope;
mod routing;
mod rows;

pub use attention::{AttentionShape, PagedKv, attention};
pub use matmul::{add_bias, matmul, matmul_experts};
pub use rope::{RopeStyle, rope};
pub use routing::{RouteScore, route_top_k};
pub use rows::{
    add, argmax, gelu_tanh, gelu_tanh_mul, log_softmax, logsumexp, rms_norm, scale, silu, silu_mul, softcap,
    softmax, top_k,
};
