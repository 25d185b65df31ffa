//! CPU affinity: the cores this process may use, pinning a thread to a core. No effect on systems without these calls.

/// Cores that this process may use: logical ones, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cores {
    /// One logical core of every physical core first, then their hyperthread siblings.
    pub(crate) logical: Vec<usize>,
    /// How many physical ones there are.
    pub(crate) n_physical: usize,
}

impl Cores {
    /// Those of this process.
    pub(crate) fn allowed() -> Self {
        Self::spread(allowed_cores(), first_sibling)
    }

    /// Orders cores given the first logical one of each one's physical core.
    fn spread(allowed: Vec<usize>, first_of: impl Fn(usize) -> usize) -> Self {
        let mut seen = std::collections::BTreeSet::new();
        let (mut logical, shared): (Vec<_>, Vec<_>) =
            allowed.into_iter().partition(|&core| seen.insert(first_of(core)));
        let n_physical = logical.len();
        logical.extend(shared);
        Self { logical, n_physical }
    }
}

/// The first logical core of the physical core that `core` belongs to; `core` itself where the system does not say.
fn first_sibling(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).unwrap_or_default();
    let first = siblings.split([',', '-']).next().and_then(|first| first.trim().parse().ok());
    first.unwrap_or(core)
}

/// The cores this thread may run on, in ascending order; at least one entry.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    // SAFETY: a cpu_set_t of zeros is an empty set; the call fills at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0).then_some(set)
    };
    let Some(set) = set else { return vec![0] };
    // SAFETY: the index stays below the set's size.
    let cores: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Keeps the calling thread on one core; without effect where the system refuses.
#[cfg(target_os = "linux")]
pub(crate) fn pin_to(core: usize) {
    // SAFETY: a cpu_set_t of zeros is an empty set; `core`, which came from `allowed_cores`, is below its size. A refusal leaves the
    // thread where it was.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The cores of the machine, by number.
#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Without effect.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_to(_core: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_physical_core_comes_before_any_is_shared() {
        // Siblings are adjacent (many desktops), or in the other half (many servers); one core is not allowed.
        let spread = |first_of: fn(usize) -> usize| Cores::spread(vec![0, 1, 2, 3, 4, 5, 7], first_of);
        let neighbours = spread(|core| core / 2 * 2);
        assert_eq!(neighbours, Cores { logical: vec![0, 2, 4, 7, 1, 3, 5], n_physical: 4 });
        let halves = spread(|core| core % 4);
        assert_eq!(halves, Cores { logical: vec![0, 1, 2, 3, 4, 5, 7], n_physical: 4 });
    }
}
