//! The sections of a configuration file for workers and their gateways. Does not know the other sections.

use std::path::PathBuf;

use serde::Deserialize;
use throng_gateway::{KubernetesApi, ReplicaConfig, Secret};

use crate::args::{ExchangeBlocks, GatewayArgs, WorkerRole};

/// Settings that workers and their gateways share.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSection {
    /// Token that a worker requires, and that a gateway sends to workers without a token of their own.
    pub token: Option<Secret>,
    /// Region of the worker.
    pub region: Option<String>,
    /// Whether this worker exchanges keys and values of prompts with other workers.
    pub exchange_blocks: ExchangeBlocks,
    /// Part of requests that this worker is meant for.
    pub role: WorkerRole,
    /// File of certificate authorities (PEM) for the certificates of other workers.
    pub peer_ca: Option<PathBuf>,
}

/// The workers and engines of a gateway, from the file and from the flags. The flags' certificates apply to
/// those of the flags.
pub fn replicas(mut of_file: Vec<ReplicaConfig>, flags: &GatewayArgs) -> Vec<ReplicaConfig> {
    of_file.extend(flags.replica.iter().map(|url| {
        let is_engine = url.starts_with("http");
        ReplicaConfig {
            // The flags' certificates for workers must not apply to engines without TLS.
            ca: flags.replica_ca.clone().filter(|_| !url.starts_with("http:")),
            certificate: flags.replica_cert.clone().filter(|_| !is_engine),
            key: flags.replica_key.clone().filter(|_| !is_engine),
            api_key: flags.replica_api_key.as_ref().map(Secret::new).filter(|_| is_engine),
            ..ReplicaConfig::of_url(url)
        }
    }));
    for replica in of_file.iter_mut().filter(|replica| replica.url.starts_with("kubernetes:")) {
        replica.kubernetes_api = replica.kubernetes_api.take().or_else(api_of_pod);
    }
    of_file
}

/// The Kubernetes API server, if this process runs in a pod.
fn api_of_pod() -> Option<KubernetesApi> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let host = variable("KUBERNETES_SERVICE_HOST")?;
    Some(KubernetesApi::of_pod(&host, &variable("KUBERNETES_SERVICE_PORT")?))
}
