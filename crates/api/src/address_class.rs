//! Classes of IP addresses by who can be reached at them. Does not resolve names.
//!
//! The ranges are those of IANA's registries of special-purpose addresses (RFC 6890):
//! <https://www.iana.org/assignments/iana-ipv4-special-registry> and
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Class of an address by the hosts that can be reached at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// A host of the Internet.
    Public,
    /// An address of this machine or of an inner network: loopback, private, shared and unique local
    /// addresses.
    Private,
    /// An address that never serves files: link-local addresses (the metadata services of clouds among them),
    /// multicast, unspecified, documentation, translation and reserved addresses.
    Special,
}

impl AddressClass {
    /// The class of an address. An IPv4 address inside an IPv6 address has the class of the IPv4 address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

fn of_v4(address: Ipv4Addr) -> AddressClass {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && b & 0xc0 == 64;
    if address.is_loopback() || address.is_private() || is_shared {
        return AddressClass::Private;
    }
    let is_special = a == 0
        || address.is_link_local()
        || address.is_documentation()
        // IETF protocol assignments, and the relays of 6to4.
        || matches!((a, b, c), (192, 0, 0) | (192, 88, 99))
        // Benchmarks.
        || (a == 198 && b & 0xfe == 18)
        // Multicast, reserved addresses and broadcast.
        || a >= 224;
    if is_special { AddressClass::Special } else { AddressClass::Public }
}

fn of_v6(address: Ipv6Addr) -> AddressClass {
    if address.is_loopback() || address.is_unique_local() {
        return AddressClass::Private;
    }
    let segments = address.segments();
    let [first, second, ..] = segments;
    // NAT64 (RFC 6052): the last four bytes are the IPv4 address that is reached.
    if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        let [.., a, b, c, d] = address.octets();
        return of_v4(Ipv4Addr::new(a, b, c, d));
    }
    let is_global = first & 0xe000 == 0x2000;
    // IETF protocol assignments with Teredo, documentation, and 6to4.
    let is_assigned = first == 0x2001 && second < 0x200;
    let is_documentation = (first, second) == (0x2001, 0xdb8) || (first == 0x3fff && second < 0x1000);
    if is_global && !is_assigned && !is_documentation && first != 0x2002 {
        AddressClass::Public
    } else {
        AddressClass::Special
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        AddressClass::of(text.parse().unwrap_or_else(|_| panic!("{text}")))
    }

    #[test]
    fn every_special_range_is_known_at_both_of_its_ends() {
        let private = [
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
            "::1",
            "fc00::",
            "fdff::1",
            "::ffff:127.0.0.1",
            "::ffff:10.1.2.3",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
        ];
        for text in private {
            assert_eq!(class(text), AddressClass::Private, "{text}");
        }
        let special = [
            "0.0.0.0",
            "0.255.255.255",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "3fff:fff::1",
            "100::1",
            "5f00::1",
            "fec0::1",
            "::7f00:1",
            "::ffff:0:7f00:1",
        ];
        for text in special {
            assert_eq!(class(text), AddressClass::Special, "{text}");
        }
        let public = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700::1",
            "2a00::1",
            "3fff:1000::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ];
        for text in public {
            assert_eq!(class(text), AddressClass::Public, "{text}");
        }
    }
}
