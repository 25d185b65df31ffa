//! Duration of one matrix product on one device.

use crate::machine::Efficiency;

/// Rows and columns of one tile of a product that a multiprocessor computes.
const TILE: f64 = 128.0;

/// A product of activations with weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Number of rows of the activations, one for each token.
    pub m: f64,
    /// Number of columns of the result.
    pub n: f64,
    /// Number of columns of the activations.
    pub k: f64,
    /// Bytes of a weight.
    pub weight_bytes: f64,
}

/// Bytes of an activation.
pub const ACTIVATION_BYTES: f64 = 2.0;

impl Product {
    /// Multiplications and additions.
    pub fn operations(&self) -> f64 {
        2.0 * self.m * self.n * self.k
    }

    /// Number of bytes read and written.
    pub fn bytes(&self) -> f64 {
        self.n * self.k * self.weight_bytes + self.m * (self.n + self.k) * ACTIVATION_BYTES
    }
}

/// Rates of a device in products of one number type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProductRates {
    /// Peak of operations a second.
    pub operations_per_s: f64,
    /// Peak bytes per second.
    pub bytes_per_s: f64,
    /// Number of multiprocessors, if known.
    pub units: Option<f64>,
}

/// Joins two durations that overlap: `sharpness` 1 adds them, a large one takes the longer.
pub fn joined(a: f64, b: f64, sharpness: f64) -> f64 {
    let (long, short) = if a >= b { (a, b) } else { (b, a) };
    if long <= 0.0 || sharpness >= 64.0 {
        return long.max(0.0);
    }
    long * (1.0 + (short.max(0.0) / long).powf(sharpness)).powf(1.0 / sharpness)
}

impl ProductRates {
    /// Seconds of a product; 0 for one without rows.
    pub fn seconds(&self, product: &Product, efficiency: &Efficiency) -> f64 {
        if product.m <= 0.0 {
            return 0.0;
        }
        let multiplying = self.work(product, efficiency.waves) / (self.operations_per_s * efficiency.compute);
        let reading = product.bytes() / (self.bytes_per_s * efficiency.memory);
        efficiency.launch_s + joined(multiplying, reading, efficiency.sharpness)
    }

    /// Operations, of which a share is counted in whole waves of tiles.
    fn work(&self, product: &Product, waves: f64) -> f64 {
        let Some(units) = self.units.filter(|_| waves > 0.0) else { return product.operations() };
        let n_tiles = (product.m / TILE).ceil() * (product.n / TILE).ceil();
        let a_tile = 2.0 * TILE * TILE * product.k;
        let in_waves = (n_tiles / units).ceil() * units * a_tile;
        (1.0 - waves) * n_tiles * a_tile + waves * in_waves
    }
}
