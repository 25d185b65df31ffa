//! Reads an operator's text files, up to a bounded size. Does not know what is in them.

use std::io::{self, Read};
use std::path::Path;

use throng_os::mapped_file::open_regular;

use crate::usage_error::UsageError;

/// Maximum bytes of a file: far above any configuration or chat template.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a regular file.
///
/// # Errors
/// When it cannot be read, is a folder, a pipe or a device, has more than 1 MiB or is not UTF-8.
pub fn read(path: &Path) -> Result<String, UsageError> {
    let refuse = |reason: String| UsageError(format!("cannot read {}: {reason}", path.display()));
    let bytes = bounded(path).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(refuse(format!("it has more than {} KiB", MAX_BYTES >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| refuse("it is not UTF-8".to_owned()))
}

/// The file's bytes, up to one more than allowed.
fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
