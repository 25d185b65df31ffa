//! Division of one model over devices.

use crate::error::PlanError;

/// Numbers of devices in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parallelism {
    /// Devices that share each matrix.
    pub tensor: u32,
    /// Number of stages of layers, one after the other.
    pub pipeline: u32,
    /// Number of groups that share the experts; each computes the rest for sequences of its own.
    pub expert: u32,
}

impl Parallelism {
    /// No parallelism: one device.
    pub const NONE: Self = Self { tensor: 1, pipeline: 1, expert: 1 };

    /// Devices that share matrices.
    pub fn tensor(n: u32) -> Self {
        Self { tensor: n, ..Self::NONE }
    }

    /// Number of all devices.
    pub fn n_devices(&self) -> u32 {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.expert)
    }

    /// Checks that the number of devices in each direction is from 1 to 1024.
    ///
    /// # Errors
    /// When there are none, or too many; the error names the direction.
    pub fn check(&self) -> Result<(), PlanError> {
        let all = [("tensor", self.tensor), ("pipeline", self.pipeline), ("expert", self.expert)];
        for (name, n) in all {
            if !(1..=1024).contains(&n) {
                return Err(PlanError::value(format!("{name} parallelism"), n, "expected 1 to 1024 devices"));
            }
        }
        Ok(())
    }

    /// The name in reports: `TP 8`, `TP 4 PP 2`, or empty for one device.
    pub fn name(&self) -> String {
        let part = |word: &str, n: u32| if n > 1 { format!("{word} {n}") } else { String::new() };
        let parts = [part("TP", self.tensor), part("PP", self.pipeline), part("EP", self.expert)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }
}
