//! Folders, files and formats of weights, sound, quantized and damaged.

mod checkpoint_formats;
mod folders;
mod formats;
mod fp8_models;
mod fuzz_corpus;
mod hostile;
mod loading;
mod nvfp4_factors;
mod quantize;
mod quantize_cache;
mod quantize_quality;
mod quantized_models;
mod robust;
mod unnamed;
mod weights;
