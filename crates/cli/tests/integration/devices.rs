//! Drivers of GPUs that are absent, crash, or work: `throng devices` and `--device`.

use std::path::Path;
use std::process::{Command, Output};

use throng_testkit::shared_files::note_skipped;

use crate::process::throng;

/// Runs the program with the drivers that a file names; the file need not exist. No probe before is known.
fn run(arguments: &[&str], drivers: Option<&Path>) -> (i32, String) {
    let caches = tempfile::tempdir().unwrap();
    run_in(caches.path(), arguments, drivers)
}

/// Runs the program with the results of probes in a folder.
fn run_in(caches: &Path, arguments: &[&str], drivers: Option<&Path>) -> (i32, String) {
    let mut command = throng(arguments);
    command.env("XDG_CACHE_HOME", caches);
    if let Some(drivers) = drivers {
        command.env("VK_DRIVER_FILES", drivers).env("VK_ICD_FILENAMES", drivers);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let told = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(!told.contains("panicked"), "{told}");
    (status.code().expect("no signal ended it"), told)
}

const GENERATE: [&str; 7] = ["generate", "--prompt", "Hello", "--max-tokens", "3", "--device", "vulkan:0"];

#[test]
fn a_missing_driver_is_a_sentence() {
    let nowhere = Path::new("/nonexistent/driver.json");
    let (status, told) = run(&["devices"], Some(nowhere));
    assert_eq!(status, 0, "{told}");
    assert!(told.contains("No driver offers a GPU."), "{told}");
    let (status, told) = run(&GENERATE, Some(nowhere));
    assert_eq!(status, 1, "{told}");
    assert!(told.contains("no driver offers a GPU; install"), "{told}");
    let (status, told) = run(&[&GENERATE[..5], &["--device", "auto"]].concat(), Some(nowhere));
    assert_eq!(status, 0, "{told}");
}

#[test]
fn a_driver_that_crashes_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = "#include <stdlib.h>\n__attribute__((constructor)) static void crash(void) { abort(); }\n";
    std::fs::write(path("crash.c"), source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([path("libcrash.so"), path("crash.c")]);
    let has_loader = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .iter()
        .any(|folder| Path::new(folder).join("libvulkan.so.1").exists());
    if !has_loader || !compiler.status().is_ok_and(|status| status.success()) {
        return note_skipped("a GPU's driver that crashes: there is no Vulkan loader or no C compiler");
    }
    let library = path("libcrash.so");
    let manifest = format!(
        r#"{{"file_format_version": "1.0.0", "ICD": {{"library_path": {:?}, "api_version": "1.3.0"}}}}"#,
        library.to_str().unwrap()
    );
    std::fs::write(path("crash.json"), manifest).unwrap();
    for arguments in [&["devices"][..], &GENERATE] {
        let (status, told) = run(arguments, Some(&path("crash.json")));
        assert_eq!(status, 1, "{told}");
        let says = told.contains("the driver crashed the process that asked it (signal 6)");
        assert!(says, "{told}");
    }
    let (status, told) = run(&[&GENERATE[..5], &["--device", "auto"]].concat(), Some(&path("crash.json")));
    assert_eq!(status, 0, "{told}");
    // The verdict is kept with its reason, until the driver's library changes or it is tried again.
    let caches = tempfile::tempdir().unwrap();
    let devices = |arguments: &[&str]| run_in(caches.path(), arguments, Some(&path("crash.json"))).1;
    let is_kept = |told: &str| told.contains("(signal 6); found by an earlier start");
    assert!(!is_kept(&devices(&["devices"])));
    let told = devices(&["devices"]);
    assert!(is_kept(&told), "{told}");
    assert!(is_kept(&devices(&GENERATE)));
    assert!(!is_kept(&devices(&["devices", "--probe-again"])));
    std::fs::write(caches.path().join("throng/devices.json"), "{").unwrap();
    assert!(!is_kept(&devices(&["devices"])));
    assert!(is_kept(&devices(&["devices"])));
    std::fs::write(&library, "no library").unwrap();
    let told = devices(&["devices"]);
    assert!(!told.contains("signal 6"), "{told}");
}

#[test]
fn a_device_is_listed_and_computes() {
    let caches = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], drivers| run_in(caches.path(), arguments, drivers);
    let (status, told) = run(&["devices"], None);
    assert_eq!(status, 0, "{told}");
    if told.contains("No driver offers a GPU.") {
        return note_skipped("a model on a GPU: no driver offers one (apt-get install mesa-vulkan-drivers)");
    }
    assert!(told.contains("vulkan:0") && told.contains("yes"), "{told}");
    let (status, told) = run(&[&GENERATE[..], &["--temperature", "0"]].concat(), None);
    assert_eq!(status, 0, "{told}");
    // The processor alone, with a GPU's flags; and layers on both.
    for (layers, device) in [("0", "vulkan:0"), ("all", "vulkan:0"), ("1", "vulkan:0"), ("1", "cpu")] {
        let divided = [&GENERATE[..5], &["--temperature", "0", "--device", device, "-ngl", layers]].concat();
        let (status, told) = run(&divided, None);
        assert_eq!(status, 0, "{told}");
        assert_eq!(told.contains("--gpu-layers has no effect"), device == "cpu", "{told}");
    }
    let (status, told) = run(&["generate", "--prompt", "Hello", "--device", "vulkan:99"], None);
    assert_eq!(status, 1, "{told}");
    assert!(told.contains("--device vulkan:99: devices are numbered from 0 to "), "{told}");
}
