//! The loops of NEON, in assembly, because compilers put copies between such instructions. Does not know
//! their speed.

use std::arch::{asm, is_aarch64_feature_detected};

use super::{Arithmetic, RegisterLoop};

/// Available loops, the fastest first.
pub(super) fn available(arithmetic: Arithmetic) -> impl Iterator<Item = RegisterLoop> {
    let neon = is_aarch64_feature_detected!("neon");
    let loops = match arithmetic {
        Arithmetic::F32 | Arithmetic::Bf16 => vec![(neon, FMA)],
        Arithmetic::Int8 => {
            vec![(neon && is_aarch64_feature_detected!("dotprod"), DOTPROD), (neon, WIDENING)]
        }
    };
    loops.into_iter().filter_map(|(is_there, found)| is_there.then_some(found))
}

const FMA: RegisterLoop = RegisterLoop { name: "NEON FMA", n_elements: 4, n_products: 24, run: fma };
const DOTPROD: RegisterLoop =
    RegisterLoop { name: "NEON dotprod", n_elements: 4, n_products: 96, run: dotprod };
const WIDENING: RegisterLoop = RegisterLoop { name: "NEON", n_elements: 4, n_products: 32, run: widening };

/// A loop of `$step` over accumulators from register 0 on, with `$one` in every 32 bits of registers 30 and
/// 31. Those in the list are added up in the end.
macro_rules! register_loop {
    ($name:ident, $features:literal, $step:expr, $add:literal [$($i:literal)*], $one:expr, $read:expr) => {
        /// # Safety
        /// The machine has the instructions.
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn $name(n_rounds: u64) -> f64 {
            let one: u32 = $one;
            let sum: u32;
            // SAFETY: the machine has the instructions, by the caller; they touch no memory, and all registers that
            // change are named.
            unsafe {
                asm!(
                    "dup v30.4s, {one:w}",
                    "dup v31.4s, {one:w}",
                    "movi v29.4s, #0",
                    concat!($("movi v", $i, ".4s, #0\n",)*),
                    ".p2align 5",
                    "2:",
                    $step,
                    "subs {n}, {n}, #1",
                    "b.ne 2b",
                    concat!($($add, " v29.4s, v29.4s, v", $i, ".4s\n",)*),
                    "fmov {sum:w}, s29",
                    one = in(reg) one,
                    n = inout(reg) n_rounds => _,
                    sum = lateout(reg) sum,
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _,
                    out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _,
                    out("v14") _, out("v15") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _,
                    out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v29") _, out("v30") _,
                    out("v31") _,
                    options(nostack, nomem),
                );
            }
            f64::from($read(sum))
        }
    };
}

/// Twenty-four accumulators: a result waits up to four cycles, and up to four ports take one instruction each
/// a cycle.
macro_rules! twenty_four {
    ($name:ident, $features:literal, $op:literal, $width:literal, $add:literal, $one:expr, $read:expr) => {
        twenty_four!(
            @ [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23]
            $name, $features, $op, $width, $add, $one, $read
        );
    };
    (
        @ [$($i:literal)*]
        $name:ident, $features:literal, $op:literal, $width:literal, $add:literal, $one:expr, $read:expr
    ) => {
        register_loop!(
            $name, $features, concat!($($op, " v", $i, ".4s, v30.", $width, ", v31.", $width, "\n",)*),
            $add [$($i)*], $one, $read
        );
    };
}

/// Without dot products, bytes are multiplied to 16 bits, two products into each, and neighbours added up.
macro_rules! widen {
    ($($sum:literal $dot:literal),*) => {
        concat!($(
            "smull v", $dot, ".8h, v30.8b, v31.8b\n",
            "smlal2 v", $dot, ".8h, v30.16b, v31.16b\n",
            "sadalp v", $sum, ".4s, v", $dot, ".8h\n",
        )*)
    };
}

const ONE_F32: u32 = 1.0f32.to_bits();
const ONES_I8: u32 = 0x0101_0101;

twenty_four!(fma, "neon", "fmla", "4s", "fadd", ONE_F32, f32::from_bits);
twenty_four!(dotprod, "neon,dotprod", "sdot", "16b", "add", ONES_I8, u32::from);
register_loop!(
    widening, "neon", widen!(0 8, 1 9, 2 10, 3 11, 4 12, 5 13, 6 14, 7 15), "add" [0 1 2 3 4 5 6 7], ONES_I8,
    u32::from
);
