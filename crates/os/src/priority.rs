//! Scheduling of a thread by the system: length of time slices, and priority. No effect on systems without
//! these calls.

#[cfg(target_os = "linux")]
use rustix::process::{getpriority_process, setpriority_process};

/// Number added to the niceness of a low-priority thread: next to a compute thread it gets a quarter of a
/// core.
#[cfg(target_os = "linux")]
const LOWERED_BY: i32 = 5;

/// Nanoseconds of a short time slice: the least that Linux takes.
#[cfg(target_os = "linux")]
const SHORT_SLICE_NS: u64 = 100_000;

/// Asks for short time slices for the calling thread and those that it starts: it needs the processor for
/// microseconds at a time, and then soon. The scheduler runs a thread that has become ready before a
/// computing one if its slice would end earlier: with slices of equal length (2.8 ms) it may wait for the
/// rest of the other's. Its share of the processor stays the same. From Linux 6.12
/// (`sched_attr.sched_runtime` of sched_setattr(2)).
pub fn set_latency_slice() {
    #[cfg(target_os = "linux")]
    set_slice(SHORT_SLICE_NS);
}

/// Asks for time slices of the usual length.
pub fn set_default_slice() {
    #[cfg(target_os = "linux")]
    set_slice(0);
}

/// Lowers the priority of the calling thread below that of compute threads, without starving it: for long
/// work such as tokenization.
pub fn lower_priority() {
    set_default_slice();
    // On Linux both calls concern the calling thread alone. A refusal leaves it as it was.
    #[cfg(target_os = "linux")]
    if let Ok(niceness) = getpriority_process(None) {
        let _ = setpriority_process(None, niceness + LOWERED_BY);
    }
}

/// Changes the time slice of the calling thread, in nanoseconds; 0: the system's. Does not change threads of
/// real-time policies.
#[cfg(target_os = "linux")]
fn set_slice(ns: u64) {
    let Some(mut attributes) = attributes() else { return };
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = ns;
    // SAFETY: the call reads as many bytes as `size` says, which are all in the struct. A refusal leaves the
    // thread as it was.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

/// The scheduler's attributes of the calling thread; `None` if the system does not report them.
#[cfg(target_os = "linux")]
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: a struct of integers may be all zeros; the call fills at most `size` bytes of it.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let answer = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0);
        (answer == 0).then_some(attributes)
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    /// The slice of a new thread that ran `before`. A kernel without slices returns 0.
    fn slice_after(before: fn()) -> u64 {
        let slice = || attributes().map_or(0, |attributes| attributes.sched_runtime);
        std::thread::spawn(move || {
            before();
            slice()
        })
        .join()
        .expect("no panic")
    }

    #[test]
    fn slices_are_short_for_those_who_ask_and_usual_for_those_who_compute() {
        let usual = slice_after(|| {});
        if usual == 0 {
            eprintln!("skipped: this kernel has no slices for single threads (Linux 6.12 has)");
            return;
        }
        assert_eq!(slice_after(set_latency_slice), SHORT_SLICE_NS);
        let inherited =
            || std::thread::spawn(|| attributes().map(|it| it.sched_runtime)).join().expect("no panic");
        let child = std::thread::spawn(move || {
            set_latency_slice();
            inherited()
        });
        assert_eq!(child.join().expect("no panic"), Some(SHORT_SLICE_NS));
        for (back, lowered_by) in [(set_default_slice as fn(), 0), (lower_priority, LOWERED_BY)] {
            let niceness = || attributes().map(|attributes| attributes.sched_nice);
            let before = niceness();
            let thread = std::thread::spawn(move || {
                set_latency_slice();
                back();
                (attributes().map(|attributes| attributes.sched_runtime), niceness())
            });
            let (slice, after) = thread.join().expect("no panic");
            assert_eq!(slice, Some(usual));
            // 19 is the lowest priority there is.
            assert_eq!(after, before.map(|before| (before + lowered_by).min(19)));
        }
    }
}
