//! Which cores this process may use, and pinning a thread to one. Where the system offers neither, nothing is pinned.

/// The cores this thread may run on, in ascending order; at least one entry.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_cores() -> Vec<usize> {
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
    // SAFETY: as above; `core` came from `allowed_cores`. A refusal leaves the thread where it was.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// The cores of the machine, by number.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed_cores() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Without effect.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_to(_core: usize) {}
