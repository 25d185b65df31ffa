//! Checks of every request before routing: sizes of its head and body, Host and Origin, upgrades. Does not
//! know routes and bodies.

pub(super) mod cors;
pub(super) mod root_path;

use std::net::IpAddr;

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Method, Version, header};
use throng_http::{
    Listener, MAX_HEADER_BYTES, MAX_HEADER_FIELD_BYTES, MAX_HEADER_FIELDS, MAX_URI_BYTES, check_http2_fields,
};

use crate::caller::content_length;
use crate::config::GatewayConfig;
use crate::rejection::head_violation;
use throng_api::ApiError;

/// The rules of one listening socket.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Whether only this machine can connect: then the host in a web page's request must be a local name,
    /// as a protection from DNS rebinding.
    loopback: bool,
    /// Whether pages can reach the socket only through a proxy, which checks names itself.
    behind_proxy: bool,
    allowed_origins: Vec<String>,
    allowed_hosts: Vec<String>,
    /// Host of the configuration, a name or an address.
    own_name: String,
    needs_key: bool,
    max_body_bytes: usize,
}

/// Origin of a request to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A program, or a page of this server.
    Own,
    /// A page of an allowed origin, which may read answers.
    AllowedOrigin,
}

impl Guard {
    /// Rules for a listening socket.
    pub fn new(config: &GatewayConfig, listener: &Listener) -> Self {
        let access = &config.access;
        Self {
            loopback: matches!(listener, Listener::Tcp(_)) && listener.is_local(),
            behind_proxy: !matches!(listener, Listener::Tcp(_)),
            allowed_origins: access.allowed_origins.clone(),
            allowed_hosts: access.allowed_hosts.clone(),
            own_name: config.server.host_name().to_owned(),
            needs_key: access.needs_key(),
            max_body_bytes: config.api.max_body_bytes,
        }
    }

    /// Checks a request's head.
    ///
    /// # Errors
    /// The first rule that the request breaks.
    pub fn check(&self, parts: &Parts) -> Result<Source, ApiError> {
        if parts.version >= Version::HTTP_2 {
            check_http2_fields(&parts.headers).map_err(head_violation)?;
        }
        self.check_sizes(parts)?;
        check_upgrade(parts)?;
        let host = self.check_host(parts)?;
        let source = self.check_origin(parts, host.as_ref())?;
        if content_length(&parts.headers).is_some_and(|n| n > self.max_body_bytes as u64) {
            return Err(ApiError::request_too_large(self.max_body_bytes));
        }
        Ok(source)
    }

    /// Whether a page of an allowed origin may read the refusal of its request. For a preflight, the status
    /// is the refusal.
    pub fn may_read_refusal(&self, parts: &Parts) -> bool {
        let source = || self.check_origin(parts, self.check_host(parts)?.as_ref());
        parts.method != Method::OPTIONS && matches!(source(), Ok(Source::AllowedOrigin))
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
            Some(host) if self.loopback && !self.is_local(host) => {
                Err(ApiError::forbidden_host(bare_name(host)))
            }
            None if parts.version > Version::HTTP_10 => Err(ApiError::bad_host()),
            _ => Ok(host),
        }
    }

    fn is_local(&self, host: &Authority) -> bool {
        let name = bare_name(host);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            || self.is_allowed_host(name)
    }

    fn is_allowed_host(&self, name: &str) -> bool {
        self.allowed_hosts.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(name))
    }

    /// Whether this name cannot be made to lead a foreign page here by a DNS server of its owner.
    fn is_known(&self, host: &Authority) -> bool {
        let name = bare_name(host);
        self.behind_proxy
            || self.is_local(host)
            || name.parse::<IpAddr>().is_ok()
            || (!self.own_name.is_empty() && name.eq_ignore_ascii_case(&self.own_name))
    }

    /// Whether an origin is that of a proxy that shows this server under an allowed name, at the scheme's
    /// default port, and addresses it by another name.
    fn is_shown_by_proxy(&self, origin: &str) -> bool {
        let name = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        name.is_some_and(|name| self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)))
    }

    /// Checks the origin of a page. Pages of this server and of allowed origins pass. If no key is needed,
    /// all other pages are refused; otherwise they pass like programs, but their browsers do not let them
    /// read the answer.
    fn check_origin(&self, parts: &Parts, host: Option<&Authority>) -> Result<Source, ApiError> {
        let is_known = host.is_some_and(|host| self.is_known(host));
        let mut sent = parts.headers.get_all(header::ORIGIN).iter();
        let Some(origin) = sent.next() else { return self.check_fetch(parts, host, is_known) };
        let text = origin.to_str().map_err(|_| ApiError::forbidden_origin("?"))?;
        if sent.next().is_some() {
            return Err(ApiError::forbidden_origin(text));
        }
        let is_own = host.is_some_and(|host| {
            text.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host.as_str()))
        }) || self.is_shown_by_proxy(text);
        let is_allowed =
            self.allowed_origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text));
        match (is_own, is_allowed) {
            (true, _) if is_allowed || is_known || !self.is_open() => Ok(Source::Own),
            (false, true) => Ok(Source::AllowedOrigin),
            _ if self.is_open() => Err(ApiError::forbidden_origin(text)),
            _ => Ok(Source::Own),
        }
    }

    /// Checks a request without `Origin` by the browser's fetch metadata. Following a link from elsewhere
    /// is harmless.
    fn check_fetch(
        &self,
        parts: &Parts,
        host: Option<&Authority>,
        is_known: bool,
    ) -> Result<Source, ApiError> {
        let mut marks = parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("sec-fetch-"));
        let is_foreign = |value: &HeaderValue| !matches!(value.as_bytes(), b"same-origin" | b"none");
        let changes = !parts.method.is_safe();
        let is_refused = self.is_open()
            && marks
                .any(|(name, value)| !is_known || (changes && name == "sec-fetch-site" && is_foreign(value)));
        match host {
            _ if !is_refused => Ok(Source::Own),
            Some(host) if !is_known => Err(ApiError::forbidden_host(bare_name(host))),
            _ => Err(ApiError::forbidden_origin("of another site")),
        }
    }

    /// Whether anyone who reaches the socket may use the models, so that foreign pages must be kept from
    /// it.
    fn is_open(&self) -> bool {
        self.loopback || !self.needs_key
    }
}

fn bare_name(host: &Authority) -> &str {
    host.host().trim_start_matches('[').trim_end_matches(']')
}

/// Rejects CONNECT and every `Upgrade` except WebSocket, for a request without a body, and HTTP/2 in clear
/// text, which is ignored.
fn check_upgrade(parts: &Parts) -> Result<(), ApiError> {
    let has_body = parts.headers.contains_key(header::TRANSFER_ENCODING)
        || content_length(&parts.headers).unwrap_or(0) > 0;
    let may_be_websocket = parts.method == Method::GET && !has_body;
    let is_offered = |value: &HeaderValue| {
        let value = value.as_bytes();
        value.eq_ignore_ascii_case(b"h2c") || (may_be_websocket && value.eq_ignore_ascii_case(b"websocket"))
    };
    if parts.method != Method::CONNECT && parts.headers.get_all(header::UPGRADE).iter().all(is_offered) {
        return Ok(());
    }
    Err(ApiError::unsupported_upgrade())
}
