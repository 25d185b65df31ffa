//! Digests of files in `SHA256SUMS`, the format of coreutils' `sha256sum`. Does not know where files come
//! from.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Name of the file that lists the digests of a model's files.
pub(super) const SUMS_FILE: &str = "SHA256SUMS";

/// Parses digests, by file name.
pub(super) fn parse(text: &str) -> BTreeMap<String, String> {
    let entry = |line: &str| {
        let (digest, name) = line.split_once(' ')?;
        // A space marks text mode, an asterisk binary mode: the digest is the same.
        let name = name.strip_prefix([' ', '*']).unwrap_or(name).trim_end();
        let name = name.strip_prefix("./").unwrap_or(name);
        (digest.len() == 64).then(|| (name.to_owned(), digest.to_ascii_lowercase()))
    };
    text.lines().filter_map(entry).collect()
}

/// The digest of a file, in lower-case hexadecimal.
pub(super) fn of_file(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// The digest of bytes, in lower-case hexadecimal.
pub(super) fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_sha256sum_are_read() {
        let digest = of_bytes(b"");
        assert_eq!(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let sums = parse(&format!("{digest}  config.json\n{digest} *./model.safetensors\nnonsense\n"));
        assert_eq!(sums.keys().collect::<Vec<_>>(), ["config.json", "model.safetensors"]);
    }
}
