//! The chat page, the dashboard and their few files, compiled in. Refuses to fetch anything from anywhere.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};

use super::path_text::PathText;
use crate::rejection::Rejection;
use throng_api::ApiError;

/// Scripts, styles and requests of this server only; nothing inline, nothing framed.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                       connect-src 'self'; base-uri 'none'; form-action 'none'; \
                                       frame-ancestors 'none'";

struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    etag: String,
}

static ASSETS: LazyLock<[Asset; 10]> = LazyLock::new(|| {
    [
        asset("index.html", "text/html; charset=utf-8", include_bytes!("../web/index.html")),
        asset("dashboard.html", "text/html; charset=utf-8", include_bytes!("../web/dashboard.html")),
        asset("style.css", "text/css; charset=utf-8", include_bytes!("../web/style.css")),
        asset("text.js", "text/javascript; charset=utf-8", include_bytes!("../web/text.js")),
        asset("app.js", "text/javascript; charset=utf-8", include_bytes!("../web/app.js")),
        asset("dashboard.css", "text/css; charset=utf-8", include_bytes!("../web/dashboard.css")),
        asset("metrics.js", "text/javascript; charset=utf-8", include_bytes!("../web/metrics.js")),
        asset("chart.js", "text/javascript; charset=utf-8", include_bytes!("../web/chart.js")),
        asset("dashboard.js", "text/javascript; charset=utf-8", include_bytes!("../web/dashboard.js")),
        asset("icon.svg", "image/svg+xml", include_bytes!("../web/icon.svg")),
    ]
});

fn asset(name: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Asset {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Asset { name, media_type, bytes, etag: format!("\"{hex}\"") }
}

/// The page that shows the server at work.
pub(super) async fn dashboard(headers: HeaderMap) -> Response {
    answer(&ASSETS[1], &headers)
}

/// The chat page.
pub(super) async fn index(headers: HeaderMap) -> Response {
    answer(&ASSETS[0], &headers)
}

/// One of its files.
pub(super) async fn file(
    PathText(name): PathText,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Rejection> {
    let found = ASSETS[2..].iter().find(|asset| asset.name == name);
    let asset = found.ok_or_else(|| ApiError::unknown_url(method.as_str(), uri.path()))?;
    Ok(answer(asset, &headers))
}

fn answer(asset: &Asset, headers: &HeaderMap) -> Response {
    let fields: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, asset.media_type),
        (header::ETAG, &asset.etag),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == asset.etag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, fields).into_response();
    }
    (fields, asset.bytes).into_response()
}
