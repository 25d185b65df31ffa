//! Files of `throng calibrate`, and the machine that they describe.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use throng_plan::Machine;
use throng_plan::cost::Calibration;
use throng_plan::machine::{Figure, MachineKind};

use crate::process::memory;

/// Reads a calibration.
///
/// # Errors
/// When the file cannot be read or is not a calibration.
pub fn read(path: &Path) -> Result<Arc<Calibration>> {
    let place = || format!("--calibration {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    let calibration: Calibration = serde_json::from_str(&text).with_context(place)?;
    calibration.check().with_context(place)?;
    Ok(Arc::new(calibration))
}

/// This machine, with the memory that is free now.
pub fn this_machine(memory_bytes: Option<u64>) -> Machine {
    let bytes = memory_bytes.or_else(memory::available_bytes);
    Machine {
        name: "this-machine".to_owned(),
        title: "the machine of the calibration".to_owned(),
        kind: MachineKind::Processor,
        memory_bytes: bytes.map(|bytes| Figure { value: bytes as f64, source: None, read: None }),
        memory_bytes_per_s: None,
        fp4: None,
        fp8: None,
        int8: None,
        bf16: None,
        f32: None,
        units: None,
        linked: None,
        link_bytes_per_s: None,
        host_bytes_per_s: None,
        watts: None,
        price_per_hour: None,
        host_memory_bytes: None,
    }
}
