//! Tells the compiler the commit that is built, from git or the variable `THRONG_COMMIT`. Does not know
//! versions. Without git, as in an unpacked archive of the sources, there is no commit.

use std::path::Path;
use std::process::Command;

/// Digits of a commit's hash that are shown.
const SHOWN_DIGITS: usize = 12;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=THRONG_COMMIT");
    let given = std::env::var("THRONG_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_checkout).unwrap_or_default();
    println!("cargo:rustc-env=THRONG_COMMIT={}", commit.chars().take(SHOWN_DIGITS).collect::<String>());
    println!("cargo:rustc-env=THRONG_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

/// The commit of the checkout that these sources belong to; none if they lie inside another project's.
fn commit_of_checkout() -> Option<String> {
    let package = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let sources = Path::new(&package).parent()?.parent()?.canonicalize().ok()?;
    let checkout = Path::new(&git(&sources, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if checkout != sources {
        return None;
    }
    // Written whenever HEAD moves.
    if let Some(log) = git(&sources, &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&sources, &["rev-parse", "HEAD"])
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
