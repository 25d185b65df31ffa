//! Seeded test data for the kernel tests.

use throng_kernels::quant::{Format, quantize_row};

/// Whether this is the run of `cargo xtask test --nightly`. The crate `throng-testkit` says so too, but needs
/// the model crate.
pub fn is_nightly() -> bool {
    std::env::var_os("THRONG_NIGHTLY").is_some()
}

/// A splitmix64 stream; every test names its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal, variance 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Stored bytes of `rows` random rows.
    pub fn weights(&mut self, format: Format, rows: usize, cols: usize) -> Vec<u8> {
        let x = self.normals(rows * cols);
        let mut bytes = vec![0; format.bytes_of(x.len()).expect("whole blocks")];
        quantize_row(format, &x, &mut bytes);
        bytes
    }
}

/// Bits, so that NaN equals NaN and -0 differs from 0.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Largest distance, relative to the root mean square of `want`.
pub fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let rms = (want.iter().map(|v| v * v).sum::<f32>() / want.len() as f32).sqrt().max(1e-30);
    got.iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs() / rms)
        .fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}
