//! `cargo xtask dist`: packs the binary for strangers, as an archive and as a Debian package. Does not know
//! how packages are installed.

mod binary;
mod deb;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::shell::{cargo, output_of, workspace};
use tree::{Entry, Tree};

/// Manual pages and completions, with where a system keeps them below `usr/share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/throng"),
    ("zsh", "zsh/vendor-completions/_throng"),
    ("fish", "fish/vendor_completions.d/throng.fish"),
];

/// The services of systemd; the package starts the first one.
const SERVICES: [&str; 3] = ["throng.service", "throng-gateway.service", "throng-worker.service"];

/// Settings that an upgrade leaves as the operator has them, and their files in the folder `packaging`.
const CONFIGURATION: [(&str, &str); 2] =
    [("etc/throng/throng.toml", "throng.toml"), ("etc/throng/credentials/README", "credentials.txt")];

/// Builds the binary with the profile `dist`, or takes the one of `--binary PATH`, and writes the packages
/// into `target/packages` or the folder of `--out`.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (mut binary, mut out) = (None, workspace().join("target/packages"));
    for pair in arguments.chunks(2) {
        match pair {
            ["--binary", path] => binary = Some(PathBuf::from(path)),
            ["--out", path] => out = PathBuf::from(path),
            _ => bail!("usage: cargo xtask dist [--binary PATH] [--out FOLDER]"),
        }
    }
    let binary = match binary {
        Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
        None => {
            cargo(&["build", "--profile", "dist", "--locked", "--package", "throng-cli"])?;
            workspace().join("target/dist/throng")
        }
    };
    std::fs::create_dir_all(&out)?;
    let version = env!("CARGO_PKG_VERSION");
    let seconds = tree::timestamp();
    let shared = shared_files(&binary)?;
    let archive = format!("throng-{version}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let packages = [
        (
            format!("{archive}.tar.gz"),
            compressed(&of_archive(&binary, &shared, seconds)?.tar(&format!("{archive}/"))?)?,
        ),
        (deb::file_name(version)?, deb::package(version, &binary, &shared, seconds)?),
    ];
    let mut sums = String::new();
    for (name, bytes) in packages {
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        sums += &format!("{sum}  {name}\n");
        let path = out.join(&name);
        std::fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
        println!("{} ({:.1} MB)", path.display(), bytes.len() as f64 / 1e6);
    }
    std::fs::write(out.join("SHA256SUMS"), sums)?;
    Ok(())
}

/// The archive: the binary, the licence, and the files of `share`.
fn of_archive(binary: &Path, shared: &[Entry], seconds: u64) -> Result<Tree> {
    let mut tree = Tree::new(seconds);
    tree.add(Entry::program("bin/throng", std::fs::read(binary)?));
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        tree.add(Entry::file(name, std::fs::read(workspace().join(name))?));
    }
    add_service_files(&mut tree, "lib/systemd/system")?;
    shared.iter().for_each(|entry| tree.add(entry.clone()));
    Ok(tree)
}

/// The units of the services into `units`, and what they read below `etc/throng`.
fn add_service_files(tree: &mut Tree, units: &str) -> Result<()> {
    for service in SERVICES {
        tree.add(Entry::file(&format!("{units}/{service}"), packaging(service)?));
    }
    for (path, name) in CONFIGURATION {
        tree.add(Entry::file(path, packaging(name)?));
    }
    Ok(())
}

/// What the binary says about itself: manual pages and completions, below `share`.
fn shared_files(binary: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (shell, path) in COMPLETIONS {
        let script = output_of(binary, &["completions", shell])?;
        entries.push(Entry::file(&format!("share/{path}"), script));
    }
    let folder = workspace().join("target/man");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    output_of(binary, &["man", &folder.to_string_lossy()])?;
    let mut pages: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    pages.sort_by_key(std::fs::DirEntry::file_name);
    for page in pages {
        let name = page.file_name().to_string_lossy().into_owned();
        entries.push(Entry::file(
            &format!("share/man/man1/{name}.gz"),
            compressed(&std::fs::read(page.path())?)?,
        ));
    }
    Ok(entries)
}

/// A file of the folder `packaging`.
fn packaging(name: &str) -> Result<Vec<u8>> {
    let path = workspace().join("packaging").join(name);
    std::fs::read(&path).with_context(|| path.display().to_string())
}

/// With no name and no time in the header, so that the same input gives the same bytes.
fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    std::io::Write::write_all(&mut encoder, bytes)?;
    Ok(encoder.finish()?)
}
