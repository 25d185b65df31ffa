//! `throng bench machine`: the limits of this machine by number of threads. Does not know models.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use throng_kernels::Isa;
use throng_kernels::limits::{
    Arithmetic, Pages, ReadBuffer, RegisterLoop, bytes_per_second, operations_per_second,
};
use throng_kernels::threads::ThreadPool;

use super::limits::{DeviceFigures, device_limits};
use crate::args::BenchMachineArgs;
use crate::kv_budget::show;
use crate::process::caches::Caches;
use crate::process::memory;
use crate::process::output;

/// Upper bound in bytes on a core's share of the last-level cache: virtual machines report the size of the
/// whole host's cache.
const MOST_SHARE: usize = 16 << 20;

/// Results for one number of threads.
#[derive(Debug, Serialize)]
struct Measured {
    threads: usize,
    isa: &'static str,
    read: Vec<Read>,
    arithmetic: Vec<Peak>,
}

/// Bandwidth of repeated reads of a buffer.
#[derive(Debug, Serialize)]
struct Read {
    /// Cache level that the buffer fits in, or memory.
    fits: &'static str,
    pages: &'static str,
    /// Size in bytes of all threads' buffers together.
    bytes: usize,
    bytes_per_s: f64,
}

/// Peak rate of arithmetic in registers; a multiplication and an addition count as one operation each.
#[derive(Debug, Serialize)]
struct Peak {
    of: &'static str,
    instructions: &'static str,
    operations_per_s: f64,
}

/// Runs the command.
///
/// # Errors
/// When the result cannot be written.
pub fn run(arguments: &BenchMachineArgs) -> Result<()> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let most = arguments.threads.filter(|&n| n > 0).unwrap_or_else(cores);
    let mut all = Vec::new();
    for n_threads in thread_counts(most) {
        let measured = measure(n_threads);
        if arguments.json {
            output::line(serde_json::to_string(&measured)?)?;
        }
        all.push(measured);
    }
    if !arguments.json {
        output::line(format_args!("ISA: {}", Isa::best().name()))?;
        output::line(table(&all))?;
    }
    match arguments.device.and_then(device_limits) {
        None => Ok(()),
        Some(limits) => {
            let limits = limits?;
            if arguments.json {
                output::line(serde_json::to_string(&limits)?)?;
            } else {
                output::line(device_table(&limits))?;
            }
            Ok(())
        }
    }
}

/// The powers of two up to `most`, and `most` itself.
fn thread_counts(most: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < most).collect();
    counts.push(most);
    counts
}

fn measure(n_threads: usize) -> Measured {
    let pool = ThreadPool::new(n_threads);
    let read = sizes(Caches::of_this_machine(), n_threads).into_iter().flat_map(|(fits, n_bytes)| {
        let pool = &pool;
        [("ordinary", Pages::Small), ("huge", Pages::Huge)].into_iter().filter_map(move |(name, pages)| {
            let buffer = ReadBuffer::new(n_bytes, pages, pool)?;
            let bytes_per_s = bytes_per_second(&buffer, pool);
            Some(Read { fits, pages: name, bytes: buffer.n_bytes(), bytes_per_s })
        })
    });
    let read = read.collect();
    let kinds = [("f32", Arithmetic::F32), ("bf16", Arithmetic::Bf16), ("int8", Arithmetic::Int8)];
    let arithmetic = kinds.map(|(of, arithmetic)| {
        let work = RegisterLoop::best(arithmetic);
        Peak { of, instructions: work.name(), operations_per_s: operations_per_second(&work, &pool) }
    });
    Measured { threads: pool.n_threads(), isa: Isa::best().name(), read, arithmetic: arithmetic.into() }
}

/// Total buffer sizes in bytes: for the L2 cache, for the last-level share and for memory.
fn sizes(caches: Caches, n_threads: usize) -> [(&'static str, usize); 3] {
    let share = caches.last_level_share.min(MOST_SHARE).max(2 * caches.second_level);
    let quarter = memory::available_bytes().map_or(usize::MAX, |free| (free / 4) as usize);
    let beyond = (2 * caches.last_level).clamp(512 << 20, 2 << 30).min(quarter);
    [
        ("second-level cache", caches.second_level / 2 * n_threads),
        ("last-level share", share * n_threads),
        ("memory", beyond),
    ]
}

fn table(all: &[Measured]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let counts = all.iter().map(|measured| match measured.threads {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    });
    table.set_header(std::iter::once(String::new()).chain(counts));
    let first = &all[0];
    for (i, read) in first.read.iter().enumerate() {
        let name =
            format!("read, {} ({} a thread), {} pages", read.fits, show(read.bytes as u64), read.pages);
        let name = if read.fits == "memory" { name.replace(" a thread", "") } else { name };
        let rates = all.iter().map(|measured| {
            measured
                .read
                .get(i)
                .map_or_else(String::new, |read| format!("{:.1} GB/s", read.bytes_per_s / 1e9))
        });
        table.add_row(std::iter::once(name).chain(rates));
    }
    for (i, peak) in first.arithmetic.iter().enumerate() {
        let name = format!("{} ({}), in registers", peak.of, peak.instructions);
        let rates =
            all.iter().map(|measured| format!("{:.0} GOP/s", measured.arithmetic[i].operations_per_s / 1e9));
        table.add_row(std::iter::once(name).chain(rates));
    }
    table
}

fn device_table(limits: &DeviceFigures) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([String::new(), limits.device.clone()]);
    let gigabytes = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
    let operations = |rate: f64| format!("{:.0} GOP/s", rate / 1e9);
    table.add_row([format!("read, {}", show(limits.buffer_bytes)), gigabytes(limits.read_bytes_per_s)]);
    let copied = "copy, bytes read and written".to_owned();
    table.add_row([copied, gigabytes(limits.copy_bytes_per_s)]);
    table.add_row(["f32, in registers".to_owned(), operations(limits.f32_operations_per_s)]);
    let f16 = limits.f16_operations_per_s.map_or_else(|| "none".to_owned(), operations);
    table.add_row(["f16, in registers".to_owned(), f16]);
    table.add_row(["int8, in registers".to_owned(), operations(limits.int8_operations_per_s)]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_double_up_to_the_most() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn buffers_grow_from_cache_to_memory() {
        let of = |last_level_share, last_level| {
            sizes(Caches { second_level: 2 << 20, last_level_share, last_level }, 2)
                .map(|(_, n_bytes)| n_bytes)
        };
        assert_eq!(of(5 << 20, 40 << 20)[..2], [2 << 20, 10 << 20]);
        assert_eq!(of(240 << 20, 480 << 20)[1], 32 << 20, "a host's cache is not believed");
        assert_eq!(of(1 << 20, 8 << 20)[1], 8 << 20, "a share is larger than the level before");
        assert!(of(5 << 20, 40 << 20)[2] <= 512 << 20);
    }
}
