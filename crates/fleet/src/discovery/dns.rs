//! Workers in DNS: each address of a name, or of the hosts in its SRV records (RFC 2782) with their ports.
//! Queried again when the answer's time to live is over. An answer without records removes no workers: DNS
//! failures are more common than the end of all workers.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;

use super::{Found, Teller, Trouble};
use crate::replica::WorkerAddress;

/// Minimum and maximum interval between two queries, which bound the answer's time to live.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A DNS query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Name server; `None`: those of the system.
    server: Option<SocketAddr>,
    name: String,
    /// Port of the workers; `None` for SRV records, which contain ports.
    port: Option<u16>,
    is_encrypted: bool,
}

impl Question {
    /// Reads `[SERVER:PORT/]NAME`, followed by the workers' port if `has_port`.
    pub fn parse(text: &str, has_port: bool, is_encrypted: bool) -> Option<Self> {
        let (server, rest) = match text.split_once('/') {
            Some((server, rest)) => (Some(server.parse().ok()?), rest),
            None => (None, text),
        };
        let (name, port) = match (has_port, rest.rsplit_once(':')) {
            (true, Some((name, port))) => (name, Some(port.parse().ok().filter(|&port| port > 0)?)),
            (false, None) => (rest, None),
            _ => return None,
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_valid = !name.is_empty() && name.len() < 256 && name.chars().all(is_name);
        is_valid.then(|| Self { server, name: name.to_owned(), port, is_encrypted })
    }

    /// Workers in the answer, and the time until which it is valid.
    async fn ask(&self, resolver: &TokioResolver) -> Result<(Vec<Found>, Instant), NetError> {
        let found = |host: String, port, server_name: &str| Found {
            address: WorkerAddress::new(host, port, self.is_encrypted),
            server_name: Some(server_name.to_owned()),
        };
        if let Some(port) = self.port {
            let answer = resolver.lookup_ip(self.name.as_str()).await?;
            let all = answer.iter().map(|ip| found(ip.to_string(), port, &self.name));
            return Ok((all.collect(), answer.valid_until()));
        }
        let answer = resolver.srv_lookup(self.name.as_str()).await?;
        let (mut all, mut valid_until) = (Vec::new(), answer.valid_until());
        let records = answer.answers().iter().filter_map(|record| match &record.data {
            // The root as target means that the service is not available.
            RData::SRV(srv) if !srv.target.is_root() && srv.port > 0 => Some(srv),
            _ => None,
        });
        for srv in records {
            // The queried server may be the only one with this name. A name without an address fails the
            // whole query: it must not look as if its workers had left.
            let addresses = resolver.lookup_ip(srv.target.clone()).await?;
            let target = srv.target.to_ascii();
            let target = target.trim_end_matches('.');
            all.extend(addresses.iter().map(|ip| found(ip.to_string(), srv.port, target)));
            valid_until = valid_until.min(addresses.valid_until());
        }
        Ok((all, valid_until))
    }

    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let Some(server) = self.server else { return TokioResolver::builder_tokio()?.build() };
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = server.port();
            connection
        });
        let server = NameServerConfig::new(server.ip(), true, connections.into());
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).build()
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}/")?;
        }
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

pub(super) async fn follow(question: Question, teller: Teller) {
    let mut trouble = Trouble::default();
    loop {
        let asked = match question.resolver() {
            Ok(resolver) => question.ask(&resolver).await,
            Err(error) => Err(error),
        };
        let wait = match asked {
            Ok((found, valid_until)) if !found.is_empty() => {
                trouble = Trouble::default();
                teller.told(found).await;
                valid_until.saturating_duration_since(Instant::now()).clamp(INTERVAL.0, INTERVAL.1)
            }
            Ok(_) => teller.failed(&mut trouble, "the answer has no records".to_owned()),
            Err(error) => teller.failed(&mut trouble, error.to_string()),
        };
        tokio::time::sleep(wait).await;
    }
}
