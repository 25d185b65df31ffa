//! What an operator says about one worker or upstream engine, and the files that this names. Does not
//! connect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use serde::Deserialize;
use throng_core::fleet::routing::Region;

use super::models::FleetModels;
use crate::Secret;
use crate::client_tls::client_tls;
use crate::discovery::{Found, Kind, KubernetesApi, Source};
use crate::replica::{Endpoint, InvalidAddress};

/// Most bytes of a worker's or an engine's name.
const MAX_NAME_BYTES: usize = 128;

/// A worker or an upstream engine as an operator names it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// A worker: `throng://host:port`, or `throngs://host:port` for an encrypted connection. Workers that
    /// come and go: `file:///path`, `dns://name:port`, `srv://name` or `kubernetes://namespace/service:port`.
    /// An engine with OpenAI's API: the address before `/chat/completions`, as `https://host/v1`.
    pub url: String,
    /// Name in logs, metrics and the header by which clients ask for it; host and port without.
    /// Not for workers that come and go.
    #[serde(default)]
    pub name: Option<String>,
    /// That a file, DNS or Kubernetes tells engines with OpenAI's API under this path, as `/v1`, and not
    /// workers. Key, model, names and the rest hold for each of them.
    #[serde(default)]
    pub engine_path: Option<String>,
    /// The key of an engine.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// The model of an engine, as the engine calls it; without, all models that it tells.
    #[serde(default)]
    pub model: Option<String>,
    /// Names by which clients ask for that model; without, the engine's.
    #[serde(default)]
    pub names: Vec<String>,
    /// Seconds after which an engine that says nothing has failed.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Its region; a worker tells its own where this is not set.
    #[serde(default)]
    pub region: Option<String>,
    /// The token that a worker asks for, if it is not that of all workers.
    #[serde(default)]
    pub token: Option<Secret>,
    /// The certificates that its own must come from (PEM); needed with `throngs`, and for engines instead of
    /// those that the system trusts. Workers that DNS or Kubernetes tell are reached encrypted with it.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The certificate to show (PEM), if it asks for one.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// API server that tells the workers of `kubernetes://`, if not as every pod reaches it.
    #[serde(default)]
    pub kubernetes_api: Option<KubernetesApi>,
}

/// Credentials for the workers of a source, and their region.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    authorization: Option<HeaderValue>,
    tls: Option<Arc<rustls::ClientConfig>>,
    region: Option<Region>,
    /// Name of the only worker.
    name: Option<String>,
}

impl Credentials {
    /// To show them to this worker. Addresses of a file may be encrypted ones without certificates: the
    /// connection fails then.
    pub fn endpoint(&self, found: &Found) -> Endpoint {
        let Self { authorization, tls, region, name } = self.clone();
        let Found { address, server_name } = found.clone();
        Endpoint { address, name, server_name, authorization, tls, region }
    }
}

/// Reasons for which workers cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// An address that is none.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// A worker that is named twice.
    #[error("the worker {url} is given twice")]
    Twice {
        /// The executor.
        url: String,
    },
    /// More workers than there may be.
    #[error("more than {max} workers")]
    TooMany {
        /// Most there may be.
        max: usize,
    },
    /// A name that two workers have.
    #[error("the name {name} is given to two workers")]
    SameName {
        /// The executor.
        name: String,
    },
    /// Something else that is said about a worker cannot be used.
    #[error("the worker {url}: {reason}")]
    Unusable {
        /// The worker.
        url: String,
        /// Reason.
        reason: String,
    },
}

