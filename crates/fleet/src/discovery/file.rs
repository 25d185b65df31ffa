//! Workers or engines in a file, an address on each line; empty lines and lines that start with `#` are
//! skipped. The file is read every second: unlike file notifications, that also works for network file
//! systems and for symbolic links that Kubernetes replaces.

use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::{Found, Kind, Teller, Trouble};
use crate::replica::WorkerAddress;

/// Interval between two reads of the file.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum bytes of a file with workers or engines.
const MAX_BYTES: u64 = 1 << 20;

pub(super) async fn follow(path: &Path, kind: Kind, teller: Teller) {
    let (mut trouble, mut last) = (Trouble::default(), None);
    loop {
        let wait = match read(path, kind).await {
            Ok(found) => {
                trouble = Trouble::default();
                if last.as_ref() != Some(&found) {
                    teller.told(found.clone()).await;
                    last = Some(found);
                }
                INTERVAL
            }
            Err(reason) => {
                teller.failed(&mut trouble, reason);
                INTERVAL
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn read(path: &Path, kind: Kind) -> Result<Vec<Found>, String> {
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    let mut text = String::new();
    let mut limited = file.take(MAX_BYTES + 1);
    limited.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    listed(&text, kind)
}

/// Parses the addresses in a file. Refuses an empty list: the file is more likely just being written than
/// the fleet without replicas.
fn listed(text: &str, kind: Kind) -> Result<Vec<Found>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|(number, line)| {
        let address = match kind {
            Kind::Workers => line.parse(),
            Kind::Engines => WorkerAddress::of_engine(line),
        };
        Ok(Found::from(address.map_err(|error| format!("line {number}: {error}"))?))
    });
    let found: Vec<Found> = parsed.collect::<Result<_, String>>()?;
    if found.is_empty() { Err("it lists nobody".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let found = listed("# ours\nthrong://a:1\n\n  throngs://b:2  \n", Kind::Workers).expect("a list");
        let urls: Vec<String> = found.iter().map(|found| found.address.to_string()).collect();
        assert_eq!(urls, ["throng://a:1", "throngs://b:2"]);
        let broken = listed("throng://a:1\nthrong://", Kind::Workers).expect_err("broken");
        assert!(broken.starts_with("line 2: "), "{broken}");
        assert!(listed("# nobody\n", Kind::Workers).is_err());

        let found = listed("http://a:1\nhttps://b/\nhttp://[::1]\n", Kind::Engines).expect("a list");
        let parts = found.iter().map(|found| &found.address);
        let parts: Vec<_> = parts.map(|at| (at.host(), at.port(), at.is_encrypted())).collect();
        assert_eq!(parts, [("a", 1, false), ("b", 443, true), ("::1", 80, false)]);
        for line in ["throng://a:1", "http://a:0", "http://a/v1", "http://u@a", "a:1"] {
            assert!(listed(line, Kind::Engines).is_err(), "{line}");
        }
        assert!(listed("http://a:1", Kind::Workers).is_err());
    }
}
