//! Register tiles: up to eight tokens times the sixteen rows of one or two panels. Refuses to know formats and threads.
//!
//! An output element is a lane of an accumulator: block after block along the columns, `acc += scale · dot` with an
//! exact integer dot (or a float dot summed from left to right), so its bits do not depend on the tile it was in.

use super::activations::FLOAT_RECORD;
use super::bytes::{HALF_PAIR_AT, HALF_STEP, HALF_SUM_AT, PAIR_AT, RECORD, SCALE_AT, SUM_AT};
use crate::quant::{BLOCK, PANEL, Unpacked};
use crate::simd::{Lane, PairBlock, Task, ask};

/// The widest tile, in tokens.
const MAX_TOKENS: usize = 8;
/// Tokens of a tile of two panels.
const PAIR_TOKENS: usize = MAX_TOKENS;

/// One tile over a stretch of blocks; `T` tokens, a divisor of sixteen, times `P` panels.
pub(crate) struct Tile<const T: usize, const P: usize> {
    pub(crate) weights: [Unpacked; P],
    /// A half block has its own scale.
    pub(crate) halves: bool,
    /// Codes are unsigned below 64 and mins are added; otherwise they are value + 128.
    pub(crate) has_min: bool,
    /// The weights are floats.
    pub(crate) floats: bool,
    pub(crate) n_blocks: usize,
    /// The tokens' group: its first record of the stretch.
    pub(crate) x: *const u8,
    /// The first token within the group.
    pub(crate) first: usize,
    /// Where the outputs of each panel begin: T rows of sixteen, `stride` apart.
    pub(crate) out: [*mut f32; P],
    /// Elements from one token's outputs to the next's.
    pub(crate) stride: usize,
    /// Adds to what the outputs are, instead of setting them.
    pub(crate) adds: bool,
}

impl<const T: usize, const P: usize> Task for Tile<T, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        // SAFETY: the driver gives as many blocks, records and accumulators as the fields say.
        unsafe {
            match (self.floats, self.halves, self.has_min) {
                (true, ..) => self.float_dots::<L>(),
                (_, false, false) => self.int_dots::<L, false, false>(),
                (_, false, true) => self.int_dots::<L, false, true>(),
                (_, true, false) => self.int_dots::<L, true, false>(),
                (_, true, true) => self.int_dots::<L, true, true>(),
            }
        }
    }
}

/// A tile whose codes are narrow and have stayed as they are; see [`Lane::WIDE_IS_SLOW`].
pub(crate) struct NarrowTile<const T: usize, const P: usize>(pub(crate) Tile<T, P>);

impl<const T: usize, const P: usize> Task for NarrowTile<T, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lane>(self) {
        for p in 0..P {
            // SAFETY: as for a tile.
            unsafe {
                match self.0.halves {
                    false => self.0.registers::<L, false, false, true>(p),
                    true => self.0.registers::<L, true, false, true>(p),
                }
            }
        }
    }
}

/// Does the work for every token below `T`, at most eight, without a loop: accumulators then stay in registers, which
/// the compiler does not manage for the widest tile by itself.
macro_rules! for_each_token {
    ($t:ident in $n:ident $work:block) => {
        for_each_token!(@ $t $n $work 0 1 2 3 4 5 6 7);
    };
    (@ $t:ident $n:ident $work:block $($i:literal)*) => {
        $(if $i < $n {
            let $t = $i;
            $work
        })*
    };
}

/// What turns the dots of a block (or half block) into parts of the outputs.
struct Scales<L: Lane, const HALVES: bool, const MIN: bool> {
    /// Of the weights.
    sums: L::I,
    scales: L::F,
    mins: L::F,
    /// Of the tokens: entry `t` of each array is token `t`'s.
    pairs: *const i32,
    token_scales: *const f32,
    token_sums: *const f32,
}

