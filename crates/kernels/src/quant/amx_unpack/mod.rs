//! Unpacks blocks of a panel for AMX tiles: weights in bf16, interleaved in pairs of columns. Done once for
//! all tokens of a call. Does not multiply.

mod codes;
mod short_floats;

use super::PackedMatrix;
use crate::formats::Elements;
use crate::layout::{FloatLayout, WithLayout};
use crate::simd::{AmxIsa, SimdIsa};
use codes::Codes;
use short_floats::{BFloats, HalfFloats, MxFloats};

/// Unpacks blocks of one layout to bf16 pairs.
pub(crate) trait AmxUnpacker: Copy {
    /// Number of bf16 parts of an activation.
    const TOKEN_PARTS: usize;
    /// bf16 parts of a weight; each part of a block takes [`crate::layout::PAIRS_BYTES`].
    const PARTS: usize;

    /// The unpacker of a matrix in the layout.
    fn of(weights: &PackedMatrix) -> Self;

    /// Unpacks block `b` of a panel.
    ///
    /// # Safety
    /// The panel must have the block, `out` room for it, and the machine the ISA's features and AMX tiles.
    unsafe fn unpack<S: AmxIsa>(&self, panel: *const u8, b: usize, out: *mut u8);

    /// Prefetches the data for unpacking block `b` of a panel; see [`crate::simd::prefetch_bytes`].
    ///
    /// # Safety
    /// The ISA's features must be available; the panel need not be valid.
    unsafe fn prefetch<S: SimdIsa, const TO_L1: bool>(&self, panel: *const u8, b: usize);
}

/// Work that is generic over a matrix's unpacker.
pub(crate) trait WithUnpacker {
    /// Runs the work with this unpacker.
    fn run<U: AmxUnpacker>(self);
}

impl PackedMatrix {
    /// Runs work with the matrix's unpacker.
    ///
    /// # Panics
    /// With a matrix in F32 or FP8, which have no unpacker: their numbers have more digits than bf16.
    pub(crate) fn with_unpacker(&self, work: impl WithUnpacker) {
        match self.format().elements() {
            Elements::Codes(codes, _) => codes.with(OfCodes(work)),
            Elements::Floats(FloatLayout::F16) => work.run::<HalfFloats>(),
            Elements::Floats(FloatLayout::BF16) => work.run::<BFloats>(),
            Elements::Floats(FloatLayout::Mxfp8) => work.run::<MxFloats>(),
            Elements::Floats(FloatLayout::F32 | FloatLayout::Fp8) => {
                panic!("{} has no bf16 unpacker", self.format().name())
            }
        }
    }
}

/// Work with the unpacker of a layout of codes.
struct OfCodes<W>(W);

impl<W: WithUnpacker> WithLayout for OfCodes<W> {
    fn run<const LAYOUT: usize>(self) {
        self.0.run::<Codes<LAYOUT>>();
    }
}
