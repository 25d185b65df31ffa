//! Images that a user attaches to a message of a chat in the terminal. Does not know models.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_images::{DecodeLimits, ImageFormat, read_header};

/// Number of first bytes by which a file's format is recognized.
const HEAD_BYTES: u64 = 32;

/// The file that a line attaches: that of `/image FILE`, or a path of an image alone, as a terminal pastes it
/// when a file is dropped on it.
pub fn attached(line: &str) -> Option<PathBuf> {
    if let Some(path) = line.strip_prefix("/image ") {
        return Some(unquoted(path).into());
    }
    let path = PathBuf::from(unquoted(line));
    (path.is_absolute() && is_image(&path)).then_some(path)
}

/// The image in a file as a part of a message.
///
/// # Errors
/// When it cannot be read, or is no image of a supported format and size.
pub fn image_part(path: &Path) -> Result<Value> {
    let limits = DecodeLimits::default();
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut bytes = Vec::new();
    let most = limits.max_bytes as u64 + 1;
    file.take(most).read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
    let header = match read_header(&bytes, &limits) {
        Ok(header) => header,
        Err(error) => bail!("{}: {error}", path.display()),
    };
    let url = format!("data:{};base64,{}", header.format.media_type(), STANDARD.encode(&bytes));
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}

/// The file in an image part of [`image_part`].
pub fn file_of(part: &Value) -> Option<Vec<u8>> {
    let (_, data) = part["image_url"]["url"].as_str()?.split_once(',')?;
    STANDARD.decode(data).ok()
}

fn is_image(path: &Path) -> bool {
    let mut head = Vec::new();
    let file = File::open(path).ok().filter(|_| path.is_file());
    let read = file.map(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    matches!(read, Some(Ok(_))) && ImageFormat::of(&head).is_some()
}

/// A path without the quotes and spaces around it.
fn unquoted(path: &str) -> &str {
    let path = path.trim();
    let quoted = ['"', '\''].iter().find_map(|quote| path.strip_prefix(*quote)?.strip_suffix(*quote));
    quoted.unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_and_the_path_of_an_image_attach_it() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/tests/fixtures/square.png");
        let path = path.to_str().expect("text");
        assert_eq!(attached("/image a b.png"), Some("a b.png".into()));
        assert_eq!(attached(&format!(" '{path}' ")), Some(path.into()));
        assert_eq!(attached(&format!("What is {path}?")), None);
        assert_eq!(attached(env!("CARGO_MANIFEST_DIR")), None);
        let part = image_part(Path::new(path)).expect("an image");
        assert_eq!(file_of(&part), std::fs::read(path).ok());
        assert!(image_part(Path::new(file!())).is_err());
    }
}
