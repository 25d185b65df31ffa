//! Hosts from which a server fetches images, as its operator lists them. Does not resolve names and does not
//! connect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use url::{Host, Url};

use crate::address_class::AddressClass;

/// Beginning of an entry whose host may have private addresses.
const PRIVATE: &str = "private:";

/// The hosts of an operator's list. An empty list permits none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageHosts(BTreeMap<Place, Addresses>);

/// A host with a port; without one the default ports of `http` and `https` are meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: String,
    port: Option<u16>,
}

/// Addresses that a listed host may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addresses {
    /// Addresses of the Internet.
    Public,
    /// Addresses of the Internet, of inner networks and of this machine.
    AlsoPrivate,
}

impl Addresses {
    /// Whether the host may have this address.
    pub fn include(self, address: IpAddr) -> bool {
        match AddressClass::of(address) {
            AddressClass::Public => true,
            AddressClass::Private => self == Self::AlsoPrivate,
            AddressClass::Special => false,
        }
    }
}

impl ImageHosts {
    /// Reads a list of entries `HOST`, `HOST:PORT` and, with private addresses too, `private:HOST` and
    /// `private:HOST:PORT`. Without a port the default ports of `http` and `https` are meant.
    ///
    /// # Errors
    /// The first invalid entry, with the reason.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidImageHost> {
        let mut hosts = BTreeMap::new();
        for entry in entries {
            let (place, addresses) =
                read(entry).map_err(|reason| InvalidImageHost { entry: entry.to_owned(), reason })?;
            let known = hosts.entry(place).or_insert(addresses);
            *known = addresses.max(*known);
        }
        Ok(Self(hosts))
    }

    /// Whether the list is empty, so that nothing is fetched.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The addresses that the host of a URL may have; `None` for a host that is not listed, another scheme
    /// than `http` and `https`, and a URL with a user.
    pub fn permitted(&self, url: &Url) -> Option<Addresses> {
        let is_web = matches!(url.scheme(), "http" | "https");
        if !is_web || !url.username().is_empty() || url.password().is_some() {
            return None;
        }
        let host = host_name(url)?;
        let at = |port| self.0.get(&Place { host: host.clone(), port }).copied();
        match url.port() {
            Some(port) => at(Some(port)),
            None => at(None).max(at(url.port_or_known_default())),
        }
    }
}

/// An entry of the list that is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{entry}' {reason}")]
pub struct InvalidImageHost {
    /// The invalid entry.
    pub entry: String,
    reason: &'static str,
}

/// The host of a URL in lower case, without a dot at its end.
pub fn host_name(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// Whether a host may be public. A name may still have an inner address.
pub(crate) fn is_public(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            let is_inner =
                |name: &str| [".localhost", ".local", ".internal"].iter().any(|end| name.ends_with(end));
            name.contains('.') && !is_inner(&name.to_ascii_lowercase())
        }
        Host::Ipv4(address) => AddressClass::of(IpAddr::V4(*address)) == AddressClass::Public,
        Host::Ipv6(address) => AddressClass::of(IpAddr::V6(*address)) == AddressClass::Public,
    }
}

