//! Checks the documents against the tree: ARCHITECTURE.md names every crate and stays short, and every path
//! that the documents name exists.

use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

const MAP: &str = "ARCHITECTURE.md";
const DOCUMENTS: &[&str] = &["README.md", MAP, "CONTRIBUTING.md"];
const PAGES: &str = "docs";
/// Most bytes of the map: it is read at one sitting.
const MAX_MAP_BYTES: usize = 16 << 10;

/// Finds crates that the map lacks and paths that do not exist.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let map = std::fs::read_to_string(root.join(MAP)).context(MAP)?;
    for entry in std::fs::read_dir(root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !map.contains(&format!("crates/{name}")) {
            findings.push(Finding::new(MAP, format!("crates/{name} is not on the map")));
        }
    }
    if map.len() > MAX_MAP_BYTES {
        findings.push(Finding::new(MAP, format!("{} bytes, at most {MAX_MAP_BYTES}", map.len())));
    }
    for document in documents(root)? {
        let text = std::fs::read_to_string(root.join(&document)).context(document.clone())?;
        for path in named_paths(&text) {
            if !root.join(path).exists() {
                findings.push(Finding::new(&document, format!("{path} does not exist")));
            }
        }
    }
    Ok(findings)
}

/// Paths of the documents, from the root.
fn documents(root: &Path) -> Result<Vec<String>> {
    let mut documents: Vec<String> = DOCUMENTS.iter().map(|name| (*name).to_owned()).collect();
    for entry in std::fs::read_dir(root.join(PAGES)).context(PAGES)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            documents.push(format!("{PAGES}/{name}"));
        }
    }
    Ok(documents)
}

/// Words in backquotes or link targets that begin with one of the project's folders.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: &[&str] = &["crates/", "xtask/", "docs/", "bench/", "tests/", "starter/", "fuzz/"];
    text.split(['`', '(', ')', '\n', ' '])
        .map(|word| word.trim_end_matches([',', '.', ':', ';']))
        .filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains(['*', '{', '<', '…']))
        .map(|word| word.split('#').next().unwrap_or(word))
}
