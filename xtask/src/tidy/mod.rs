//! The house rules that the compiler does not check. Each rule is a file here and returns findings; any
//! finding is an error.

mod circles;
mod documents;
mod edges;
mod folders;
mod limits;
mod prose;
mod sizes;
mod source;
mod wording;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::workspace;

/// A violation of a rule, with its place and description.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    place: String,
    rule: String,
}

impl Finding {
    fn new(place: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { place: place.into(), rule: rule.into() }
    }
}

/// A Rust file of the project, parsed.
struct SourceFile {
    /// Path from the workspace, with `/`.
    path: String,
    text: String,
    syntax: syn::File,
}

impl SourceFile {
    /// Whether the file is a test, a benchmark or an example of its crate, or begins with `#![cfg(test)]`.
    fn is_test(&self) -> bool {
        let is_beside_src =
            ["/tests/", "/benches/", "/examples/"].iter().any(|part| self.path.contains(part));
        is_beside_src || source::is_test_only(&self.syntax.attrs)
    }
}

/// Checks every rule.
pub fn run() -> Result<()> {
    let root = workspace();
    let files = source_files(&root)?;
    let mut findings = edges::check(&root)?;
    findings.extend(sizes::check(&root, &files)?);
    findings.extend(files.iter().flat_map(source::check));
    findings.extend(files.iter().flat_map(words::check));
    findings.extend(prose::check(&files));
    findings.extend(circles::check(&files));
    findings.extend(folders::check(&files));
    findings.extend(documents::check(&root)?);
    findings.extend(limits::check(&root, &files));
    findings.extend(wording::check(&root, &files)?);
    findings.sort();
    for finding in &findings {
        println!("{}: {}", finding.place, finding.rule);
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {} files, no findings", files.len());
    Ok(())
}

/// Writes the page of limits from the source.
pub fn write_limits() -> Result<()> {
    let root = workspace();
    let page = limits::page(&root, &source_files(&root)?)?;
    std::fs::write(root.join(limits::PAGE), page).context(limits::PAGE)?;
    println!("wrote {}", limits::PAGE);
    Ok(())
}

fn source_files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.sort();
    paths.into_iter().map(|path| parse(root, &path)).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
    Ok(())
}

fn parse(root: &Path, path: &Path) -> Result<SourceFile> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    let path = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
    Ok(SourceFile { path, text, syntax })
}
