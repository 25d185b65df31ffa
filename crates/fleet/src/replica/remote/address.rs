//! The address of a worker, `throng://host:port`, or `throngs://host:port` with TLS; also the address of an
//! upstream engine from discovery. Does not connect.

use std::fmt;
use std::str::FromStr;

use http::uri::Authority;

/// Listening address of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerAddress {
    host: String,
    port: u16,
    is_encrypted: bool,
}

/// Error of a text that is not the address of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address of {expected}")]
pub struct InvalidAddress {
    text: String,
    expected: &'static str,
}

impl InvalidAddress {
    /// Error of a text that is not a source of workers.
    pub fn of_source(text: &str) -> Self {
        let expected = "workers: it must be file:///PATH, dns://[SERVER:PORT/]NAME:PORT, srv://[SERVER:PORT/]NAME or \
            kubernetes://NAMESPACE/SERVICE:PORT";
        Self { text: text.to_owned(), expected }
    }
}

impl WorkerAddress {
    /// Creates an address from a host name, or an IP address without brackets.
    pub fn new(host: String, port: u16, is_encrypted: bool) -> Self {
        Self { host, port, is_encrypted }
    }

    /// Parses the address of an engine: `http://HOST[:PORT]`, or `https://HOST[:PORT]` for TLS.
    ///
    /// # Errors
    /// When it is not such an address, for example because it has a path.
    pub fn of_engine(text: &str) -> Result<Self, InvalidAddress> {
        let expected = "an engine: it must be http://HOST:PORT, or https://HOST:PORT with TLS";
        Self::read(text, [("http", false, Some(80)), ("https", true, Some(443))], expected)
    }

    /// Parses an address with one of two schemes. A scheme determines whether connections are encrypted,
    /// and the default port.
    fn read(
        text: &str,
        schemes: [(&str, bool, Option<u16>); 2],
        expected: &'static str,
    ) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress { text: text.to_owned(), expected };
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let (_, is_encrypted, usual_port) =
            schemes.into_iter().find(|(known, ..)| *known == scheme).ok_or_else(invalid)?;
        let authority: Authority = rest.trim_end_matches('/').parse().map_err(|_| invalid())?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = authority.port_u16().or(usual_port.filter(|_| authority.port().is_none()));
        let port = port.filter(|&port| port > 0).ok_or_else(invalid)?;
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        Ok(Self { host: host.to_owned(), port, is_encrypted })
    }

    /// Host name, or IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port of the address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether connections are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// The authority (`host:port`) for URLs.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for WorkerAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let expected = "a worker: it must be throng://HOST:PORT, or throngs://HOST:PORT with TLS \
            (the address of another engine is http://HOST:PORT)";
        Self::read(text, [("throng", false, None), ("throngs", true, None)], expected)
    }
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_encrypted { "throngs" } else { "throng" }, self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["throng://127.0.0.1:9000", "throngs://gpu-7.example:1", "throng://[::1]:65535"] {
            let address: WorkerAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
            assert_eq!(address.is_encrypted(), text.starts_with("throngs"));
        }
        assert_eq!("throng://[::1]:9/".parse::<WorkerAddress>().expect("valid").host(), "::1");
        for text in [
            "127.0.0.1:9000",
            "http://a:1",
            "throng://a",
            "throng://:1",
            "throng://u@a:1",
            "throng://a:0",
            "throng://a:1/x",
        ] {
            assert!(text.parse::<WorkerAddress>().is_err(), "{text}");
        }
    }
}
