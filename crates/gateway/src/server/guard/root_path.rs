//! Path under which a proxy shows the server, removed from requests if the proxy has not removed it. Does
//! not know routes.

use http::Uri;
use http::uri::PathAndQuery;

/// Treatment of a request's path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rooted {
    /// The URI to route.
    Route(Uri),
    /// Redirects to this path: relative links of a page need the slash at its end.
    Redirect(String),
}

/// Checks the setting.
///
/// # Errors
/// The setting, its value, and the expected value.
pub(crate) fn check(root: &str) -> Result<(), (&'static str, String, &'static str)> {
    let is_path = root.starts_with('/')
        && !root.ends_with('/')
        && !root.contains(['?', '#'])
        && PathAndQuery::try_from(root).is_ok();
    if root.is_empty() || is_path {
        return Ok(());
    }
    Err(("root_path", root.to_owned(), "a path that begins with a slash and does not end with one, as /llm"))
}

/// Removes `root` from the beginning of a path, if present.
pub(crate) fn strip(uri: Uri, root: &str) -> Rooted {
    let Some(rest) = uri.path().strip_prefix(root).filter(|_| !root.is_empty()) else {
        return Rooted::Route(uri);
    };
    if rest.is_empty() {
        return Rooted::Redirect(format!("{root}/"));
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    match PathAndQuery::try_from(format!("{rest}{query}")) {
        Ok(path) if rest.starts_with('/') => {
            let mut parts = uri.into_parts();
            parts.path_and_query = Some(path);
            Uri::from_parts(parts).map_or_else(|_| Rooted::Route(Uri::default()), Rooted::Route)
        }
        _ => Rooted::Route(uri),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_removed_where_it_stands() {
        for (root, path, routed) in [
            ("", "/v1/models?a=1", "/v1/models?a=1"),
            ("/llm", "/v1/models", "/v1/models"),
            ("/llm", "/llm/v1/models?a=1", "/v1/models?a=1"),
            ("/llm", "http://h/llm/x", "http://h/x"),
            ("/llm", "/llm/", "/"),
            ("/llm", "/llms/x", "/llms/x"),
            ("/a/b", "/a/b/c", "/c"),
        ] {
            let uri = |text: &str| text.parse::<Uri>().expect("a URI");
            assert_eq!(strip(uri(path), root), Rooted::Route(uri(routed)), "{root} {path}");
        }
        assert_eq!(strip("/llm?a=1".parse().expect("a URI"), "/llm"), Rooted::Redirect("/llm/".to_owned()));
        for good in ["", "/llm", "/a/b"] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in ["llm", "/llm/", "/", "/a b", "/a?b", "/a#b"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
