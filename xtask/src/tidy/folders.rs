//! A folder holds few enough files to be read at a glance.

use std::collections::BTreeMap;

use super::{Finding, SourceFile};

/// Most Rust files directly in a folder.
const MAX_FILES: usize = 20;

/// Has one file a model family.
const EXCEPT: &str = "crates/arch/src/families";

/// What cargo wants side by side: each is a program of its own.
const PROGRAMS: &[&str] = &["/tests", "/benches", "/examples"];

/// Finds folders with more files.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut n_files: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files {
        if let Some((folder, _)) = file.path.rsplit_once('/') {
            *n_files.entry(folder).or_default() += 1;
        }
    }
    let is_exempt = |folder: &str| folder == EXCEPT || PROGRAMS.iter().any(|end| folder.ends_with(end));
    let too_full = n_files.into_iter().filter(|(folder, n)| *n > MAX_FILES && !is_exempt(folder));
    too_full
        .map(|(folder, n)| {
            Finding::new(folder, format!("{n} files, at most {MAX_FILES}: group them in folders"))
        })
        .collect()
}
