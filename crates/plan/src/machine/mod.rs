//! Machines by their published figures: arithmetic by number type, memory, links, power and price of one
//! device. Does not know models.

mod catalogue;
mod efficiency;

pub use catalogue::Catalogue;
pub use efficiency::{Efficiency, ErrorBar, MeasuredRange};

use serde::Deserialize;

use crate::error::{PlanError, positive};

/// Type of the numbers that a product is computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComputeType {
    /// Products in 4-bit floats.
    Fp4,
    /// Products in 8-bit floats.
    Fp8,
    /// Products in 8-bit integers.
    Int8,
    /// 16-bit floats of either kind.
    Bf16,
    /// Products in 32-bit floats.
    F32,
}

impl ComputeType {
    /// The name in descriptions.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp4 => "fp4",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Itself and the types that can compute the same with more precision, in the order of their cost.
    fn wider(self) -> &'static [Self] {
        match self {
            Self::Fp4 => &[Self::Fp4, Self::Fp8, Self::Bf16, Self::F32],
            Self::Fp8 => &[Self::Fp8, Self::Bf16, Self::F32],
            Self::Int8 => &[Self::Int8, Self::Bf16, Self::F32],
            Self::Bf16 => &[Self::Bf16, Self::F32],
            Self::F32 => &[Self::F32],
        }
    }
}

/// A number with its origin.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The number, in base units: bytes, operations, watts, a second or an hour.
    pub value: f64,
    /// Key of its source in the file's list of sources; `None` for an operator's own figure.
    pub source: Option<String>,
    /// The day on which the source was read.
    pub read: Option<String>,
}

/// Kind of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineKind {
    /// A device with memory of its own.
    Accelerator,
    /// A processor with the memory that is plugged in.
    Processor,
}

/// One device. A figure that is absent is unknown.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the machine on the command line.
    pub name: String,
    /// Full name of the machine.
    pub title: String,
    /// Kind of the machine.
    pub kind: MachineKind,
    /// Size of its memory in bytes.
    pub memory_bytes: Option<Figure>,
    /// Bandwidth of its memory in bytes a second.
    pub memory_bytes_per_s: Option<Figure>,
    /// Operations of 4-bit floats a second.
    pub fp4: Option<Figure>,
    /// Operations of 8-bit floats a second.
    pub fp8: Option<Figure>,
    /// Operations of 8-bit integers a second.
    pub int8: Option<Figure>,
    /// Operations of 16-bit floats a second.
    pub bf16: Option<Figure>,
    /// Operations of 32-bit floats a second.
    pub f32: Option<Figure>,
    /// Multiprocessors, among which the tiles of a product are shared.
    pub units: Option<Figure>,
    /// Devices that fast links join.
    pub linked: Option<Figure>,
    /// Bytes a second from one device to the others over fast links, in one direction.
    pub link_bytes_per_s: Option<Figure>,
    /// Bytes a second between the device and its host's memory, in one direction.
    pub host_bytes_per_s: Option<Figure>,
    /// Power under load in watts, of the device alone.
    pub watts: Option<Figure>,
    /// Price of an hour, in a currency of the operator's choice.
    pub price_per_hour: Option<Figure>,
    /// The memory of the host that a device may use for keys and values, in bytes.
    pub host_memory_bytes: Option<Figure>,
}

impl Machine {
    /// All figures with their names.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, &Figure)> {
        let all = [
            ("memory_bytes", &self.memory_bytes),
            ("memory_bytes_per_s", &self.memory_bytes_per_s),
            ("fp4", &self.fp4),
            ("fp8", &self.fp8),
            ("int8", &self.int8),
            ("bf16", &self.bf16),
            ("f32", &self.f32),
            ("units", &self.units),
            ("linked", &self.linked),
            ("link_bytes_per_s", &self.link_bytes_per_s),
            ("host_bytes_per_s", &self.host_bytes_per_s),
            ("watts", &self.watts),
            ("price_per_hour", &self.price_per_hour),
            ("host_memory_bytes", &self.host_memory_bytes),
        ];
        all.into_iter().filter_map(|(name, figure)| Some((name, figure.as_ref()?)))
    }

    /// Checks that all figures are finite and above zero.
    ///
    /// # Errors
    /// When one is not; the error names machine and figure.
    pub fn check(&self) -> Result<(), PlanError> {
        for (name, figure) in self.figures() {
            positive(&format!("{name} of the machine {}", self.name), figure.value)?;
        }
        Ok(())
    }

    /// Operations a second in this type, or in the next wider type with a figure.
    ///
    /// # Errors
    /// When the machine has no figure for any suitable type.
    pub fn operations_per_s(&self, of: ComputeType) -> Result<f64, PlanError> {
        let figure = |compute: &ComputeType| match compute {
            ComputeType::Fp4 => &self.fp4,
            ComputeType::Fp8 => &self.fp8,
            ComputeType::Int8 => &self.int8,
            ComputeType::Bf16 => &self.bf16,
            ComputeType::F32 => &self.f32,
        };
        let found = of.wider().iter().find_map(|compute| figure(compute).as_ref());
        found.map(|figure| figure.value).ok_or_else(|| self.lacks(of.name(), "for matrix products"))
    }

    /// Bandwidth of the memory in bytes a second.
    ///
    /// # Errors
    /// When there is no figure.
    pub fn bandwidth(&self) -> Result<f64, PlanError> {
        self.need(&self.memory_bytes_per_s, "memory_bytes_per_s", "to read weights")
    }

    /// Size of the memory in bytes.
    ///
    /// # Errors
    /// When there is no figure.
    pub fn capacity(&self) -> Result<f64, PlanError> {
        self.need(&self.memory_bytes, "memory_bytes", "to hold a model")
    }

    /// Bytes a second from one device to the others, in one direction.
    ///
    /// # Errors
    /// When there is no figure.
    pub fn link(&self) -> Result<f64, PlanError> {
        self.need(&self.link_bytes_per_s, "link_bytes_per_s", "to spread a model over devices")
    }

    fn need(
        &self,
        figure: &Option<Figure>,
        name: &'static str,
        purpose: &'static str,
    ) -> Result<f64, PlanError> {
        figure.as_ref().map(|figure| figure.value).ok_or_else(|| self.lacks(name, purpose))
    }

    fn lacks(&self, figure: &'static str, purpose: &'static str) -> PlanError {
        PlanError::NoFigure { machine: self.name.clone(), figure, purpose }
    }
}
