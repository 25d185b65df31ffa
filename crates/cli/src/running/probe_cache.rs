//! The results of probes, kept for the next start in the user's cache folder, in a file that only the user
//! reads. They hold as long as the files of the drivers, the kernel and this program are the same. Does not
//! load drivers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::found_device::FoundDevice;

/// Version of the file's form.
const VERSION: u32 = 1;
/// Maximum bytes of the file, and number of its entries: one for each set of drivers.
const MOST_BYTES: u64 = 1 << 20;
const MOST_ENTRIES: usize = 8;
/// Maximum number of manifests of drivers that are read, and bytes of each.
const MOST_MANIFESTS: usize = 64;
const MOST_MANIFEST_BYTES: u64 = 64 << 10;
/// Folders of the manifests of drivers, and of the libraries that they name without a folder.
const MANIFESTS: [&str; 4] = [
    "/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
    "/usr/local/etc/vulkan/icd.d",
];
const LIBRARIES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/lib",
];
/// Variables that name drivers in place of these folders, and prefixes of those that drivers read.
const DRIVER_FILES: [&str; 3] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"];
const DRIVER_VARIABLES: [&str; 3] = ["VK_", "MESA_", "NVIDIA_"];

/// The result of a probe: a value, or the driver's fault.
pub type Verdict<T> = Result<T, String>;

/// Kept results of probes.
#[derive(Debug)]
pub struct ProbeCache {
    /// The file; `None` where nothing is kept.
    path: Option<PathBuf>,
    /// Digest of the drivers' files and of all else on which results depend.
    key: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// Results by set of drivers, the latest last.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: String,
    /// The devices, or the fault of a driver that was asked for them.
    devices: Option<Verdict<Vec<FoundDevice>>>,
    /// Whether each device computes, by its number.
    works: BTreeMap<usize, Verdict<()>>,
}

impl ProbeCache {
    /// The results that hold for this machine's drivers.
    pub fn of_this_machine() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        // Elsewhere drivers are not found by files.
        let path =
            folder.filter(|_| cfg!(target_os = "linux")).map(|folder| folder.join("throng/devices.json"));
        let key = if path.is_some() { driver_key() } else { String::new() };
        Self { path, key }
    }

    /// The devices that the drivers offer.
    pub fn devices(&self) -> Option<Verdict<Vec<FoundDevice>>> {
        self.entry()?.devices
    }

    /// Whether a device computes. The driver must be that of the probe, by its name and version.
    pub fn works(&self, device: &FoundDevice) -> Option<Verdict<()>> {
        let mut entry = self.entry()?;
        let is_same = |found: &FoundDevice| found.is_same(device);
        let found = entry.devices.is_some_and(|devices| devices.is_ok_and(|d| d.iter().any(is_same)));
        entry.works.remove(&device.number).filter(|_| found)
    }

    /// Keeps the devices. An empty list is not kept: a device may appear without a change of files.
    pub fn keep_devices(&self, devices: Verdict<Vec<FoundDevice>>) {
        if devices.as_ref().is_ok_and(Vec::is_empty) {
            return;
        }
        let devices = Some(devices);
        self.change(|entry| *entry = Entry { key: entry.key.clone(), devices, works: BTreeMap::new() });
    }

    /// Keeps whether a device computes.
    pub fn keep_works(&self, number: usize, works: Verdict<()>) {
        self.change(|entry| {
            entry.works.insert(number, works);
        });
    }

    /// Removes all results.
    pub fn forget(&self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }

    fn entry(&self) -> Option<Entry> {
        let kept = read(self.path.as_ref()?)?;
        kept.entries.into_iter().find(|entry| entry.key == self.key)
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        let Some(path) = &self.path else { return };
        let mut kept = read(path).unwrap_or_default();
        kept.version = VERSION;
        let at = kept.entries.iter().position(|entry| entry.key == self.key);
        let mut entry = at.map_or_else(Entry::default, |at| kept.entries.remove(at));
        entry.key.clone_from(&self.key);
        change(&mut entry);
        kept.entries.push(entry);
        let n_old = kept.entries.len().saturating_sub(MOST_ENTRIES);
        kept.entries.drain(..n_old);
        if let Err(error) = write(path, &kept) {
            tracing::debug!("the results of the devices' probes are not kept in {}: {error}", path.display());
        }
    }
}

/// The kept results; `None` if there are none, or the file is damaged or may be written by others.
fn read(path: &Path) -> Option<Kept> {
    let file = fs::File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES || !is_own(&metadata) {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == VERSION).then_some(kept)
}

/// Whether the file is this user's and no one else's.
#[cfg(unix)]
fn is_own(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = fs::metadata("/proc/self").map(|process| process.uid());
    metadata.mode() & 0o077 == 0 && own.is_ok_and(|uid| uid == metadata.uid())
}

#[cfg(not(unix))]
fn is_own(_: &fs::Metadata) -> bool {
    true
}

/// Replaces the file at once, so that another process never reads a part of it.
fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let new = folder.join(format!("devices.{}.tmp", std::process::id()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&new)?;
    file.write_all(&serde_json::to_vec_pretty(kept)?)?;
    fs::rename(&new, path)
}