fn read(entry: &str) -> Result<(Place, Addresses), &'static str> {
    let (text, addresses) = match entry.strip_prefix(PRIVATE) {
        Some(text) => (text, Addresses::AlsoPrivate),
        None => (entry, Addresses::Public),
    };
    const FORM: &str = "is no host: HOST, HOST:PORT, private:HOST or private:HOST:PORT is expected";
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/\\?#@*%".contains(&byte));
    if text.is_empty() || !is_plain {
        return Err(FORM);
    }
    // A parsed URL has no port where it is the default one of its scheme.
    let parsed = ["http", "https"].map(|scheme| Url::from_str(&format!("{scheme}://{text}/")));
    let [Ok(http), Ok(https)] = parsed else { return Err(FORM) };
    let (Some(host), Some(inner)) = (host_name(&http), http.host()) else { return Err(FORM) };
    if addresses == Addresses::Public && !is_public(&inner) {
        return Err("is a host of an inner network: write private: before it to permit it");
    }
    let address = match inner {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
    };
    if address.is_some_and(|address| !addresses.include(address)) {
        return Err("is an address from which nothing is fetched");
    }
    let port = http.port().or(https.port());
    Ok((Place { host, port }, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(entries: &[&str]) -> ImageHosts {
        ImageHosts::new(entries.iter().copied()).expect("valid")
    }

    fn permitted(hosts: &ImageHosts, url: &str) -> Option<Addresses> {
        hosts.permitted(&url.parse().expect("a URL"))
    }

    #[test]
    fn only_the_listed_hosts_and_ports_are_permitted() {
        let list = hosts(&["Example.org", "cdn.example.org:8443", "private:10.0.0.7:9000", "private:files"]);
        for (url, addresses) in [
            ("https://example.org/a.png", Addresses::Public),
            ("http://EXAMPLE.org./a.png", Addresses::Public),
            ("https://example.org:443/", Addresses::Public),
            ("http://cdn.example.org:8443/", Addresses::Public),
            ("http://10.0.0.7:9000/", Addresses::AlsoPrivate),
            ("http://0xa.7:9000/", Addresses::AlsoPrivate),
            ("https://files/x", Addresses::AlsoPrivate),
        ] {
            assert_eq!(permitted(&list, url), Some(addresses), "{url}");
        }
        for url in [
            "https://example.org:8443/",
            "https://www.example.org/",
            "https://example.org.evil.test/",
            "https://evil.test/example.org",
            "https://cdn.example.org/",
            "http://10.0.0.7/",
            "http://10.0.0.8:9000/",
            "ftp://example.org/",
            "file:///etc/passwd",
            "file://example.org/etc/passwd",
            "https://user@example.org/",
            "https://:secret@example.org/",
            "https://example.org@evil.test/",
        ] {
            assert_eq!(permitted(&list, url), None, "{url}");
        }
        assert!(hosts(&[]).is_empty());
    }

    #[test]
    fn a_default_port_in_the_list_is_that_port_alone() {
        let list = hosts(&["a.test:80", "b.test:443", "[2606:4700::1]:8080"]);
        assert!(permitted(&list, "http://[2606:4700::1]:8080/").is_some());
        for url in ["http://a.test/", "https://a.test:80/", "https://b.test/", "http://b.test:443/"] {
            assert!(permitted(&list, url).is_some(), "{url}");
        }
        for url in ["https://a.test/", "http://a.test:81/", "http://b.test/", "http://[2606:4700::1]/"] {
            assert_eq!(permitted(&list, url), None, "{url}");
        }
    }

    #[test]
    fn entries_that_are_no_hosts_are_refused_with_the_reason() {
        let reason = |entry: &str| ImageHosts::new([entry]).expect_err(entry).to_string();
        for entry in [
            "",
            "private:",
            "https://a.test",
            "a.test/path",
            "*.a.test",
            "user@a.test",
            "a.test:0x",
            "a b.test",
        ] {
            assert!(reason(entry).contains("is no host"), "{entry}: {}", reason(entry));
        }
        for entry in ["localhost", "127.0.0.1:80", "[::1]", "box.local", "10.0.0.7", "2130706433"] {
            assert!(reason(entry).contains("private:"), "{entry}: {}", reason(entry));
        }
        for entry in ["private:169.254.169.254", "private:0.0.0.0", "private:[fe80::1]", "private:224.0.0.1"]
        {
            assert!(reason(entry).contains("nothing is fetched"), "{entry}: {}", reason(entry));
        }
    }

    #[test]
    fn a_private_entry_permits_no_special_address() {
        let of = |text: &str| text.parse().expect("an address");
        assert!(
            Addresses::AlsoPrivate.include(of("127.0.0.1")) && Addresses::AlsoPrivate.include(of("fd00::1"))
        );
        assert!(!Addresses::AlsoPrivate.include(of("169.254.169.254")));
        assert!(!Addresses::Public.include(of("127.0.0.1")) && Addresses::Public.include(of("1.1.1.1")));
        assert!(!Addresses::Public.include(of("::ffff:127.0.0.1")));
    }
}
