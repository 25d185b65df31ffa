//! Paths of clients whose base address has a `/v1` too many or too few, or extra slashes, mapped to the
//! intended route. Only clients' routes are found this way, with the same access check, since the path is
//! changed before routing. Does not know callers.

use http::Uri;
use http::uri::PathAndQuery;

use super::{Access, ROUTES, Route};

/// The URI with the path of the client's route that is meant, if its own path has no route.
pub(crate) fn tidied(uri: Uri) -> Uri {
    let Some(path) = meant(uri.path()) else { return uri };
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let Ok(path) = PathAndQuery::try_from(format!("{path}{query}")) else { return uri };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).unwrap_or(uri)
}

/// Path of the route that is meant by a path without a route.
fn meant(path: &str) -> Option<String> {
    if route_at(path).is_some() {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let parts = if parts.starts_with(&["v1", "v1"]) { &parts[1..] } else { &parts[..] };
    let without = parts.strip_prefix(&["v1"]).unwrap_or(parts);
    let is_of_clients = |route: &Route| matches!(route.access, Access::Key | Access::Shared);
    let candidates = [format!("/{}", parts.join("/")), format!("/v1/{}", without.join("/"))];
    let found = candidates.into_iter().find(|path| route_at(path).is_some_and(is_of_clients));
    found.or_else(|| {
        let bare = format!("/{}", without.join("/"));
        let is_bare = without.first() != Some(&"v1");
        route_at(&bare).is_some_and(|route| is_bare && route.access == Access::Key).then_some(bare)
    })
}

/// Route of a path: one with the literal path, else one whose pattern matches.
fn route_at(path: &str) -> Option<&'static Route> {
    let named = ROUTES.iter().find(|route| route.path == path && !route.path.contains('{'));
    named.or_else(|| ROUTES.iter().find(|route| route.path.contains('{') && has_pattern(path, route.path)))
}

/// Whether a path matches a pattern in axum's notation: `{name}` matches one part, `{*name}` the rest.
fn has_pattern(path: &str, pattern: &str) -> bool {
    let (mut parts, mut rest) = (pattern.split('/'), Some(path));
    for part in &mut parts {
        let Some(text) = rest else { return false };
        if part.starts_with("{*") {
            return !text.is_empty();
        }
        let (first, others) = text.split_once('/').map_or((text, None), |(first, rest)| (first, Some(rest)));
        let is_name = part.starts_with('{');
        if !(if is_name { !first.is_empty() } else { first == part }) {
            return false;
        }
        rest = others;
    }
    rest.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_routes_are_found_and_no_others() {
        for (path, expected) in [
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/chat/completions?a=1", "/v1/chat/completions?a=1"),
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1//chat/completions", "/v1/chat/completions"),
            ("/v1/completions/", "/v1/completions"),
            ("/models", "/v1/models"),
            ("/models/org/name", "/v1/models/org/name"),
            ("/v1/v1/models/org/name", "/v1/models/org/name"),
            ("/embeddings", "/v1/embeddings"),
            ("/v1/tokenize", "/tokenize"),
            ("/v1/v1/rerank", "/v1/rerank"),
            ("/organization/costs", "/v1/organization/costs"),
            ("http://h/models", "http://h/v1/models"),
        ] {
            let tidy = tidied(path.parse().expect("a URI"));
            assert_eq!(tidy.to_string(), expected.parse::<Uri>().expect("a URI").to_string(), "{path}");
        }
        for path in [
            "/v1/chat/completions",
            "/rerank",
            "/v1/models/load",
            "/models/load",
            "/v1/v1/models/load",
            "/v1/v1/load_lora_adapter",
            "/load_lora_adapter",
            "//v1/load_lora_adapter",
            "//metrics",
            "/v1/metrics",
            "/v1/load",
            "/v1/fleet",
            "/v1/admin/keys",
            "//admin/keys",
            "/admin/keys/",
            "/v1/explain",
            "/v1/v1/v1/models",
            "/v2/models",
            "/v1",
            "/",
            "//",
            "*",
        ] {
            assert_eq!(meant(path), None, "{path}");
        }
    }
}
