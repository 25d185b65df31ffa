//! Settings of one worker, upstream engine or source, and the files that they name. Does not connect.

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

/// Maximum bytes of a worker's or an engine's name.
const MAX_NAME_BYTES: usize = 128;

/// A worker, an upstream engine or a source of either in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Address of a worker: `throng://host:port`, or `throngs://host:port` with TLS. Source of workers:
    /// `file:///path`, `dns://name:port`, `srv://name` or `kubernetes://namespace/service:port`. Engine
    /// with OpenAI's API: the address before `/chat/completions`, as `https://host/v1`.
    pub url: String,
    /// Name in logs, metrics and the header that selects a replica; default: host and port. Not for
    /// sources.
    #[serde(default)]
    pub name: Option<String>,
    /// Path of OpenAI's API, as `/v1`, if a source lists engines instead of workers. Key, model, names and
    /// the other settings apply to all of them.
    #[serde(default)]
    pub engine_path: Option<String>,
    /// API key for an engine.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// Name of the model at the engine; `None`: all models that it lists.
    #[serde(default)]
    pub model: Option<String>,
    /// Names of that model in requests; empty: the engine's name.
    #[serde(default)]
    pub names: Vec<String>,
    /// Maximum silence of an engine in seconds, after which it has failed.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Region; `None`: the region that the worker reports.
    #[serde(default)]
    pub region: Option<String>,
    /// Token for the worker, if it is not that of all workers.
    #[serde(default)]
    pub token: Option<Secret>,
    /// File of certificate authorities (PEM) for the replica's certificate. Required with `throngs`; for
    /// engines it replaces those that the system trusts. Workers from DNS or Kubernetes are reached over
    /// TLS if it is set.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// File of the client certificate (PEM), if the worker requires one.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// File of the client certificate's key.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// API server for `kubernetes://`, if it is not that of the pod's environment.
    #[serde(default)]
    pub kubernetes_api: Option<KubernetesApi>,
}

/// Credentials for the workers of a source, and their region.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    authorization: Option<HeaderValue>,
    tls: Option<Arc<rustls::ClientConfig>>,
    region: Option<Region>,
    /// Name, for a source of one worker.
    name: Option<String>,
}

impl Credentials {
    /// Credentials for one worker. An encrypted address in a file without a configured `ca` fails when
    /// connecting.
    pub fn endpoint(&self, found: &Found) -> Endpoint {
        let Self { authorization, tls, region, name } = self.clone();
        let Found { address, server_name } = found.clone();
        Endpoint { address, name, server_name, authorization, tls, region }
    }
}

/// Reason why workers or engines cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The address is invalid.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// A worker occurs twice.
    #[error("the worker {url} is given twice")]
    Twice {
        /// URL of the worker.
        url: String,
    },
    /// There are too many workers.
    #[error("more than {max} workers")]
    TooMany {
        /// Maximum number.
        max: usize,
    },
    /// Two workers have the same name.
    #[error("the name {name} is given to two workers")]
    SameName {
        /// Name of the replica.
        name: String,
    },
    /// A setting of a worker cannot be used.
    #[error("the worker {url}: {reason}")]
    Unusable {
        /// URL of the worker.
        url: String,
        /// Reason why it cannot be used.
        reason: String,
    },
}

impl ReplicaConfig {
    /// Settings with only an address.
    pub fn of_url(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Parses the source of workers and their credentials.
    ///
    /// # Errors
    /// When a value cannot be used.
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

    /// Checks that the name, if any, can be used in a request's header.
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

    /// Checks that the region, if any, is allowed.
    pub(super) fn check_region(&self, gateway: &dyn FleetModels) -> Result<(), FleetError> {
        let checked = self.region.as_deref().map_or(Ok(()), |region| gateway.check_region(region));
        checked.map_err(|fault| FleetError::Unusable {
            url: self.url.clone(),
            reason: format!("region: {fault}"),
        })
    }

    /// The configured region, if any.
    pub(super) fn region(&self) -> Option<Region> {
        self.region.as_deref().map(Region::from)
    }

    /// Builds TLS settings that trust these certificates and present the configured one.
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
