//! Workers that a file lists, an address on each line; empty lines and those that begin with `#` are passed over. Read again
//! every second: that also sees files of other machines and those that Kubernetes exchanges under a link.

use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::{Found, Teller, Trouble};
use crate::replica::WorkerAddress;

/// Between two looks at the file.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of it.
const MAX_BYTES: u64 = 1 << 20;

pub(super) async fn follow(path: &Path, teller: Teller) {
    let (mut trouble, mut last) = (Trouble::default(), None);
    loop {
        let wait = match read(path).await {
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

async fn read(path: &Path) -> Result<Vec<Found>, String> {
    let file = tokio::fs::File::open(path).await.map_err(|error| error.to_string())?;
    let mut text = String::new();
    let mut limited = file.take(MAX_BYTES + 1);
    limited.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    listed(&text)
}

/// The addresses of a list. An empty one is refused: rather than a fleet without workers it is a file that is being written.
fn listed(text: &str) -> Result<Vec<Found>, String> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|(number, line)| {
        let address: WorkerAddress = line.parse().map_err(|error| format!("line {number}: {error}"))?;
        Ok(Found::from(address))
    });
    let found: Vec<Found> = parsed.collect::<Result<_, String>>()?;
    if found.is_empty() { Err("it lists no worker".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let found = listed("# ours\nthrong://a:1\n\n  throngs://b:2  \n").expect("a list");
        let urls: Vec<String> = found.iter().map(|found| found.address.to_string()).collect();
        assert_eq!(urls, ["throng://a:1", "throngs://b:2"]);
        assert!(listed("throng://a:1\nthrong://").expect_err("broken").starts_with("line 2: "));
        assert!(listed("# nobody\n").is_err());
    }
}
