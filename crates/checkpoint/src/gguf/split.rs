//! Models split over several files, as llama.cpp's `gguf-split` names and numbers them:
//! `name-00001-of-00003.gguf` with `split.no` and `split.count` in each file's metadata.

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::{GgufFile, GgufHeader};

/// Paths of all parts, in order, if `header` (of the file at `path`) names several parts.
pub(super) fn other_parts(path: &Path, header: &GgufHeader) -> Result<Option<Vec<PathBuf>>, GgufError> {
    let n_files = header.metadata.u64("split.count")?.unwrap_or(1);
    if n_files <= 1 {
        return Ok(None);
    }
    let no_such_name = || GgufError::SplitName { path: path.to_owned(), n_files };
    let file_name = path.file_name().and_then(|name| name.to_str()).ok_or_else(no_such_name)?;
    let stem = part_stem(file_name, n_files).ok_or_else(no_such_name)?;
    Ok(Some(
        (1..=n_files)
            .map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{n_files:05}.gguf")))
            .collect(),
    ))
}

/// `name` of `name-00002-of-00003.gguf`, when the file is named so for `n_files` files.
fn part_stem(file_name: &str, n_files: u64) -> Option<&str> {
    // Five digits bound the number of files that a header can ask for.
    let rest = file_name.strip_suffix(&format!("-of-{n_files:05}.gguf")).filter(|_| n_files <= 99_999)?;
    let (stem, number) = rest.rsplit_once('-')?;
    (number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(stem)
}

/// Opens all `paths`; `given` is the file at `given_path`, already open.
pub(super) fn open_parts(
    given_path: &Path,
    given: GgufFile,
    paths: &[PathBuf],
) -> Result<Vec<GgufFile>, GgufError> {
    let mut given = Some(given);
    let mut files = Vec::with_capacity(paths.len());
    for (idx, path) in paths.iter().enumerate() {
        let file = match given.take_if(|_| path == given_path) {
            Some(file) => file,
            None => GgufFile::open(path)?,
        };
        check(path, &file.header, "split.no", idx as u64)?;
        check(path, &file.header, "split.count", paths.len() as u64)?;
        files.push(file);
    }
    let n_tensors: usize = files.iter().map(|file| file.header.tensors.len()).sum();
    if files[0].header.metadata.get("split.tensors.count").is_some() {
        check(&paths[0], &files[0].header, "split.tensors.count", n_tensors as u64)?;
    }
    Ok(files)
}

fn check(path: &Path, header: &GgufHeader, key: &'static str, expected: u64) -> Result<(), GgufError> {
    let found = header.metadata.u64(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })?;
    if found != expected {
        return Err(GgufError::SplitMismatch { path: path.to_owned(), what: key, expected, found });
    }
    Ok(())
}
