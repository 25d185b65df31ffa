//! What a binary needs of the system it runs on. Does not know packages.

/// The newest version of the GNU C library of which the binary uses a symbol: (2, 34) for `GLIBC_2.34`.
pub fn glibc_version(binary: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let starts = binary.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    starts.filter_map(|(at, _)| version_at(&binary[at + MARK.len()..])).max()
}

fn version_at(bytes: &[u8]) -> Option<(u32, u32)> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let end = bytes.iter().position(|byte| !is_part(byte)).unwrap_or(bytes.len());
    let mut parts = std::str::from_utf8(&bytes[..end]).ok()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let binary = b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0GLIBC_";
        assert_eq!(glibc_version(binary), Some((2, 34)));
        assert_eq!(glibc_version(b"none"), None);
    }
}
