//! Formats of blocks of 32 with one scale: Q8_0 to Q4_0, and IQ4_NL.

pub(super) mod iq4_nl;
pub(super) mod q4_0;
pub(super) mod q4_1;
pub(super) mod q5_0;
pub(super) mod q5_1;
pub(super) mod q8_0;
