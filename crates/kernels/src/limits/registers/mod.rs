//! Loops of multiplications and additions that touch no memory. Does not know the use of the limits.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod amx;

/// A kind of arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// 32-bit floats, fused where the machine can.
    F32,
    /// Floats of 16 bits, or of 32 bits on machines that multiply only those.
    Bf16,
    /// Dot products of bytes in vector registers.
    Int8,
}

/// A loop over independent accumulators of one kind of arithmetic, on the widest registers of this machine.
#[derive(Debug, Clone, Copy)]
pub struct RegisterLoop {
    name: &'static str,
    /// Number of elements of an accumulator.
    n_elements: usize,
    /// Products that a round adds up in element number `i` of all accumulators together.
    n_products: usize,
    /// Needs the features that [`RegisterLoop::available`] checked; see [`RegisterLoop::run`] for its result.
    run: unsafe fn(u64) -> f64,
}

impl RegisterLoop {
    /// The loops that this machine can run, fastest first.
    pub fn available(arithmetic: Arithmetic) -> Vec<Self> {
        let name = "plain loops";
        let plain = match arithmetic {
            Arithmetic::F32 | Arithmetic::Bf16 => {
                Self { name, n_elements: PLAIN_F32, n_products: 1, run: plain_f32 }
            }
            Arithmetic::Int8 => Self { name, n_elements: PLAIN_I16, n_products: 1, run: plain_i16 },
        };
        #[cfg(target_arch = "x86_64")]
        let vectors = x86_64::available(arithmetic);
        #[cfg(target_arch = "aarch64")]
        let vectors = aarch64::available(arithmetic);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vectors = std::iter::empty();
        vectors.chain([plain]).collect()
    }

    /// The fastest loop of this machine.
    pub fn best(arithmetic: Arithmetic) -> Self {
        Self::available(arithmetic)[0]
    }

    /// Name of the instructions.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Operations of a round: two for each product that is added.
    pub fn operations(&self) -> f64 {
        2.0 * self.n_elements as f64 * self.n_products as f64
    }

    /// Runs `n_rounds` rounds on this thread. All factors are 1, so that the result is the number of products
    /// added up in one element, as far as the accumulators can count.
    pub fn run(&self, n_rounds: u64) -> f64 {
        // SAFETY: the machine has the loop's features.
        unsafe { (self.run)(n_rounds.max(1)) }
    }
}

const PLAIN_F32: usize = 32;
const PLAIN_I16: usize = 64;

fn plain_f32(n_rounds: u64) -> f64 {
    let (factor, addend) = std::hint::black_box((1.0f32, 1.0f32));
    let mut sums = [0.0f32; PLAIN_F32];
    for _ in 0..n_rounds {
        sums.iter_mut().for_each(|sum| *sum = *sum * factor + addend);
    }
    f64::from(std::hint::black_box(sums)[0])
}

