//! Images in requests: `data:` URLs become files, and other URLs are checked so that a server could fetch
//! them without reaching into its own network. Fetches nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::{Host, Url};

use crate::error::ApiError;
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

/// Reads `detail`; a value that is not known is none.
///
/// # Errors
/// A value that is no string.
pub(crate) fn read_detail(node: &Node<'_, '_>) -> Result<Option<&'static str>, ApiError> {
    Ok(detail_of(&node.string(64)?))
}

/// The value of `detail` that `text` spells, if it is known.
pub(crate) fn detail_of(text: &str) -> Option<&'static str> {
    DETAILS.iter().find(|detail| **detail == text).copied()
}

/// Reads a URL.
///
/// # Errors
/// Those of [`read_image_url`].
pub(crate) fn read_url(node: &Node<'_, '_>) -> Result<ImageSource, ApiError> {
    let text = node.string(usize::MAX)?;
    if text.starts_with("data:") {
        return of_data_url(&text, || node.path());
    }
    // The parser treats a backslash as a slash and drops tabs and line breaks; a client that does not would
    // see another host.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let is_public = is_plain
        && Url::parse(&text).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.username().is_empty()
                && url.password().is_none()
                && url.host().is_some_and(|host| is_public(&host))
        });
    if is_public {
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

/// The file in a text of base64; `None` if it is none, or empty.
pub(crate) fn of_base64(media_type: &str, content: &str) -> Option<ImageSource> {
    let bytes = STANDARD.decode(content).ok().filter(|bytes| !bytes.is_empty())?;
    Some(ImageSource::Bytes { media_type: media_type.to_owned(), bytes: bytes.into() })
}

/// Whether a host is not known to be internal. A name can still resolve to an internal address, which the
/// fetching code must check again.
fn is_public(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.contains('.')
                && ![".localhost", ".local", ".internal"].iter().any(|inner| name.ends_with(inner))
        }
        Host::Ipv4(address) => is_public_v4(*address),
        Host::Ipv6(address) => is_public_v6(*address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_inner = address.is_private() || address.is_loopback() || address.is_link_local() || is_shared;
    !(is_inner || a == 0 || address.is_broadcast() || address.is_multicast() || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match IpAddr::V6(address).to_canonical() {
        IpAddr::V4(inner) => is_public_v4(inner),
        IpAddr::V6(address) => {
            let is_inner = address.is_unique_local() || address.is_unicast_link_local();
            !(is_inner || address.is_loopback() || address.is_unspecified() || address.is_multicast())
        }
    }
}
