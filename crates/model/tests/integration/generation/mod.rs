//! Steps of a loaded model: batches, drafts, adapters, sampling.

mod adapters;
mod adapters_under_load;
mod backend_suite;
mod beams;
mod blocks;
mod constraints;
mod draft_model;
mod drafts;
mod eagle;
mod invisible;
mod resumed;
mod roofline;
mod runner;
mod sampler;
mod sampler_any_parameters;
mod sampler_bits;
mod sampler_mask;
mod split;