/// A digest of the manifests and libraries of drivers, of the variables that drivers read, of the kernel and
/// of this program.
fn driver_key() -> String {
    let mut text =
        format!("{} {}\n", env!("CARGO_PKG_VERSION"), option_env!("THRONG_COMMIT").unwrap_or_default());
    for path in ["/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version"] {
        text.push_str(&fs::read_to_string(path).unwrap_or_default());
    }
    let is_read = |name: &str| DRIVER_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    let mut variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| is_read(name))
        .collect();
    variables.sort();
    text.extend(variables.iter().map(|(name, value)| format!("{name}={value}\n")));
    for folder in ["/dev/dri", "/dev"] {
        let nodes = names_in(Path::new(folder));
        let is_node = |name: &&String| folder == "/dev/dri" || name.starts_with("nvidia");
        text.extend(nodes.iter().filter(is_node).map(|name| format!("{folder}/{name}\n")));
    }
    for manifest in manifests(&variables) {
        text.push_str(&stamp(&manifest));
        let library = library_of(&manifest);
        text.extend(library.iter().map(|library| stamp(library)));
    }
    throng_wire::digest(text.as_bytes())
}

/// The manifests of drivers, in order.
fn manifests(variables: &[(String, String)]) -> Vec<PathBuf> {
    let named = variables.iter().filter(|(name, _)| DRIVER_FILES.contains(&name.as_str()));
    let named = named.flat_map(|(_, value)| std::env::split_paths(value).collect::<Vec<_>>());
    let own = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share/vulkan/icd.d"));
    let folders = MANIFESTS.iter().map(PathBuf::from).chain(own);
    let of_folder = |folder: PathBuf| names_in(&folder).into_iter().map(move |name| folder.join(name));
    named.chain(folders.flat_map(of_folder)).take(MOST_MANIFESTS).collect()
}

/// The library that a manifest names.
fn library_of(manifest: &Path) -> Option<PathBuf> {
    let mut text = String::new();
    fs::File::open(manifest).ok()?.take(MOST_MANIFEST_BYTES).read_to_string(&mut text).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    let library = Path::new(json["ICD"]["library_path"].as_str()?);
    if library.components().count() > 1 {
        return Some(manifest.parent()?.join(library));
    }
    LIBRARIES.iter().map(|folder| Path::new(folder).join(library)).find(|path| path.exists())
}

/// Path, size and time of change of a file.
fn stamp(path: &Path) -> String {
    let changed = |metadata: &fs::Metadata| metadata.modified().ok();
    let metadata = fs::metadata(path).ok();
    let size = metadata.as_ref().map(fs::Metadata::len);
    format!("{} {size:?} {:?}\n", path.display(), metadata.as_ref().and_then(changed))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(driver: &str) -> FoundDevice {
        FoundDevice {
            number: 1,
            interface: "vulkan".to_owned(),
            name: "a card".to_owned(),
            driver: driver.to_owned(),
            kind: "discrete GPU".to_owned(),
            is_software: false,
            memory_bytes: None,
            max_binding_bytes: 1,
            max_shared_bytes: 1,
            lacks: None,
        }
    }

    fn cache(folder: &Path, key: &str) -> ProbeCache {
        ProbeCache { path: Some(folder.join("throng/devices.json")), key: key.to_owned() }
    }

    #[test]
    fn results_are_kept_by_set_of_drivers() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (cache(folder.path(), "first"), cache(folder.path(), "second"));
        assert_eq!(first.devices(), None);
        first.keep_devices(Ok(Vec::new()));
        assert_eq!(first.devices(), None, "an empty list is not kept");
        first.keep_devices(Ok(vec![device("1.0")]));
        first.keep_works(1, Err("it crashed".to_owned()));
        second.keep_devices(Err("signal 6".to_owned()));
        assert_eq!(first.devices(), Some(Ok(vec![device("1.0")])));
        assert_eq!(first.works(&device("1.0")), Some(Err("it crashed".to_owned())));
        assert_eq!(first.works(&device("1.1")), None, "another version of the driver");
        assert_eq!(second.devices(), Some(Err("signal 6".to_owned())));
        assert_eq!(second.works(&device("1.0")), None);
        // Devices that are listed anew are probed anew.
        first.keep_devices(Ok(vec![device("1.0")]));
        assert_eq!(first.works(&device("1.0")), None);
        for i in 0..2 * MOST_ENTRIES {
            cache(folder.path(), &i.to_string()).keep_works(0, Ok(()));
        }
        let kept = read(first.path.as_ref().expect("a file")).expect("it is whole");
        assert_eq!(kept.entries.len(), MOST_ENTRIES);
        first.forget();
        assert_eq!(second.devices(), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_damaged_file_and_one_that_others_read_are_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path(), "key");
        cache.keep_devices(Ok(vec![device("1.0")]));
        let path = cache.path.as_ref().expect("a file");
        let mode = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o777, 0o600);
        mode(0o644);
        assert_eq!(cache.devices(), None);
        mode(0o600);
        assert!(cache.devices().is_some());
        let whole = fs::read(path).expect("it is ours");
        for damaged in [&whole[..whole.len() / 2], b"", b"{}", b"\xff\xfe", br#"{"version":9,"entries":[]}"#]
        {
            fs::write(path, damaged).expect("it is ours");
            assert_eq!(cache.devices(), None);
            cache.keep_devices(Ok(vec![device("1.0")]));
            assert!(cache.devices().is_some(), "a damaged file is replaced");
        }
    }
}
