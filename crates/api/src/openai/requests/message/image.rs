//! Checks that a server could fetch the URL of an image without reaching into its own network. Fetches
//! nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::{Host, Url};

use crate::error::ApiError;
use crate::json::{JsonType, Node};

/// Checks the value of `image_url`: `{"url": …}`, or the URL itself.
///
/// # Errors
/// `invalid_image_url` for anything but a public `http:` or `https:` URL or a `data:` URL of an image;
/// `invalid_image` for a `data:` URL whose content is not base64.
pub(super) fn check_image_url(node: &Node<'_, '_>) -> Result<(), ApiError> {
    if node.json_type() == JsonType::String {
        return check_url(node);
    }
    let mut has_url = false;
    node.known_members(&["url", "detail"], |key, value| {
        if key == "url" {
            has_url = true;
            return check_url(&value);
        }
        value.string(64).map(drop)
    })?;
    if has_url { Ok(()) } else { Err(ApiError::missing_required_parameter(node.path_of("url"))) }
}

fn check_url(node: &Node<'_, '_>) -> Result<(), ApiError> {
    let text = node.string(usize::MAX)?;
    if let Some(data) = text.strip_prefix("data:") {
        let Some((kind, content)) = data.split_once(',') else {
            return Err(ApiError::invalid_image_url(node.path()));
        };
        if !kind.starts_with("image/") || !kind.ends_with(";base64") {
            return Err(ApiError::invalid_image_url(node.path()));
        }
        return match STANDARD.decode(content) {
            Ok(image) if !image.is_empty() => Ok(()),
            _ => Err(ApiError::invalid_image(node.path())),
        };
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
    if is_public { Ok(()) } else { Err(ApiError::invalid_image_url(node.path())) }
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
