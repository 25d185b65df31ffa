//! JSON files of bounded size beside a model's weights. Does not know their content.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use throng_os::mapped_file::open_regular;

use super::LoadError;
use throng_arch::python_json;

/// Maximum bytes that are read of a file beside the weights; real tokenizers have up to 40 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The beginning of a text of a file, for messages.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A whole file; `None` when there is none.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let io_error = |source| LoadError::Io { path: path.to_owned(), source };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(malformed(path, format!("has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(Some(bytes))
}

pub(super) fn read_object(folder: &Path, name: &str) -> Result<Map<String, Value>, LoadError> {
    let path = folder.join(name);
    object(&path, read(&path)?)
}

/// An empty object if the file does not exist.
pub(super) fn object(path: &Path, json: Option<Vec<u8>>) -> Result<Map<String, Value>, LoadError> {
    let Some(json) = json else { return Ok(Map::new()) };
    python_json::from_slice(&json).map_err(|error| malformed(path, error.to_string()))
}

pub(super) fn malformed(path: &Path, reason: String) -> LoadError {
    LoadError::Malformed { path: path.to_owned(), reason }
}
