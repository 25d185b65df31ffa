//! Unpacks blocks of a panel for AMX tiles: weights in bf16, interleaved in pairs of columns. Done once for all tokens of a call.
//! Does not multiply.

mod codes;
mod short_floats;

use super::{Format, PackedMatrix};
use crate::simd::{AmxIsa, SimdIsa};
use codes::Codes;
use short_floats::{BFloats, HalfFloats, MxFloats};

/// Unpacks blocks of one format to bf16 pairs.
pub(crate) trait AmxUnpacker: Copy {
    /// bf16 parts of an activation.
    const TOKEN_PARTS: usize;
    /// bf16 parts of a weight; each part of a block takes [`crate::layout::PAIRS_BYTES`].
    const PARTS: usize;

    /// The unpacker of a matrix in the format.
    fn of(weights: &PackedMatrix) -> Self;

    /// Unpacks block `b` of a panel.
    ///
    /// # Safety
    /// The panel must have the block, `out` room for it, and the machine the ISA's features and AMX tiles.
    unsafe fn unpack<S: AmxIsa>(&self, panel: *const u8, b: usize, out: *mut u8);

    /// Prefetches what unpacking block `b` of a panel reads; see [`crate::simd::prefetch_bytes`].
    ///
    /// # Safety
    /// The ISA's features must be available; the panel need not be valid.
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize);
}

/// Work that is generic over a matrix's unpacker.
pub(crate) trait WithUnpacker {
    /// Does the work.
    fn run<U: AmxUnpacker>(self);
}

impl PackedMatrix {
    /// Runs work with the matrix's unpacker.
    ///
    /// # Panics
    /// With a matrix in F32 or FP8, which have none: their numbers have more digits than bf16.
    pub(crate) fn with_unpacker(&self, work: impl WithUnpacker) {
        macro_rules! of_codes {
            ($($format:ident $(= $equal:ident)?)*) => {
                match self.format() {
                    $(Format::$format $(| Format::$equal)? => work.run::<Codes<{ Format::$format as usize }>>(),)*
                    Format::F16 => work.run::<HalfFloats>(),
                    Format::BF16 => work.run::<BFloats>(),
                    Format::MXFP8 => work.run::<MxFloats>(),
                    Format::F32 | Format::FP8 => panic!("{} has no bf16 unpacker", self.format().name()),
                }
            };
        }
        // Formats whose panels are alike share an unpacker.
        of_codes!(
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4 = NVFP4_SCALED
            IQ3_XXS IQ3_S IQ2_XXS IQ2_XS = IQ2_S IQ1_S IQ1_M TQ1_0 = TQ2_0
        )
    }
}
