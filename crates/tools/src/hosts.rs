//! Destinations of requests to tools: the origins that the operator lists, and a client without redirects.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Url;
use reqwest::redirect::Policy;

use crate::error::ToolsError;

/// Time within which a connection must be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Origins of MCP servers that requests may name.
#[derive(Debug, Default)]
pub(crate) struct AllowedOrigins(BTreeSet<String>);

impl AllowedOrigins {
    /// Reads the operator's list.
    ///
    /// # Errors
    /// [`ToolsError::Setting`] for text that is not an origin.
    pub fn new(listed: &[String]) -> Result<Self, ToolsError> {
        let read = |text: &String| {
            let url = parse(text)
                .ok()
                .filter(|url| url.path() == "/" && url.query().is_none() && url.username().is_empty());
            let expected = "must be an origin such as https://mcp.example.org or http://127.0.0.1:9000";
            let fault = || ToolsError::setting(format!("gateway.tools.hosted_origins: {text:?}"), expected);
            url.map(|url| origin(&url)).ok_or_else(fault)
        };
        listed.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The URL of a server that a request names.
    ///
    /// # Errors
    /// [`ToolsError::Forbidden`] for one of another origin.
    pub fn check(&self, url: &str) -> Result<Url, ToolsError> {
        let forbidden =
            |reason: &str| ToolsError::Forbidden(format!("The 'server_url' is refused: {reason}."));
        let url = parse(url).map_err(|fault| forbidden(&fault))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(forbidden("it has a user name; use 'headers' or 'authorization'"));
        }
        if !self.0.contains(&origin(&url)) {
            return Err(forbidden("its origin is not among those that the operator allows"));
        }
        Ok(url)
    }
}

/// The origin of a URL as text.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Reads an address of HTTP or HTTPS.
///
/// # Errors
/// Description of the fault.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        scheme => Err(format!("'{scheme}' is neither http nor https")),
    }
}

/// The HTTP client of all tools. It follows no redirect, so that no listed host leads to another one.
///
/// # Errors
/// [`ToolsError::Setting`] where TLS cannot be set up.
pub(crate) fn client() -> Result<reqwest::Client, ToolsError> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = reqwest::Client::builder()
        .user_agent(concat!("throng/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .build();
    built.map_err(|error| ToolsError::setting("gateway.tools", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_are_reached() {
        let listed = ["https://mcp.example.org".to_owned(), "http://127.0.0.1:9000/".to_owned()];
        let allowed = AllowedOrigins::new(&listed).expect("origins");
        for good in
            ["https://mcp.example.org/sse?x=1", "https://MCP.example.org:443/a", "http://127.0.0.1:9000"]
        {
            assert!(allowed.check(good).is_ok(), "{good}");
        }
        for bad in [
            "http://mcp.example.org/",
            "https://mcp.example.org:8443/",
            "https://mcp.example.org.evil.test/",
            "https://mcp.example.org@evil.test/",
            "https://user@mcp.example.org/",
            "http://127.0.0.1:9001/",
            "http://2130706433:9001/",
            "http://localhost:9000/",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "nothing",
        ] {
            assert!(matches!(allowed.check(bad), Err(ToolsError::Forbidden(_))), "{bad}");
        }
        assert!(AllowedOrigins::default().check("https://mcp.example.org/").is_err());
    }

    #[test]
    fn a_list_has_origins_only() {
        for bad in ["mcp.example.org", "*", "https://a.test/path", "ftp://a.test"] {
            assert!(AllowedOrigins::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
