//! CPU affinity: the cores this process may use, pinning a thread to a core. No effect on systems without
//! these calls.

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores that this process may use: logical ones, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Logical cores: one of every physical core first, then their hyperthread siblings.
    pub logical: Vec<usize>,
    /// Number of physical cores.
    pub n_physical: usize,
}

impl Cores {
    /// Reads the cores of this process.
    pub fn allowed() -> Self {
        Self::spread(allowed_cores(), first_sibling)
    }

    /// Orders the allowed cores; `first_of` returns the first logical core of the physical core of a core.
    fn spread(allowed: Vec<usize>, first_of: impl Fn(usize) -> usize) -> Self {
        let mut seen = std::collections::BTreeSet::new();
        let (mut logical, shared): (Vec<_>, Vec<_>) =
            allowed.into_iter().partition(|&core| seen.insert(first_of(core)));
        let n_physical = logical.len();
        logical.extend(shared);
        Self { logical, n_physical }
    }
}

/// The default number of compute threads: the physical cores that this process may use (two hyperthreads
/// share one core's arithmetic units), at most the CPU quota of the container.
pub fn default_threads() -> usize {
    let granted = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    Cores::allowed().n_physical.min(granted)
}

/// The first logical core of the physical core that `core` belongs to; `core` itself if the system does not
/// report it.
fn first_sibling(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).unwrap_or_default();
    let first = siblings.split([',', '-']).next().and_then(|first| first.trim().parse().ok());
    first.unwrap_or(core)
}

/// The cores this thread may run on, in ascending order; at least one entry.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Keeps the calling thread on one core; without effect where the system refuses.
#[cfg(target_os = "linux")]
pub fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    // A refusal, which an empty set gets too, leaves the thread where it was.
    let _ = sched_setaffinity(None, &set);
}

/// Keeps the calling thread, and those that it starts, on these cores; without effect if the system refuses.
#[cfg(target_os = "linux")]
pub fn bind_to(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    // A refusal, which an empty set gets too, leaves the thread where it was.
    let _ = sched_setaffinity(None, &set);
}

/// Keeps the calling thread on these cores; without effect on this system.
#[cfg(not(target_os = "linux"))]
pub fn bind_to(_cores: &[usize]) {}

/// The cores of the machine, by number.
#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Keeps the calling thread on one core; without effect here.
#[cfg(not(target_os = "linux"))]
pub fn pin_to(_core: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_physical_core_comes_before_any_is_shared() {
        // Siblings are adjacent (many desktops), or in the other half (many servers); one core is not
        // allowed.
        let spread = |first_of: fn(usize) -> usize| Cores::spread(vec![0, 1, 2, 3, 4, 5, 7], first_of);
        let neighbours = spread(|core| core / 2 * 2);
        assert_eq!(neighbours, Cores { logical: vec![0, 2, 4, 7, 1, 3, 5], n_physical: 4 });
        let halves = spread(|core| core % 4);
        assert_eq!(halves, Cores { logical: vec![0, 1, 2, 3, 4, 5, 7], n_physical: 4 });
    }
}
