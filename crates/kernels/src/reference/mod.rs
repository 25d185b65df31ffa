//! Reference implementations: every operation in plain loops with f32 accumulation, with its formula and
//! source. The SIMD kernels are tested against these. Not optimized.

mod attention;
mod low_rank;
mod matmul;
mod recurrent;
mod rope;
mod routing;
mod rows;

pub use attention::{AttentionShape, PagedKv, attention};
pub use low_rank::add_low_rank;
pub use matmul::{add_bias, matmul, matmul_experts};
pub use recurrent::{
    ConvWeights, DeltaShape, DeltaWeights, L2_EPS, StateSpaceShape, StateSpaceWeights, gated_delta_net,
    short_conv, sigmoid, softplus, state_space,
};
pub use rope::{RopeStyle, rope};
pub use routing::{RouteScore, route_sigmoid, route_top_k};
pub use rows::{
    add, argmax, clamped_swiglu, gelu, gelu_mul, gelu_tanh, gelu_tanh_mul, layer_norm, log_softmax,
    logsumexp, relu_mul, rms_norm, scale, silu, silu_mul, softcap, softmax, top_k,
};
