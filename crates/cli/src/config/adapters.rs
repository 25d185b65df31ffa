//! The `[adapters]` section: adapters over the model and their bounds. Does not read adapters.

use serde::Deserialize;
use throng_model::adapter::AdapterLimits;

use crate::args::{AdapterArgs, LoraModule};
use crate::bounds;

/// Adapters over the model.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdapterSection {
    /// Adapters loaded at the start.
    pub modules: Vec<LoraModule>,
    /// Maximum number of adapters in memory.
    pub max_loras: Option<usize>,
    /// Largest rank of an adapter.
    pub max_lora_rank: Option<usize>,
    /// Maximum bytes of all adapters in memory.
    pub max_lora_memory_bytes: Option<u64>,
    /// Whether clients may load and unload adapters.
    pub allow_runtime_lora_updating: bool,
}

impl AdapterSection {
    /// Overrides the file's values with those of the flags; the lists of adapters are joined.
    pub(super) fn overlay(&mut self, flags: &AdapterArgs) {
        self.modules.extend(flags.lora_modules.iter().cloned());
        self.max_loras = flags.max_loras.or(self.max_loras);
        self.max_lora_rank = flags.max_lora_rank.or(self.max_lora_rank);
        self.max_lora_memory_bytes = flags.max_lora_memory.or(self.max_lora_memory_bytes);
        self.allow_runtime_lora_updating |= flags.allow_runtime_lora_updating;
    }

    /// Checks names and numbers.
    pub(super) fn check(&self) -> Result<(), String> {
        for (i, module) in self.modules.iter().enumerate() {
            module.check().map_err(|fault| format!("adapters.modules: {fault}"))?;
            if self.modules[..i].iter().any(|other| other.name == module.name) {
                return Err(format!("the adapter name {:?} is given twice", module.name));
            }
        }
        let numbers = [
            ("max_loras", self.max_loras, bounds::ADAPTERS),
            ("max_lora_rank", self.max_lora_rank, bounds::ADAPTER_RANK),
        ];
        for (name, number, range) in numbers {
            if let Some(fault) = number.and_then(|number| bounds::fault(&number, &range)) {
                return Err(format!("adapters.{name} {fault}"));
            }
        }
        match self.max_lora_memory_bytes.and_then(|bytes| bounds::fault(&bytes, &bounds::ADAPTER_BYTES)) {
            Some(fault) => Err(format!("adapters.max_lora_memory_bytes {fault}")),
            None => Ok(()),
        }
    }

    /// The bounds; absent settings get their defaults.
    pub fn limits(&self) -> AdapterLimits {
        let default = AdapterLimits::default();
        let bytes = self.max_lora_memory_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        AdapterLimits {
            max_adapters: self.max_loras.unwrap_or(default.max_adapters),
            max_rank: self.max_lora_rank.unwrap_or(default.max_rank),
            max_bytes: bytes.unwrap_or(default.max_bytes),
        }
    }
}