impl<L: Lane, const HALVES: bool, const MIN: bool> Scales<L, HALVES, MIN> {
    #[inline(always)]
    unsafe fn of<const T: usize, const P: usize>(tile: &Tile<T, P>, p: usize, b: usize, part: usize) -> Self {
        let vector = (b * if HALVES { 2 } else { 1 } + part) * PANEL;
        let (pair_at, sum_at) = match HALVES {
            true => (HALF_PAIR_AT + part * HALF_STEP, HALF_SUM_AT + part * HALF_STEP),
            false => (PAIR_AT, SUM_AT),
        };
        // SAFETY: block `b` is one of the tile's, by the caller; arrays of a record have sixteen entries of four bytes.
        unsafe {
            let record = tile.x.add(b * RECORD + tile.first * 4);
            Self {
                sums: L::iload(tile.weights[p].sums.add(vector)),
                scales: L::load(tile.weights[p].scales.add(vector)),
                mins: if MIN { L::load(tile.weights[p].mins.add(vector)) } else { L::splat(0.0) },
                pairs: record.add(pair_at).cast(),
                token_scales: record.add(SCALE_AT).cast(),
                token_sums: record.add(sum_at).cast(),
            }
        }
    }

    /// `acc` and what token `t`'s dots add to it.
    #[inline(always)]
    unsafe fn add(&self, acc: L::F, dots: L::I, t: usize) -> L::F {
        // SAFETY: `t` is a token of the tile, by the caller.
        unsafe {
            // zero · Σ weights - offset · Σ codes, exactly.
            let dots = L::dot_pairs(dots, self.sums, L::isplat(*self.pairs.add(t)));
            let scale = L::mul(self.scales, L::splat(*self.token_scales.add(t)));
            let acc = L::fma(scale, L::float(dots), acc);
            if MIN { L::fma(self.mins, L::splat(*self.token_sums.add(t)), acc) } else { acc }
        }
    }
}

/// The outputs of one panel in a tile of two, [8][16].
#[repr(align(64))]
struct Outputs([f32; PAIR_TOKENS * PANEL]);

impl<const T: usize, const P: usize> Tile<T, P> {
    #[inline(always)]
    unsafe fn load_acc<L: Lane>(&self, p: usize) -> [L::F; T] {
        // SAFETY: T rows of outputs by contract.
        unsafe {
            let mut acc = [L::splat(0.0); T];
            if self.adds {
                for_each_token!(t in T {
                    acc[t] = L::load(self.out[p].add(t * self.stride));
                });
            }
            acc
        }
    }

    #[inline(always)]
    unsafe fn store_acc<L: Lane>(&self, p: usize, acc: [L::F; T]) {
        for_each_token!(t in T {
            // SAFETY: T rows of outputs by contract.
            unsafe { L::store(self.out[p].add(t * self.stride), acc[t]) };
        });
    }

    #[inline(always)]
    unsafe fn int_dots<L: Lane, const HALVES: bool, const MIN: bool>(&self) {
        // SAFETY: as for the callees.
        unsafe {
            if L::HAS_PAIR_TILE && T == PAIR_TOKENS && P == 2 {
                return self.pair_tile::<L, HALVES, MIN>();
            }
            for p in 0..P {
                self.registers::<L, HALVES, MIN, false>(p);
            }
        }
    }

    /// Where the codes of the tile's token `t` in block `b` lie.
    #[inline(always)]
    fn codes_of(&self, b: usize, t: usize) -> *const i8 {
        self.x.wrapping_add(b * RECORD + (self.first + t) * BLOCK).cast()
    }

    /// Asks for what the stretch after this one needs, a block's share with each block: memory should not rest while a
    /// stretch is multiplied.
    #[inline(always)]
    unsafe fn ask_ahead<L: Lane>(&self, p: usize, b: usize) {
        let Unpacked { ahead, ahead_bytes, .. } = self.weights[p];
        // SAFETY: any address may be asked for.
        unsafe { ask::<L, false>(ahead.wrapping_add(b * ahead_bytes), ahead_bytes) };
    }

