//! `throng devices`: the GPUs of this machine, and whether they work.

use anyhow::Result;
use comfy_table::Table;

use crate::args::DevicesArgs;
use crate::kv_budget::show;
use crate::process::output;
use crate::running::probe::{self, FoundDevice};

/// Runs the command.
///
/// # Errors
/// When a driver cannot be probed, or standard output is closed.
pub fn run(arguments: &DevicesArgs) -> Result<()> {
    if let Some(number) = arguments.probe {
        output::line(probe::answer(number)?)?;
        return Ok(());
    }
    if arguments.probe_again {
        probe::forget();
    }
    let found = probe::find()?;
    if found.is_empty() {
        output::line("No driver offers a GPU. Models run on the processor (--device cpu).")?;
        output::line("For a GPU, install its driver for Vulkan and the Vulkan loader (Debian: libvulkan1).")?;
        return Ok(());
    }
    output::line(table(&found))?;
    Ok(())
}

fn table(found: &[FoundDevice]) -> Table {
    let mut table = Table::new();
    table.set_header(["--device", "name", "kind", "memory", "largest buffer", "shared", "driver", "works"]);
    for device in found {
        let verdict = match probe::check(device) {
            Ok(()) => "yes".to_owned(),
            Err(error) => format!("no: {}", error.root_cause()),
        };
        table.add_row([
            name(device),
            device.name.clone(),
            device.kind.clone(),
            device.memory_bytes.map_or_else(|| "unknown".to_owned(), show),
            show(device.max_binding_bytes),
            show(u64::from(device.max_shared_bytes)),
            device.driver.clone(),
            verdict,
        ]);
    }
    table
}

/// The device as `--device` takes it.
fn name(device: &FoundDevice) -> String {
    match device.interface.as_str() {
        "metal" => "metal".to_owned(),
        interface => format!("{interface}:{}", device.number),
    }
}
