//! Products of a few tokens with weights that are floats: widened in registers as they are read.

use super::{AHEAD_BYTES, SkinnyGemm};
use crate::layout::{BLOCK, E4m3Scale, FloatLayout, PANEL};
use crate::matmul::activations::FLOAT_RECORD;
use crate::quant::e4m3_scale;
use crate::simd::{Kernel, SimdIsa, prefetch_bytes};

/// The product for a layout of floats given by its index in [`FloatLayout::ALL`].
pub(super) struct OfFloats<'a, const T: usize, const LAYOUT: usize>(pub(super) SkinnyGemm<'a, T>);

impl<const T: usize, const LAYOUT: usize> OfFloats<'_, T, LAYOUT> {
    const LAYOUT: FloatLayout = FloatLayout::ALL[LAYOUT];
    /// Bytes of one weight.
    const BYTES: usize = Self::LAYOUT.bytes();
    const SCALE: Option<E4m3Scale> = Self::LAYOUT.scale();
    /// Number of bytes of a block in the panel.
    const BLOCK_BYTES: usize = match Self::SCALE {
        Some(scale) => PANEL * BLOCK * Self::BYTES + scale.bytes() / scale.blocks(),
        None => PANEL * BLOCK * Self::BYTES,
    };

    /// Sixteen weights, one of each row of the panel.
    #[inline(always)]
    unsafe fn load<S: SimdIsa>(stored: *const u8, scale: S::F) -> S::F {
        // SAFETY: by the caller.
        unsafe {
            match Self::LAYOUT {
                FloatLayout::F32 => S::load(stored.cast()),
                FloatLayout::F16 => S::load_f16(stored.cast()),
                FloatLayout::BF16 => S::load_bf16(stored.cast()),
                FloatLayout::Fp8 | FloatLayout::Mxfp8 => S::mul(S::load_e4m3(stored), scale),
            }
        }
    }
}

impl<const T: usize, const LAYOUT: usize> Kernel for OfFloats<'_, T, LAYOUT> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) {
        let SkinnyGemm { layout, panel, x, token, out, stride, adds } = self.0;
        let column_bytes = PANEL * Self::BYTES;
        // SAFETY: the blocks are in the panel; records and outputs by contract; any address may be prefetched.
        unsafe {
            let mut acc = [S::splat(0.0); T];
            if adds {
                for (t, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load(out.add(t * stride));
                }
            }
            let mut ahead = panel.as_ptr().wrapping_add(AHEAD_BYTES);
            for b in 0..layout.n_blocks {
                let stored = panel.as_ptr().add(layout.codes_at + b * BLOCK * column_bytes);
                prefetch_bytes::<S, true>(ahead, Self::BLOCK_BYTES);
                ahead = ahead.wrapping_add(Self::BLOCK_BYTES);
                let scale = match Self::SCALE {
                    Some(kind) => e4m3_scale::<S>(kind, layout, panel.as_ptr(), b),
                    None => S::splat(1.0),
                };
                let x = x.add(b * FLOAT_RECORD).cast::<f32>().add(token * BLOCK);
                let mut dots = [S::splat(0.0); T];
                for k in 0..BLOCK {
                    let w = Self::load::<S>(stored.add(k * column_bytes), scale);
                    for (t, dots) in dots.iter_mut().enumerate() {
                        *dots = S::fma(w, S::splat(*x.add(t * BLOCK + k)), *dots);
                    }
                }
                for (acc, dots) in acc.iter_mut().zip(dots) {
                    *acc = S::add(*acc, dots);
                }
            }
            for (t, acc) in acc.iter().enumerate() {
                S::store(out.add(t * stride), *acc);
            }
        }
    }
}
