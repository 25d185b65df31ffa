//! What every request must pass before it is routed: sizes of its head and body, Host and Origin, upgrades; and the
//! answers to browsers that ask whether they may ask. Does not know routes and bodies.

use std::net::IpAddr;

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};

use super::http1_head::{
    MAX_HEADER_BYTES, MAX_HEADER_FIELD_BYTES, MAX_HEADER_FIELDS, MAX_URI_BYTES, check_http2_fields,
};
use crate::config::GatewayConfig;
use crate::connection::content_length;
use crate::openai::ApiError;

/// The rules of one listening socket.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Whether only this machine can connect: then a web page's name for this server must be a local one, lest a
    /// foreign page reaches it through DNS rebinding.
    loopback: bool,
    allowed_origins: Vec<String>,
    allowed_hosts: Vec<String>,
    /// The name that the operator told it to listen on; perhaps an address.
    own_name: String,
    needs_key: bool,
    max_body_bytes: usize,
}

/// A request's origin, where its pages may read our answers.
#[derive(Debug, Clone)]
pub(crate) struct CrossOrigin(HeaderValue);

impl Guard {
    /// Rules for a socket that listens on loopback only, or not.
    pub fn new(config: &GatewayConfig, loopback: bool) -> Self {
        let access = &config.access;
        Self {
            loopback,
            allowed_origins: access.allowed_origins.clone(),
            allowed_hosts: access.allowed_hosts.clone(),
            own_name: config.server.host.clone(),
            needs_key: !access.api_keys.is_empty(),
            max_body_bytes: config.api.max_body_bytes,
        }
    }

