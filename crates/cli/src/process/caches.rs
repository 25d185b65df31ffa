//! Sizes of this machine's CPU caches, as the system reports them. Does not know what the caches are used
//! for.

use std::fs;
use std::path::Path;

/// Assumed sizes if the system reports nothing.
const USUAL: Caches = Caches { second_level: 1 << 20, last_level_share: 4 << 20, last_level: 32 << 20 };

/// Cache sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// L2 cache of one core.
    pub second_level: usize,
    /// Last-level cache, divided by the number of cores that share it.
    pub last_level_share: usize,
    /// Last-level cache.
    pub last_level: usize,
}

impl Caches {
    /// The caches of the first core.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(USUAL)
    }

    fn read(folder: &Path) -> Option<Self> {
        let mut caches = Vec::new();
        for index in fs::read_dir(folder).ok()? {
            let index = index.ok()?.path();
            let field = |name: &str| Some(fs::read_to_string(index.join(name)).ok()?.trim().to_owned());
            // The folder also contains other entries.
            let (Some(level), Some(kind), Some(size)) = (field("level"), field("type"), field("size")) else {
                continue;
            };
            if kind != "Instruction" {
                let n_sharing = field("shared_cpu_list").map_or(1, |list| n_listed(&list));
                caches.push((level.parse::<u32>().ok()?, bytes(&size)?, n_sharing));
            }
        }
        caches.sort_unstable();
        let second = caches.iter().find(|(level, ..)| *level == 2)?;
        let last = caches.last()?;
        Some(Self {
            second_level: second.1 / second.2,
            last_level_share: last.1 / last.2,
            last_level: last.1,
        })
    }
}

/// Parses a size such as `48K` or `2M`.
fn bytes(size: &str) -> Option<usize> {
    let (number, shift) = match size.split_at_checked(size.len().checked_sub(1)?)? {
        (number, "K") => (number, 10),
        (number, "M") => (number, 20),
        _ => (size, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Number of items in a list such as `0-3,8`; at least one.
fn n_listed(list: &str) -> usize {
    let n = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((last.parse::<usize>().ok()?).saturating_sub(first.parse().ok()?) + 1)
    };
    list.split(',').filter_map(n).sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_parsed_from_sysfs() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |index: &str, fields: [&str; 4]| {
            let index = folder.path().join(index);
            std::fs::create_dir(&index).expect("a folder");
            for (name, value) in ["level", "type", "size", "shared_cpu_list"].into_iter().zip(fields) {
                std::fs::write(index.join(name), format!("{value}\n")).expect("written");
            }
        };
        assert_eq!(Caches::read(folder.path()), None);
        write("index0", ["1", "Data", "48K", "0,4"]);
        write("index1", ["1", "Instruction", "32K", "0,4"]);
        write("index2", ["2", "Unified", "2048K", "0,4"]);
        write("index3", ["3", "Unified", "32M", "0-7"]);
        std::fs::write(folder.path().join("uevent"), "").expect("written");
        let expected = Caches { second_level: 1 << 20, last_level_share: 4 << 20, last_level: 32 << 20 };
        assert_eq!(Caches::read(folder.path()), Some(expected));
        assert_eq!(Caches::read(Path::new("/nowhere")), None);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(["0", "0-3", "0-1,4-5,9", ""].map(n_listed), [1, 4, 5, 1]);
    }
}
