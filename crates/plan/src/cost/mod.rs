//! live engine.

pub mod collective;
pub mod fit;
pub mod product;
pub mod roofline;
pub mod tables;

pub use roofline::Roofline;
