//! live engine.

pub mod calibration;
pub mod collective;
pub mod fit;
pub mod product;
pub mod roofline;
pub mod tables;

pub use calibration::Calibration;
pub use roofline::Roofline;
