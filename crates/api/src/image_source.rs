//! Images in requests: `data:` URLs become files, and other URLs are checked so that a server could fetch
//! them without reaching into its own network. Fetches nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use crate::error::ApiError;
use crate::image_hosts::is_public;
use crate::json::{JsonType, Node};
use crate::spec::{ImagePart, ImageSource};

const DETAILS: &[&str] = &["auto", "low", "high", "original"];

/// Reads the value of `image_url`: `{"url": …, "detail": …}`, or the URL itself. `param` is the path of the
/// part.
///
/// # Errors
/// `invalid_image_url` for anything but a public `http:` or `https:` URL or a `data:` URL of an image;
/// `invalid_image` for a `data:` URL whose content is not base64.
pub(crate) fn read_image_url(node: &Node<'_, '_>, param: String) -> Result<ImagePart, ApiError> {
    if node.json_type() == JsonType::String {
        return Ok(ImagePart { source: read_url(node)?, detail: None, param });
    }
    let (mut source, mut detail) = (None, None);
    node.known_members(&["url", "detail"], |key, value| {
        match key {
            "url" => source = Some(read_url(&value)?),
            _ if value.is_null() => {}
            _ => detail = read_detail(&value)?,
        }
        Ok(())
    })?;
    let source = source.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("url")))?;
    Ok(ImagePart { source, detail, param })
}

/// Reads `detail`; unknown values are ignored.
///
/// # Errors
/// A value that is no string.
pub(crate) fn read_detail(node: &Node<'_, '_>) -> Result<Option<&'static str>, ApiError> {
    Ok(detail_of(&node.string(64)?))
}

/// The value of `detail` that `text` spells, if there is one.
pub(crate) fn detail_of(text: &str) -> Option<&'static str> {
    DETAILS.iter().find(|detail| **detail == text).copied()
}

/// Reads a URL. Its host is public, or one of the operator's list.
///
/// # Errors
/// The errors of [`read_image_url`].
pub(crate) fn read_url(node: &Node<'_, '_>) -> Result<ImageSource, ApiError> {
    let text = node.string(usize::MAX)?;
    if text.starts_with("data:") {
        return of_data_url(&text, || node.path());
    }
    // The parser treats a backslash as a slash and drops tabs and line breaks; a client that does not would
    // see another host.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let is_fit = |url: Url| {
        let is_nobodys = url.username().is_empty() && url.password().is_none();
        let is_web = matches!(url.scheme(), "http" | "https") && is_nobodys;
        is_web
            && (url.host().is_some_and(|host| is_public(&host))
                || node.image_hosts().is_some_and(|hosts| hosts.permitted(&url).is_some()))
    };
    if is_plain && Url::parse(&text).is_ok_and(is_fit) {
        Ok(ImageSource::Url(text.into_owned()))
    } else {
        Err(ApiError::invalid_image_url(node.path()))
    }
}

/// The file in a `data:` URL.
///
/// # Errors
/// `invalid_image_url` and `invalid_image` at the path that `param` returns.
pub(crate) fn of_data_url(url: &str, param: impl Fn() -> String) -> Result<ImageSource, ApiError> {
    let content = url.strip_prefix("data:").and_then(|data| data.split_once(','));
    let (kind, content) = content.ok_or_else(|| ApiError::invalid_image_url(param()))?;
    let media_type = kind.strip_suffix(";base64").filter(|kind| kind.starts_with("image/"));
    let media_type = media_type.ok_or_else(|| ApiError::invalid_image_url(param()))?;
    of_base64(media_type, content).ok_or_else(|| ApiError::invalid_image(param()))
}

/// The file in a base64 text; `None` if the text is invalid or empty.
pub(crate) fn of_base64(media_type: &str, content: &str) -> Option<ImageSource> {
    let bytes = STANDARD.decode(content).ok().filter(|bytes| !bytes.is_empty())?;
    Some(ImageSource::Bytes { media_type: media_type.to_owned(), bytes: bytes.into() })
}
