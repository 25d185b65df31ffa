//! Encoders of pictures against transformers, and through the executor of a model.

mod cases;
mod families;
mod invisible;
mod parallel;
mod standardized;
