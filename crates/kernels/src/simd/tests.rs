//! Every operation of every ISA against the scalar ISA, bit by bit, on corner cases.

use super::*;
use crate::float_env::FlushToZero;

const FLOATS: [f32; 20] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-40,
    -1e-45,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    // The ends of the f16 range and halfway beyond, its smallest numbers, a tie.
    65_519.9,
    65_520.0,
    5.960_464_5e-8,
    2.980_232_2e-8,
    6.1e-5,
    1.000_488_3,
    12_582_912.0,
];
const INTS: [i32; 8] = [0, 1, -1, 127, -128, i32::MAX, i32::MIN, 1 << 24 | 1];

/// Random operands shared by all operation tests.
struct Inputs {
    floats: [[f32; 16]; 3],
    ints: [[i32; 16]; 2],
    /// Pairs of i16 above -32,768, and an accumulator.
    pairs: [[i32; 16]; 2],
    sums: [i32; 16],
    halves: [u16; 16],
    bytes: [[u8; 64]; 4],
    /// Elements above -128.
    x: [i8; 16],
}

impl Inputs {
    fn random(random: &mut impl FnMut() -> u32) -> Self {
        let float = |bits: u32| match bits % 3 {
            0 => FLOATS[bits as usize / 3 % FLOATS.len()],
            1 => f32::from_bits(bits.rotate_left(9)),
            _ => bits as f32 / 2e9 - 1.0,
        };
        let int = |bits: u32| if bits.is_multiple_of(2) { INTS[bits as usize / 2 % 8] } else { bits as i32 };
        let pair = |bits: u32| {
            let half = |bits: u32| i32::from(bits as i16).max(-32_767);
            half(bits) & 0xFFFF | half(bits >> 16) << 16
        };
        let byte = |bits: u32| [0, 255, bits as u8, (bits >> 8) as u8][(bits >> 16) as usize % 4];
        Self {
            floats: std::array::from_fn(|_| std::array::from_fn(|_| float(random()))),
            ints: std::array::from_fn(|_| std::array::from_fn(|_| int(random()))),
            pairs: std::array::from_fn(|_| std::array::from_fn(|_| pair(random()))),
            sums: std::array::from_fn(|_| (random() >> 16) as i32 - 32_768),
            halves: std::array::from_fn(|_| random() as u16),
            bytes: std::array::from_fn(|_| std::array::from_fn(|_| byte(random()))),
            x: std::array::from_fn(|_| (byte(random()) as i8).max(-127)),
        }
    }

    /// Operands of the largest possible dot products, of one sign.
    fn extreme(code: u8, x: i8) -> Self {
        Self { bytes: [[code; 64]; 4], x: [x; 16], ..Self::random(&mut || 1) }
    }
}

/// Runs every operation; returns names and results, with the same bits for every NaN.
struct Everything<'a>(&'a Inputs);

impl Kernel for Everything<'_> {
    type Output = Vec<(&'static str, Vec<u32>)>;

    #[inline(always)]
    unsafe fn run<S: SimdIsa>(self) -> Self::Output {
        // SAFETY: all arrays hold whole vectors; the caller guarantees the features.
        unsafe {
            let mut out = floats::<S>(self.0);
            out.extend(integers::<S>(self.0));
            out.extend(bytes::<S>(self.0));
            out
        }
    }
}

