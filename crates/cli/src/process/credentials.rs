//! Secrets that systemd passes to a service (`LoadCredential=`, systemd.exec(5)): files in the folder
//! `CREDENTIALS_DIRECTORY` that only the service can read. Does not know their use.

use std::path::PathBuf;

use crate::text_file;
use crate::usage_error::UsageError;

/// Environment variable with the folder.
const VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// Prefix of the files of a systemd credential folder that is loaded as `throng`.
const PREFIX: &str = "throng_";

/// The file of a credential, if it was passed: `throng_NAME` or `NAME`.
pub fn file(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty())?);
    [format!("{PREFIX}{name}"), name.to_owned()]
        .into_iter()
        .map(|name| folder.join(name))
        .find(|file| file.exists())
}

/// The text of a credential without surrounding whitespace, if it was passed.
///
/// # Errors
/// When it cannot be read or is empty.
pub fn text(name: &str) -> Result<Option<String>, UsageError> {
    let Some(file) = file(name) else { return Ok(None) };
    let text = text_file::read(&file)?.trim().to_owned();
    if text.is_empty() {
        return Err(UsageError(format!("the credential {name} ({}) is empty", file.display())));
    }
    Ok(Some(text))
}
