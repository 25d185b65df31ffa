//! The chat page, the dashboard and their files, compiled in. They fetch no content from other servers.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use sha2::{Digest, Sha256};

use super::path_text::PathText;
use crate::app::App;
use crate::rejection::Rejection;
use throng_api::ApiError;

/// Policy that permits scripts, styles, fonts and requests of this server only, no inline ones and no frames.
/// HTML from text passes the sanitizer (`web/sanitizer.js`).
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; \
                                       font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                                       frame-ancestors 'none'; require-trusted-types-for 'script'; \
                                       trusted-types dompurify";

/// Policy of the page of a plan: its own scripts and styles, without requests to any server.
const PLAN_CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                                            base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Seconds after which to look again for a plan that did not exist.
const PLAN_RETRY_S: u32 = 60;

struct Asset {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
    etag: String,
}

/// Files of `web/`, each with the name after its last slash.
macro_rules! assets {
    ($($path:literal),* $(,)?) => { vec![$(asset($path, include_bytes!(concat!("../web/", $path)))),*] };
}

/// The two pages and their files.
static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    assets![
        "index.html",
        "dashboard.html",
        "answer.js",
        "app.js",
        "call_view.js",
        "chart.js",
        "chat.js",
        "code_block.js",
        "composer.js",
        "conversation.js",
        "conversation_view.js",
        "dashboard.css",
        "dashboard.js",
        "dom.js",
        "editor.js",
        "frames.js",
        "icon.svg",
        "images.js",
        "llama_cpp_export.js",
        "markdown.js",
        "markdown_view.js",
        "math.js",
        "memory_storage.js",
        "message.css",
        "message_view.js",
        "metrics.js",
        "models.js",
        "preferences.js",
        "sanitizer.js",
        "search.js",
        "server.js",
        "server_copy.js",
        "settings.js",
        "shortcuts.js",
        "sidebar.js",
        "storage.js",
        "style.css",
        "token_view.js",
        "transfer.js",
        "vendor/highlight.min.js",
        "vendor/markdown-it.umd.min.js",
        "vendor/purify.min.js",
        "vendor/stix-two-math.woff2",
        "vendor/temml.min.js",
    ]
});

fn asset(path: &'static str, bytes: &'static [u8]) -> Asset {
    let name = path.rsplit('/').next().unwrap_or(path);
    let media_type = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("woff2") => "font/woff2",
        _ => "application/octet-stream",
    };
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Asset { name, media_type, bytes, etag: format!("\"{hex}\"") }
}

/// Serves the dashboard.
pub(super) async fn dashboard(headers: HeaderMap) -> Response {
    answer(&ASSETS[1], &headers)
}

/// Serves the chat page.
pub(super) async fn index(headers: HeaderMap) -> Response {
    answer(&ASSETS[0], &headers)
}

/// The page of a capacity plan, which has its scripts and styles in itself.
pub(super) async fn plan(State(app): State<Arc<App>>) -> Result<Response, Rejection> {
    let plan = app.observed.plan.get().ok_or_else(ApiError::not_recorded)?;
    let page = plan.page().await.map_err(|reason: String| ApiError::plan_not_ready(&reason, PLAN_RETRY_S))?;
    let fields: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, PLAN_CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    Ok((fields, page.to_string()).into_response())
}

/// A file of the pages.
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