impl ReplicaConfig {
    /// A worker of which only the address is said.
    pub fn of_url(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// The source of workers, and their credentials.
    ///
    /// # Errors
    /// When something cannot be used.
    pub(super) fn workers(
        &self,
        default_token: Option<&Secret>,
    ) -> Result<(Source, Credentials), FleetError> {
        let source = Source::parse(&self.url, self.ca.is_some(), Kind::Workers)?;
        let unusable = |reason: String| FleetError::Unusable { url: self.url.clone(), reason };
        if self.api_key.is_some()
            || self.model.is_some()
            || !self.names.is_empty()
            || self.timeout_s.is_some()
        {
            return Err(unusable(
                "api_key, model, names and timeout_s are for engines, not for workers".into(),
            ));
        }
        self.check_name()?;
        if self.name.is_some() && !source.is_static() {
            return Err(unusable("name is for one worker or engine, not for all that are found".into()));
        }
        let authorization = self.token.as_ref().or(default_token).map(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))?;
            value.set_sensitive(true);
            Ok::<_, http::header::InvalidHeaderValue>(value)
        });
        let authorization =
            authorization.transpose().map_err(|_| unusable("its token cannot be sent".into()))?;
        if let Source::Address(address) = &source {
            match (&self.ca, address.is_encrypted()) {
                (None, true) => {
                    return Err(unusable("throngs:// needs the certificates that its own comes from".into()));
                }
                (Some(_), false) => return Err(unusable("certificates are for throngs:// only".into())),
                _ => {}
            }
        }
        let tls = self.ca.as_deref().map(|ca| self.tls(ca).map(Arc::new)).transpose().map_err(unusable)?;
        Ok((source, Credentials { authorization, tls, region: self.region(), name: self.name.clone() }))
    }

    /// Whether its name, if it has one, can be asked for.
    pub(super) fn check_name(&self) -> Result<(), FleetError> {
        let is_usable = |name: &String| {
            (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match self.name.as_ref().is_none_or(is_usable) {
            true => Ok(()),
            false => Err(FleetError::Unusable {
                url: self.shown_url(),
                reason: format!("name must be 1 to {MAX_NAME_BYTES} visible ASCII characters"),
            }),
        }
    }

    /// Whether its region is one of those that there are.
    pub(super) fn check_region(&self, gateway: &dyn FleetModels) -> Result<(), FleetError> {
        let checked = self.region.as_deref().map_or(Ok(()), |region| gateway.check_region(region));
        checked.map_err(|fault| FleetError::Unusable {
            url: self.url.clone(),
            reason: format!("region: {fault}"),
        })
    }

    /// Its region, if that is said.
    pub(super) fn region(&self) -> Option<Region> {
        self.region.as_deref().map(Region::from)
    }

    /// Trusts these certificates, and shows its own.
    pub(super) fn tls(&self, ca: &Path) -> Result<rustls::ClientConfig, String> {
        let own = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            _ => return Err("a certificate and its key go together".to_owned()),
        };
        client_tls(Some(ca), own, b"h2")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_told() {
        let told = |config: ReplicaConfig| config.workers(None).map(drop).map_err(|error| error.to_string());
        assert_eq!(told(ReplicaConfig::of_url("throng://a:1")), Ok(()));
        for (config, words) in [
            (ReplicaConfig::of_url("http://a:1"), "no address of a worker"),
            (ReplicaConfig::of_url("throngs://a:1"), "needs the certificates"),
            (ReplicaConfig { ca: Some("/nowhere".into()), ..ReplicaConfig::of_url("throng://a:1") }, "only"),
            (
                ReplicaConfig { ca: Some("/nowhere".into()), ..ReplicaConfig::of_url("throngs://a:1") },
                "/nowhere",
            ),
            (ReplicaConfig { name: Some("a b".into()), ..ReplicaConfig::of_url("throng://a:1") }, "visible"),
            (ReplicaConfig { name: Some("a".into()), ..ReplicaConfig::of_url("dns://a:1") }, "one worker"),
            (
                ReplicaConfig { token: Some(Secret::new("a\nb")), ..ReplicaConfig::of_url("throng://a:1") },
                "token",
            ),
        ] {
            let error = told(config).expect_err(words);
            assert!(error.contains(words) && !error.contains("a\nb"), "{error}");
        }
        let endpoint = ReplicaConfig::of_url("throng://a:1").workers(Some(&Secret::new("canary")));
        assert!(!format!("{:?}", endpoint.expect("valid")).contains("canary"));
    }
}