fn canonical(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

fn canonical_half(x: u16) -> u32 {
    u32::from(if half::f16::from_bits(x).is_nan() { half::f16::NAN.to_bits() } else { x })
}

#[inline(always)]
unsafe fn floats<S: SimdIsa>(inputs: &Inputs) -> Vec<(&'static str, Vec<u32>)> {
    // SAFETY: by the caller.
    unsafe {
        let [a, b, c] = inputs.floats.each_ref().map(|v| S::load(v.as_ptr()));
        let show = |x: S::F| {
            let mut out = [0.0; 16];
            S::store(out.as_mut_ptr(), x);
            out.map(canonical).to_vec()
        };
        let mut halves = [0u16; 16];
        S::store_f16(halves.as_mut_ptr(), a);
        // Neither NaN nor zeros of both signs.
        let numbers = inputs.floats[0].map(|x| if x.is_nan() || x == 0.0 { 7.0 } else { x });
        let numbers = S::load(numbers.as_ptr());
        vec![
            ("splat", show(S::splat(inputs.floats[0][3]))),
            ("load_f16", show(S::load_f16(inputs.halves.as_ptr()))),
            ("load_bf16", show(S::load_bf16(inputs.halves.as_ptr()))),
            ("load_e4m3", show(S::load_e4m3(inputs.bytes[0].as_ptr()))),
            ("store_f16", halves.map(canonical_half).to_vec()),
            ("add", show(S::add(a, b))),
            ("sub", show(S::sub(a, b))),
            ("mul", show(S::mul(a, b))),
            ("div", show(S::div(a, b))),
            ("fma", show(S::fma(a, b, c))),
            ("max", show(S::max(a, b))),
            ("min", show(S::min(a, b))),
            ("largest", vec![canonical(S::largest(numbers) + 0.0)]),
            ("smallest", vec![canonical(S::smallest(numbers) + 0.0)]),
            ("exp", show(exp::<S>(a))),
            ("sum", vec![canonical(sum::<S>(a))]),
        ]
    }
}

#[inline(always)]
unsafe fn integers<S: SimdIsa>(inputs: &Inputs) -> Vec<(&'static str, Vec<u32>)> {
    // SAFETY: by the caller.
    unsafe {
        let [a, b] = inputs.ints.each_ref().map(|v| S::iload(v.as_ptr()));
        let [p, q] = inputs.pairs.each_ref().map(|v| S::iload(v.as_ptr()));
        let show = |x: S::I| {
            let mut out = [0; 16];
            S::istore(out.as_mut_ptr(), x);
            out.map(|x: i32| x as u32).to_vec()
        };
        let small = S::iload_i8(inputs.x.as_ptr());
        let mut bytes = [0i8; 16];
        S::istore_i8(bytes.as_mut_ptr(), small);
        let mut float = [0.0; 16];
        S::store(float.as_mut_ptr(), S::float(a));
        let mut from_bits = [0.0; 16];
        S::store(from_bits.as_mut_ptr(), S::from_bits(a));
        vec![
            ("isplat", show(S::isplat(inputs.ints[0][3]))),
            ("iload_i8", show(small)),
            ("iload_u8", show(S::iload_u8(inputs.bytes[0].as_ptr()))),
            ("istore_i8", bytes.map(|x| x as u32).to_vec()),
            ("iadd", show(S::iadd(a, b))),
            ("isub", show(S::isub(a, b))),
            ("imax", show(S::imax(a, b))),
            ("iand", show(S::iand(a, b))),
            ("ilargest", vec![S::ilargest(a) as u32]),
            ("isum", vec![S::isum(a) as u32]),
            ("ishl", [S::ishl::<1>(a), S::ishl::<23>(a)].map(show).concat()),
            ("ishr", [S::ishr::<1>(a), S::ishr::<23>(a)].map(show).concat()),
            ("float", float.map(canonical).to_vec()),
            ("bits", show(S::bits(S::load(inputs.floats[0].as_ptr())))),
            ("from_bits", from_bits.map(canonical).to_vec()),
            ("dot_pairs", show(S::dot_pairs(S::iload(inputs.sums.as_ptr()), p, q))),
        ]
    }
}

#[inline(always)]
unsafe fn bytes<S: SimdIsa>(inputs: &Inputs) -> Vec<(&'static str, Vec<u32>)> {
    // SAFETY: by the caller.
    unsafe {
        let codes = inputs.bytes.each_ref().map(|v| S::bload(v.as_ptr()));
        let [a, b, ..] = codes;
        let show = |x: S::B| {
            let mut out = [0u8; 64];
            S::bstore(out.as_mut_ptr(), x);
            out.map(u32::from).to_vec()
        };
        let dots = |x: S::I| {
            let mut out = [0i32; 16];
            S::istore(out.as_mut_ptr(), x);
            out.map(|x| x as u32).to_vec()
        };
        let only = |x: S::B, mask: u8| show(S::band(x, S::bsplat(mask)));
        let nibbles = S::band(a, S::bsplat(15));
        let table = std::array::from_fn(|i| inputs.bytes[1][i]);
        let sums = S::iload(inputs.sums.as_ptr());
        let narrow = codes.map(|codes| S::band(codes, S::bsplat(63)));
        // The excess of ISAs that do not subtract 128 from the codes.
        let offset: i32 = inputs.x.iter().map(|x| 128 * i32::from(*x)).sum();
        let offset = S::isplat(if S::WIDE_IS_SIGNED { 0 } else { offset });
        vec![
            ("bsplat", show(S::bsplat(200))),
            ("band", show(S::band(a, b))),
            ("bor", show(S::bor(a, b))),
            ("badd", show(S::badd(a, b))),
            ("bshr", [only(S::bshr::<1>(a), 0x7F), only(S::bshr::<6>(a), 3)].concat()),
            ("bshl", [only(S::bshl::<1>(a), 0xFE), only(S::bshl::<4>(a), 0xF0)].concat()),
            ("blookup", show(S::blookup(&table, nibbles))),
            ("dot16", dots(S::dot16(sums, &narrow, inputs.x.as_ptr()))),
            ("dot16_wide", dots(S::isub(S::dot16_wide(sums, &codes, inputs.x.as_ptr()), offset))),
        ]
    }
}

#[test]
fn every_operation_gives_the_scalar_lanes_bits() {
    let _flush = FlushToZero::new();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    let extremes = [(255, 127), (255, -127), (0, 127), (0, -127), (63, 127), (63, -127)];
    let mut all: Vec<Inputs> = extremes.map(|(code, x)| Inputs::extreme(code, x)).into();
    all.extend((0..2000).map(|_| Inputs::random(&mut random)));
    for (i, inputs) in all.iter().enumerate() {
        // SAFETY: the inputs are as long as the operations read.
        let want = unsafe { Isa::SCALAR.run(Everything(inputs)) };
        for isa in Isa::available() {
            // SAFETY: the same inputs.
            let got = unsafe { isa.run(Everything(inputs)) };
            for (want, got) in want.iter().zip(got) {
                assert_eq!(*want, got, "{} on {}, inputs {i}", want.0, isa.name());
            }
        }
    }
}
