//! Sources of workers and engines: an address, a file, DNS, the endpoints of a Kubernetes service. A source
//! sends its whole list whenever that changes. While it cannot be read it sends nothing, and the last list
//! stays valid. Does not connect to workers and engines.

mod dns;
mod file;
mod kubernetes;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::replica::{InvalidAddress, WorkerAddress};

pub use kubernetes::KubernetesApi;

/// Minimum pause before a source that failed is read again.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum pause before a source that failed is read again.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Kind of replicas in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sources list workers.
    Workers,
    /// Sources list upstream engines.
    Engines,
}

/// A source of workers or engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The address of one worker.
    Address(WorkerAddress),
    /// `file:///PATH`: a file with an address on each line.
    File(PathBuf, Kind),
    /// `dns://[SERVER/]NAME:PORT`: each address of a name.
    Dns(dns::Question),
    /// `srv://[SERVER/]NAME`: each host and port of a name's SRV records (RFC 2782).
    Srv(dns::Question),
    /// `kubernetes://NAMESPACE/SERVICE:PORT`: each ready endpoint of a service.
    Kubernetes(kubernetes::Service),
}

/// A worker or an engine in a source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Found {
    /// Address of the worker or engine.
    pub address: WorkerAddress,
    /// Name that its certificate must have; `None`: the host of the address.
    pub server_name: Option<String>,
}

/// Channel for the lists of sources: the index of a source, and its whole list.
pub type Tell = mpsc::Sender<(usize, Vec<Found>)>;

impl From<WorkerAddress> for Found {
    fn from(address: WorkerAddress) -> Self {
        Self { address, server_name: None }
    }
}

impl Source {
    /// Parses the URL of a source. For DNS and Kubernetes, which list only hosts and ports, `is_encrypted`
    /// says whether to use TLS. `kind` determines how the lines of a file are parsed.
    ///
    /// # Errors
    /// When the URL is not that of a source.
    pub fn parse(url: &str, is_encrypted: bool, kind: Kind) -> Result<Self, InvalidAddress> {
        let Some((scheme, rest)) = url.split_once("://") else { return url.parse().map(Self::Address) };
        let source = match scheme {
            "file" => rest.starts_with('/').then(|| Self::File(rest.into(), kind)),
            "dns" => dns::Question::parse(rest, true, is_encrypted).map(Self::Dns),
            "srv" => dns::Question::parse(rest, false, is_encrypted).map(Self::Srv),
            "kubernetes" => kubernetes::Service::parse(rest, is_encrypted).map(Self::Kubernetes),
            _ => return url.parse().map(Self::Address),
        };
        source.ok_or_else(|| InvalidAddress::of_source(url))
    }

    /// Whether it is a single address, which never changes.
    pub fn is_static(&self) -> bool {
        matches!(self, Self::Address(_))
    }

    /// Sends the list of this source with the index `idx` whenever it changes. Never returns.
    pub async fn follow(self, idx: usize, api: Option<KubernetesApi>, tell: Tell) {
        let name = self.to_string();
        let teller = Teller { idx, tell, name };
        match self {
            Self::Address(address) => teller.told(vec![address.into()]).await,
            Self::File(path, kind) => file::follow(&path, kind, teller).await,
            Self::Dns(question) | Self::Srv(question) => dns::follow(question, teller).await,
            Self::Kubernetes(service) => kubernetes::follow(service, api, teller).await,
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::File(path, _) => write!(f, "file://{}", path.display()),
            Self::Dns(question) => write!(f, "dns://{question}"),
            Self::Srv(question) => write!(f, "srv://{question}"),
            Self::Kubernetes(service) => write!(f, "kubernetes://{service}"),
        }
    }
}

/// Sends the lists of one source.
#[derive(Debug)]
struct Teller {
    idx: usize,
    tell: Tell,
    name: String,
}

impl Teller {
    async fn told(&self, found: Vec<Found>) {
        let _ = self.tell.send((self.idx, found)).await;
    }

    /// Logs that the source cannot be read, if the reason is new. Returns the pause before the next
    /// attempt.
    fn failed(&self, trouble: &mut Trouble, reason: String) -> Duration {
        let backoff = trouble.backoff;
        trouble.backoff = (backoff * 2).min(MAX_BACKOFF);
        if trouble.reason.as_ref() != Some(&reason) {
            tracing::warn!(
                source = self.name,
                reason,
                "cannot look for workers or engines; those that are known stay"
            );
            trouble.reason = Some(reason);
        }
        // Half of the backoff plus a random part of the other half, so that gateways do not retry in step.
        backoff.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// The latest failure to read a source.
#[derive(Debug)]
struct Trouble {
    reason: Option<String>,
    backoff: Duration,
}

impl Default for Trouble {
    fn default() -> Self {
        Self { reason: None, backoff: MIN_BACKOFF }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_and_written() {
        for url in [
            "throng://127.0.0.1:9000",
            "file:///etc/throng/workers",
            "dns://workers.example:9000",
            "dns://127.0.0.1:5353/workers.example:9000",
            "srv://_throng._tcp.example",
            "srv://127.0.0.1:5353/_throng._tcp.example",
            "kubernetes://default/throng-worker:9000",
            "kubernetes://default/throng-worker:engine",
        ] {
            assert_eq!(Source::parse(url, false, Kind::Workers).expect(url).to_string(), url);
        }
        for url in [
            "ftp://a:1",
            "file://relative",
            "dns://name",
            "dns://:1",
            "dns://name:0",
            "dns://server/a:1",
            "srv://",
            "kubernetes://name:1",
            "kubernetes://Names pace/x:1",
            "kubernetes://a/b",
        ] {
            assert!(Source::parse(url, false, Kind::Workers).is_err(), "{url}");
        }
    }
}
