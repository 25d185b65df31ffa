//! The Debian package: an `ar` archive of the format's version, the control files and the data (deb(5)),
//! written without Debian's tools. Does not know what the binary is.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::tree::{Entry, Tree};
use super::{CONFIGURATION, add_service_files, binary, compressed, packaging};
use crate::shell::workspace;

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The file's name.
///
/// # Errors
/// On a processor that Debian packages are not made for here.
pub fn file_name(version: &str) -> Result<String> {
    Ok(format!("throng_{version}_{}.deb", architecture()?))
}

/// The package with the binary, the service and `shared`, the files of `share`.
///
/// # Errors
/// When a file cannot be read.
pub fn package(version: &str, binary: &Path, shared: &[Entry], seconds: u64) -> Result<Vec<u8>> {
    let program = std::fs::read(binary)?;
    let needs = match binary::glibc_version(&program) {
        Some((major, minor)) => format!("libc6 (>= {major}.{minor}), libgcc-s1"),
        None => "libc6, libgcc-s1".to_owned(),
    };
    let mut data = Tree::new(seconds);
    data.add(Entry::program("usr/bin/throng", program));
    add_service_files(&mut data, "usr/lib/systemd/system")?;
    data.add(Entry::file("usr/share/doc/throng/copyright", std::fs::read(workspace().join("LICENSE"))?));
    shared.iter().for_each(|entry| data.add(Entry { path: format!("usr/{}", entry.path), ..entry.clone() }));
    let conffiles: String = CONFIGURATION.iter().map(|(path, _)| format!("/{path}\n")).collect();
    let mut control = Tree::new(seconds);
    let text = control_file(version, architecture()?, data.n_bytes(), &needs);
    control.add(Entry::file("control", text.into_bytes()));
    control.add(Entry::file("conffiles", conffiles.into_bytes()));
    for script in SCRIPTS {
        control.add(Entry::program(script, packaging(script)?));
    }
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", compressed(&control.tar("./")?)?),
        ("data.tar.gz", compressed(&data.tar("./")?)?),
    ];
    let mut archive = ar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), bytes.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(seconds);
        archive.append(&header, bytes.as_slice())?;
    }
    archive.into_inner().context("the package")
}

fn control_file(version: &str, architecture: &str, n_bytes: usize, needs: &str) -> String {
    let kib = n_bytes.div_ceil(1024);
    format!(
        "Package: throng\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: The Throng maintainers <throng@localhost>\n\
         Installed-Size: {kib}\n\
         Depends: {needs}\n\
         Section: net\n\
         Priority: optional\n\
         Description: server for large language models with an OpenAI-compatible API\n \
         Serves GGUF and safetensors models to many users at once from the processor, and\n \
         brings a systemd service that listens on 127.0.0.1:8000.\n"
    )
}

/// Debian's name of this processor.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no Debian package is made for {other}"),
    }
}
