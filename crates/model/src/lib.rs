//! From weights to tokens: loaders, architectures as data, one forward pass, sampling. Does not know
//! requests, text and the network.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod backend;
pub mod batch_input;
mod batch_sampler;
pub mod cpu_backend;
pub mod decoder;
mod device_sampling;
pub mod drafting;
mod eagle;
mod features;
pub mod kv_cache;
pub mod load;
pub mod media;
pub mod parallel;
pub mod pooling;
pub mod quantization;
pub mod reference_backend;
pub mod roofline;
pub mod runner;
pub mod sampler;
pub mod shapes;
pub mod state_cache;
pub mod tensor_check;
pub mod tensor_role;

pub use throng_arch::{config, families as arch};

pub use load::{BackendKind, LoadOptions, LoadedModel, RunnerOptions, VocabularySource, load};
