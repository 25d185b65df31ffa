//! Folders, files and formats of weights, sound, quantized and damaged.

mod damaged_encoders;
mod folders;
mod formats;
mod fp8_models;
mod fuzz_corpus;
mod hostile;
mod impossible_sizes;
mod loading;
mod nvfp4_factors;
mod quantize;
mod quantize_cache;
mod quantize_quality;
mod quantized_models;
mod unnamed;
