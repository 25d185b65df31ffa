//! Available memory of this process, and its peak so far. Does not know what the memory is for.

use std::fs;

/// Bytes that can be allocated without swapping: the kernel's `MemAvailable`, at most the control group's
/// limit. `None` if neither can be read.
pub fn available_bytes() -> Option<u64> {
    let machine =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_field(&text, "MemAvailable:"));
    [machine, group_bytes()].into_iter().flatten().min()
}

/// Peak resident bytes of this process, including pages of mapped files. `None` if the system does not report
/// it.
pub fn peak_bytes() -> Option<u64> {
    meminfo_field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes left below the limit of a version 2 control group (containers).
fn group_bytes() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       32 kB\nMemAvailable:   16 kB\n";
        assert_eq!(meminfo_field(text, "MemAvailable:"), Some(16 * 1024));
        assert_eq!(meminfo_field("MemTotal: 1 kB", "MemAvailable:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_includes_allocated_memory() {
        let taken = vec![1u8; 64 << 20];
        let peak = peak_bytes().expect("Linux tells");
        assert!(peak >= taken.iter().map(|byte| u64::from(*byte)).sum(), "{peak}");
    }
}
