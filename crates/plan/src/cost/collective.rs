//! Durations of exchanges between devices.

use super::product::joined;
use crate::machine::Efficiency;

/// Links between devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Links {
    /// Bytes a second from one device to the others, in one direction.
    pub bytes_per_s: f64,
}

impl Links {
    /// Seconds until each of `n` devices has the sum of all their vectors of this many bytes. Each sends and
    /// receives `2 (n - 1) / n` times these bytes.
    pub fn all_reduce(&self, bytes: f64, n: f64, efficiency: &Efficiency) -> f64 {
        if n <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        let moving = 2.0 * (n - 1.0) / n * bytes / (self.bytes_per_s * efficiency.links);
        joined(efficiency.all_reduce_s, moving, efficiency.link_sharpness)
    }

    /// Seconds until each of `n` devices has its part of the data of all devices; a device holds this many
    /// bytes and keeps one `n`-th.
    pub fn all_to_all(&self, bytes: f64, n: f64, efficiency: &Efficiency) -> f64 {
        if n <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        let moving = (n - 1.0) / n * bytes / (self.bytes_per_s * efficiency.links);
        joined(efficiency.all_reduce_s, moving, efficiency.link_sharpness)
    }

    /// Seconds until a neighbour has this many bytes.
    pub fn send(&self, bytes: f64, efficiency: &Efficiency) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let moving = bytes / (self.bytes_per_s * efficiency.links);
        joined(efficiency.all_reduce_s / 2.0, moving, efficiency.link_sharpness)
    }
}
