//! Adapters over an open model. Does not read their files.

use std::path::Path;

use throng_kernels::quant::Format;

use super::prepare::AdapterOrigin;
use super::{BackendKind, LoadedModel};
use crate::adapter::{AdapterError, AdapterLimits, LoadedAdapter, RandomAdapter};

impl LoadedModel {
    /// Loads the adapter in `folder`, as PEFT saves it, for all runners of a backend. They use it from the
    /// next step on and until the last clone of the returned value is dropped.
    ///
    /// # Errors
    /// When it is broken, does not fit the model, exceeds the limits, or finds no room beside the others.
    pub fn load_adapter(
        &self,
        backend: BackendKind,
        folder: &Path,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        if self.is_part() {
            return Err(AdapterError::Divided);
        }
        self.prepared.load_adapter(
            backend,
            &self.config,
            AdapterOrigin::Peft(folder),
            self.adapter_format(),
            limits,
        )
    }

    /// Creates a random adapter, to measure the cost of adapters.
    ///
    /// # Errors
    /// When it exceeds the limits or finds no room beside the others.
    pub fn load_random_adapter(
        &self,
        backend: BackendKind,
        random: RandomAdapter,
        limits: AdapterLimits,
    ) -> Result<LoadedAdapter, AdapterError> {
        let format = self.adapter_format();
        self.prepared.load_adapter(backend, &self.config, AdapterOrigin::Random(random), format, limits)
    }

    /// Format of adapters' numbers: F32 over F32 weights, otherwise BF16, whose rounding is no coarser than
    /// that of quantized weights and their activations.
    pub fn adapter_format(&self) -> Format {
        match self.weight_summary().formats.first() {
            Some((Format::F32, _)) => Format::F32,
            _ => Format::BF16,
        }
    }
}
