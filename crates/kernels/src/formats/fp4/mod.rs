//! Formats of FP4 (OCP Microscaling Formats 1.0, E2M1): MXFP4 and NVFP4.

pub(super) mod mxfp4;
pub(super) mod nvfp4;
pub(super) mod nvfp4_scaled;