/// Bytes are widened before they are multiplied.
fn plain_i16(n_rounds: u64) -> f64 {
    let (factor, addend) = std::hint::black_box((1i16, 1i16));
    let mut sums = [0i16; PLAIN_I16];
    for _ in 0..n_rounds {
        sums.iter_mut().for_each(|sum| *sum = sum.wrapping_mul(factor).wrapping_add(addend));
    }
    f64::from(std::hint::black_box(sums)[0])
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::asm;

    use super::{Arithmetic, RegisterLoop};

    /// Available loops, the fastest first.
    pub(super) fn available(arithmetic: Arithmetic) -> impl Iterator<Item = RegisterLoop> {
        let avx2 = is_x86_feature_detected!("avx2");
        let loops = match arithmetic {
            Arithmetic::F32 | Arithmetic::Bf16 => vec![
                (is_x86_feature_detected!("avx512f"), FMA_512),
                (avx2 && is_x86_feature_detected!("fma"), FMA_256),
            ],
            Arithmetic::Int8 => vec![
                (is_x86_feature_detected!("avx512vnni"), VNNI_512),
                (avx2 && is_x86_feature_detected!("avxvnni"), VNNI_256),
                (avx2, MADD_256),
            ],
        };
        let tiles = if arithmetic == Arithmetic::Bf16 { super::amx::available() } else { None };
        tiles.into_iter().chain(loops.into_iter().filter_map(|(is_there, found)| is_there.then_some(found)))
    }

    const FMA_512: RegisterLoop =
        RegisterLoop { name: "AVX-512 FMA", n_elements: 16, n_products: 12, run: fma_512 };
    const FMA_256: RegisterLoop =
        RegisterLoop { name: "AVX2 FMA", n_elements: 8, n_products: 12, run: fma_256 };
    const VNNI_512: RegisterLoop =
        RegisterLoop { name: "AVX-512 VNNI", n_elements: 16, n_products: 48, run: vnni_512 };
    const VNNI_256: RegisterLoop =
        RegisterLoop { name: "AVX2 VNNI", n_elements: 8, n_products: 48, run: vnni_256 };
    const MADD_256: RegisterLoop =
        RegisterLoop { name: "AVX2", n_elements: 8, n_products: 16, run: madd_256 };

    /// A loop in assembly, because compilers put copies between such instructions: `$step` over accumulators
    /// from register 0 on, with `$one` in every 32 bits of registers 12 and 13. The listed accumulators are
    /// added up in the end.
    macro_rules! register_loop {
        ($name:ident, $v:literal, $step:expr, $add:literal [$($i:literal)*], $one:expr, $read:expr) => {
            /// # Safety
            /// The machine has the instructions.
            #[inline(never)]
            unsafe fn $name(n_rounds: u64) -> f64 {
                let (one, sum): (u32, u32) = ($one, 0);
                let mut sum = sum;
                // SAFETY: the machine has the instructions, by the caller; they read one constant, and all registers
                // that change are named. The upper halves are left clean.
                unsafe {
                    asm!(
                        concat!($("vpxor xmm", $i, ", xmm", $i, ", xmm", $i, "\n",)*),
                        concat!("vpbroadcastd ", $v, "12, dword ptr [{one}]"),
                        concat!("vpbroadcastd ", $v, "13, dword ptr [{one}]"),
                        "vpsrlw xmm14, xmm13, 8",
                        concat!("vpbroadcastd ", $v, "14, xmm14"),
                        ".p2align 5",
                        "2:",
                        $step,
                        "dec {n}",
                        "jnz 2b",
                        "vpxor xmm15, xmm15, xmm15",
                        concat!($($add, " xmm15, xmm15, xmm", $i, "\n",)*),
                        "vmovd {sum:e}, xmm15",
                        "vzeroupper",
                        one = in(reg) &one,
                        n = inout(reg) n_rounds => _,
                        sum = inout(reg) sum,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _,
                        out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nostack, readonly),
                    );
                }
                f64::from($read(sum))
            }
        };
    }

    /// Twelve accumulators: a result waits four or five cycles, and two ports take one instruction each a
    /// cycle.
    macro_rules! twelve {
        ($name:ident, $v:literal, $op:literal, $add:literal, $one:expr, $read:expr) => {
            twelve!(@ [0 1 2 3 4 5 6 7 8 9 10 11] $name, $v, $op, $add, $one, $read);
        };
        (@ [$($i:literal)*] $name:ident, $v:literal, $op:literal, $add:literal, $one:expr, $read:expr) => {
            register_loop!(
                $name, $v, concat!($($op, " ", $v, $i, ", ", $v, "12, ", $v, "13\n",)*), $add [$($i)*], $one, $read
            );
        };
    }

    /// Without VNNI a dot of bytes is three instructions; their additions wait one cycle.
    macro_rules! madd {
        ($($sum:literal $dot:literal),*) => {
            concat!($(
                "vpmaddubsw ymm", $dot, ", ymm12, ymm13\n",
                "vpmaddwd ymm", $dot, ", ymm", $dot, ", ymm14\n",
                "vpaddd ymm", $sum, ", ymm", $sum, ", ymm", $dot, "\n",
            )*)
        };
    }

    const ONE_F32: u32 = 1.0f32.to_bits();
    const ONES_I8: u32 = 0x0101_0101;

    twelve!(fma_512, "zmm", "vfmadd231ps", "vaddps", ONE_F32, f32::from_bits);
    twelve!(fma_256, "ymm", "vfmadd231ps", "vaddps", ONE_F32, f32::from_bits);
    twelve!(vnni_512, "zmm", "vpdpbusd", "vpaddd", ONES_I8, u32::from);
    twelve!(vnni_256, "ymm", "{{vex}} vpdpbusd", "vpaddd", ONES_I8, u32::from);
    register_loop!(madd_256, "ymm", madd!(0 4, 1 5, 2 6, 3 7), "vpaddd" [0 1 2 3], ONES_I8, u32::from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_add_up_as_many_products_as_they_claim() {
        for arithmetic in [Arithmetic::F32, Arithmetic::Bf16, Arithmetic::Int8] {
            for each in RegisterLoop::available(arithmetic) {
                for n_rounds in [1, 7, 1000] {
                    let expected = (each.n_products as u64 * n_rounds) as f64;
                    assert_eq!(each.run(n_rounds), expected, "{} {arithmetic:?}", each.name());
                }
            }
        }
    }
}