    /// Dots by vectors of bytes, in registers, with the outputs of one panel.
    #[inline(always)]
    unsafe fn registers<L: Lane, const HALVES: bool, const MIN: bool, const NARROW: bool>(&self, p: usize) {
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
        unsafe {
            let mut acc = self.load_acc::<L>(p);
            for b in 0..self.n_blocks {
                let codes = self.weights[p].codes.add(b * PANEL * BLOCK);
                self.ask_ahead::<L>(p, b);
                for part in 0..if HALVES { 2 } else { 1 } {
                    let mut dots = [L::isplat(0); T];
                    for half in if HALVES { part..part + 1 } else { 0..2 } {
                        let w: [L::B; 4] = std::array::from_fn(|v| L::bload(codes.add((4 * half + v) * 64)));
                        for_each_token!(t in T {
                            let x = self.codes_of(b, t).add(half * 16);
                            dots[t] = if MIN || NARROW { L::dot16(dots[t], &w, x) } else { L::dot16_wide(dots[t], &w, x) };
                        });
                    }
                    let scales = Scales::<L, HALVES, MIN>::of(self, p, b, part);
                    for_each_token!(t in T {
                        acc[t] = scales.add(acc[t], dots[t], t);
                    });
                }
            }
            self.store_acc::<L>(p, acc);
        }
    }

    /// Eight tokens times two panels by the lane's own code; the outputs stay in the first cache.
    #[inline(always)]
    unsafe fn pair_tile<L: Lane, const HALVES: bool, const MIN: bool>(&self) {
        let mut acc = [const { Outputs([0.0; PAIR_TOKENS * PANEL]) }; 2];
        let acc = acc.each_mut().map(|acc| acc.0.as_mut_ptr());
        // SAFETY: all pointers stay within `n_blocks` blocks, by contract; T and P are what the lane wants.
        unsafe {
            for (p, acc) in acc.iter().enumerate() {
                let before = self.load_acc::<L>(p);
                for_each_token!(t in T {
                    L::store(acc.add(t * PANEL), before[t]);
                });
            }
            for b in 0..self.n_blocks {
                for p in 0..P {
                    self.ask_ahead::<L>(p, b);
                }
                let block = |part: usize| {
                    let vector = (b * if HALVES { 2 } else { 1 } + part) * PANEL;
                    PairBlock {
                        x: self.codes_of(b, 0).wrapping_add(part * 16),
                        record: self.x.wrapping_add(b * RECORD + self.first * 4),
                        codes: [0, 1].map(|p| self.weights[p].codes.wrapping_add((b * 8 + part * 4) * 64)),
                        sums: [0, 1].map(|p| self.weights[p].sums.wrapping_add(vector)),
                        scales: [0, 1].map(|p| self.weights[p].scales.wrapping_add(vector)),
                        mins: [0, 1].map(|p| self.weights[p].mins.wrapping_add(vector)),
                        acc,
                    }
                };
                if HALVES {
                    L::pair_tile::<4, HALF_PAIR_AT, HALF_SUM_AT, MIN>(block(0));
                    let second = block(1);
                    L::pair_tile::<4, { HALF_PAIR_AT + HALF_STEP }, { HALF_SUM_AT + HALF_STEP }, MIN>(second);
                } else {
                    L::pair_tile::<8, PAIR_AT, SUM_AT, MIN>(block(0));
                }
            }
            for (acc, out) in acc.iter().zip(self.out) {
                for_each_token!(t in T {
                    L::store(out.add(t * self.stride), L::load(acc.add(t * PANEL)));
                });
            }
        }
    }

    #[inline(always)]
    unsafe fn float_dots<L: Lane>(&self) {
        for p in 0..P {
            // SAFETY: all pointers stay within `n_blocks` blocks, by contract.
            unsafe {
                let mut acc = self.load_acc::<L>(p);
                for b in 0..self.n_blocks {
                    let weights = self.weights[p].codes.cast::<f32>().add(b * PANEL * BLOCK);
                    let x = self.x.add(b * FLOAT_RECORD).cast::<f32>().add(self.first * BLOCK);
                    self.ask_ahead::<L>(p, b);
                    let mut dots = [L::splat(0.0); T];
                    for k in 0..BLOCK {
                        let w = L::load(weights.add(k * PANEL));
                        for_each_token!(t in T {
                            dots[t] = L::fma(w, L::splat(*x.add(t * BLOCK + k)), dots[t]);
                        });
                    }
                    for_each_token!(t in T {
                        acc[t] = L::add(acc[t], dots[t]);
                    });
                }
                self.store_acc::<L>(p, acc);
            }
        }
    }
}
