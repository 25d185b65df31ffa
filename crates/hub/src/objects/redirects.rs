//! The HTTP client of object stores and web servers. Follows redirects only to the same origin or service: a
//! store could otherwise redirect the server to an address of its own network, or leak a bucket's signatures
//! and session tokens to another host. Does not know the fetched objects.

use object_store::ClientOptions;
use object_store::client::{ClientConfigKey, HttpClient, HttpConnector};
use reqwest::Url;
use reqwest::redirect::{Attempt, Policy};

use super::TIMEOUT;

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 5;
/// Services that store their files on other hosts: the host of a URL, and the domains that it may redirect
/// to.
const SERVICES: [(&str, &[&str]); 3] = [
    ("huggingface.co", &["huggingface.co", "hf.co"]),
    ("github.com", &["github.com", "githubusercontent.com"]),
    ("modelscope.cn", &["modelscope.cn"]),
];

/// Builds clients that follow redirects to the same origin; requests without credentials also to the same
/// service.
#[derive(Debug, Clone, Copy)]
pub(super) struct BoundedRedirects {
    /// Whether requests may carry credentials, as those for a bucket do.
    pub is_signed: bool,
}

impl HttpConnector for BoundedRedirects {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let is_set =
            |key: &ClientConfigKey| options.get_config_value(key).is_some_and(|value| value == "true");
        let is_signed = self.is_signed;
        let follow = move |attempt: Attempt<'_>| {
            let fault = fault(attempt.previous(), attempt.url(), is_signed);
            match fault {
                None => attempt.follow(),
                Some(fault) => attempt.error(fault),
            }
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("throng/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::custom(follow))
            .timeout(TIMEOUT)
            .https_only(!is_set(&ClientConfigKey::AllowHttp))
            .danger_accept_invalid_certs(is_set(&ClientConfigKey::AllowInvalidCertificates));
        if let Some(proxy) = options.get_config_value(&ClientConfigKey::ProxyUrl) {
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(failed)?);
        }
        Ok(HttpClient::new(builder.build().map_err(failed)?))
    }
}

fn failed(error: reqwest::Error) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP client", source: Box::new(error) }
}

/// The reason why a redirect is not followed; `None` if it is. `previous` are the earlier addresses, the
/// original one first.
fn fault(previous: &[Url], to: &Url, is_signed: bool) -> Option<String> {
    let (Some(first), Some(from)) = (previous.first(), previous.last()) else { return None };
    if previous.len() > MAX_REDIRECTS {
        return Some(format!("it redirects more than {MAX_REDIRECTS} times"));
    }
    if to.origin() == from.origin() {
        return None;
    }
    let shown = to.origin().ascii_serialization();
    if is_signed {
        return Some(format!(
            "it redirects to {shown}, and the requests of a bucket are not sent to another host: is its region or endpoint right?"
        ));
    }
    let is_downgraded = from.scheme() == "https" && to.scheme() != "https";
    let same_service = match (first.host_str(), to.host_str()) {
        (Some(first), Some(to)) => is_same_service(first, to),
        _ => false,
    };
    let has_default_ports = first.port().is_none() && to.port().is_none();
    if same_service && has_default_ports && !is_downgraded {
        return None;
    }
    Some(format!("it redirects to {shown}, which is another server; if that is meant, name its URL"))
}

/// Whether a host is the original one, a subdomain of it, or one of the same service.
fn is_same_service(first: &str, to: &str) -> bool {
    let is_in = |host: &str, domain: &str| {
        host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    };
    let plain = first.strip_prefix("www.").unwrap_or(first);
    is_in(to, plain)
        || SERVICES
            .iter()
            .any(|(host, domains)| plain == *host && domains.iter().any(|domain| is_in(to, domain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_with_the_service() {
        let url = |text: &str| Url::parse(text).expect("a URL");
        let is_followed =
            |from: &str, to: &str, is_signed| fault(&[url(from)], &url(to), is_signed).is_none();
        for (from, to, without, with) in [
            ("https://a.example/x", "https://a.example/y", true, true),
            ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/y", true, true),
            ("http://a.example/x", "https://a.example/x", true, false),
            ("https://a.example/x", "https://cdn.a.example/x", true, false),
            ("https://www.a.example/x", "https://a.example/x", true, false),
            ("https://huggingface.co/o/n/resolve/main/x", "https://cdn-lfs.hf.co/x", true, false),
            (
                "https://github.com/o/n/releases/x",
                "https://release-assets.githubusercontent.com/x",
                true,
                false,
            ),
            ("https://a.example/x", "http://a.example/x", false, false),
            ("https://a.example/x", "https://b.example/x", false, false),
            ("https://a.example/x", "https://evila.example/x", false, false),
            ("https://a.example/x", "https://a.example:8443/x", false, false),
            ("http://127.0.0.1:8000/x", "http://127.0.0.1:9000/x", false, false),
            ("https://a.example/x", "http://169.254.169.254/latest/meta-data", false, false),
            ("https://huggingface.co/x", "https://hf.co.evil.example/x", false, false),
            ("https://b.s3.amazonaws.com/x", "https://b.s3.eu-west-1.amazonaws.com/x", false, false),
        ] {
            assert_eq!(is_followed(from, to, false), without, "{from} {to}");
            assert_eq!(is_followed(from, to, true), with, "{from} {to} signed");
        }
        let many = vec![url("https://a.example/x"); MAX_REDIRECTS + 1];
        assert!(fault(&many, &url("https://a.example/y"), false).is_some());
    }

    #[test]
    fn a_service_is_left_by_no_chain() {
        let chain = ["https://huggingface.co/x", "https://cdn-lfs.hf.co/x"]
            .map(|url| Url::parse(url).expect("a URL"));
        let to = |text: &str| fault(&chain, &Url::parse(text).expect("a URL"), false).is_none();
        assert!(to("https://huggingface.co/y") && !to("https://elsewhere.example/x"));
    }
}