    /// Checks a request's head.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self, parts: &Parts) -> Result<Option<CrossOrigin>, ApiError> {
        if parts.version >= Version::HTTP_2 {
            check_http2_fields(&parts.headers)?;
        }
        self.check_sizes(parts)?;
        check_upgrade(parts)?;
        let host = self.check_host(parts)?;
        let cross_origin = self.check_origin(parts, host.as_ref())?;
        if content_length(&parts.headers).is_some_and(|n| n > self.max_body_bytes as u64) {
            return Err(ApiError::request_too_large(self.max_body_bytes));
        }
        Ok(cross_origin)
    }

    fn check_sizes(&self, parts: &Parts) -> Result<(), ApiError> {
        if parts.uri.path_and_query().is_some_and(|p| p.as_str().len() > MAX_URI_BYTES) {
            return Err(ApiError::uri_too_long());
        }
        let mut n_bytes = 0;
        for (name, value) in &parts.headers {
            let is_credential = self.needs_key && (name == header::AUTHORIZATION || name == "x-api-key");
            let n_field_bytes = name.as_str().len() + value.len();
            if n_field_bytes > MAX_HEADER_FIELD_BYTES {
                // A key too long to be one is first of all a wrong key.
                let error =
                    if is_credential { ApiError::invalid_api_key() } else { ApiError::headers_too_large() };
                return Err(error);
            }
            n_bytes += n_field_bytes;
        }
        if parts.headers.len() > MAX_HEADER_FIELDS || n_bytes > MAX_HEADER_BYTES {
            return Err(ApiError::headers_too_large());
        }
        Ok(())
    }

    fn check_host(&self, parts: &Parts) -> Result<Option<Authority>, ApiError> {
        let mut sent = parts.headers.get_all(header::HOST).iter();
        let host = match (sent.next(), sent.next()) {
            (Some(value), None) => {
                Some(Authority::try_from(value.as_bytes()).map_err(|_| ApiError::bad_host())?)
            }
            (Some(_), Some(_)) => return Err(ApiError::bad_host()),
            (None, _) => None,
        };
        let in_uri = parts.uri.authority();
        if let (Some(host), Some(in_uri)) = (&host, in_uri)
            && host != in_uri
        {
            return Err(ApiError::bad_host());
        }
        let host = host.or_else(|| in_uri.cloned());
        match &host {
            Some(host) if host.as_str().contains('@') || host.host().is_empty() => Err(ApiError::bad_host()),
            Some(host) if self.loopback && !self.is_local(host) => Err(ApiError::forbidden_origin()),
            None if parts.version > Version::HTTP_10 => Err(ApiError::bad_host()),
            _ => Ok(host),
        }
    }

    fn is_local(&self, host: &Authority) -> bool {
        let name = bare_name(host);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }

    /// Whether no page that a stranger serves can be reached under this name, whatever his name server says.
    fn is_known(&self, host: &Authority) -> bool {
        let name = bare_name(host);
        self.is_local(host)
            || name.parse::<IpAddr>().is_ok()
            || (!self.own_name.is_empty() && name.eq_ignore_ascii_case(&self.own_name))
    }

    /// A page of our own may ask, and a page of an allowed origin may ask and read. Where no key is needed, no other
    /// page may ask at all; where one is, it may, as any program may, but its browser will not let it read.
    fn check_origin(&self, parts: &Parts, host: Option<&Authority>) -> Result<Option<CrossOrigin>, ApiError> {
        let is_known = host.is_some_and(|host| self.is_known(host));
        let mut sent = parts.headers.get_all(header::ORIGIN).iter();
        let Some(origin) = sent.next() else { return self.check_fetch(parts, is_known) };
        let text = origin.to_str().map_err(|_| ApiError::forbidden_origin())?;
        if sent.next().is_some() {
            return Err(ApiError::forbidden_origin());
        }
        let is_own = host.is_some_and(|host| {
            text.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host.as_str()))
        });
        let is_allowed =
            self.allowed_origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text));
        match (is_own, is_allowed) {
            (true, _) if is_allowed || is_known || !self.is_open() => Ok(None),
            (false, true) => Ok(Some(CrossOrigin(origin.clone()))),
            _ if self.is_open() => Err(ApiError::forbidden_origin()),
            _ => Ok(None),
        }
    }

    /// What a browser says of a request without `Origin`. Following a link to this server from elsewhere is no harm.
    fn check_fetch(&self, parts: &Parts, host_is_known: bool) -> Result<Option<CrossOrigin>, ApiError> {
        let mut marks = parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("sec-fetch-"));
        let is_foreign = |value: &HeaderValue| !matches!(value.as_bytes(), b"same-origin" | b"none");
        let changes = !parts.method.is_safe();
        let is_refused = self.is_open()
            && marks.any(|(name, value)| {
                !host_is_known || (changes && name == "sec-fetch-site" && is_foreign(value))
            });
        if is_refused { Err(ApiError::forbidden_origin()) } else { Ok(None) }
    }

    /// Whether whoever reaches the socket may use the models, so that a page must not reach it in somebody's browser.
    fn is_open(&self) -> bool {
        self.loopback || !self.needs_key
    }
}

fn bare_name(host: &Authority) -> &str {
    host.host().trim_start_matches('[').trim_end_matches(']')
}

impl CrossOrigin {
    /// Whether the request only asks whether it may ask.
    pub fn is_preflight(parts: &Parts) -> bool {
        parts.method == Method::OPTIONS && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Lets the origin's pages read the response.
    pub fn allow(&self, response: &mut HeaderMap) {
        response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        response.append(header::VARY, HeaderValue::from_static("origin"));
        let fields = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, x-api-key, x-request-id"),
            (
                header::ACCESS_CONTROL_EXPOSE_HEADERS,
                "x-request-id, x-throng-ignored, server-timing, x-queue-ms",
            ),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
        ];
        response.extend(fields.map(|(name, value): (HeaderName, _)| (name, HeaderValue::from_static(value))));
    }
}

/// Nothing is offered to upgrade to, and no tunnels. HTTP/2 in clear text may be asked for in passing and is then ignored.
fn check_upgrade(parts: &Parts) -> Result<(), ApiError> {
    let harmless = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"h2c");
    if parts.method != Method::CONNECT && parts.headers.get_all(header::UPGRADE).iter().all(harmless) {
        return Ok(());
    }
    Err(ApiError::unsupported_upgrade())
}
