//! Settings of upstream engines: of a named one, or of all in a source. Does not connect.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use throng_core::fleet::routing::Region;
use throng_http::tls_roots::trusting;

use super::replica_config::{FleetError, ReplicaConfig};
use crate::discovery::{Found, Kind, Source};
use crate::upstream::Upstream;

/// Default in seconds of the maximum silence of an engine.
const DEFAULT_TIMEOUT_S: u64 = 120;
/// Maximum timeout in seconds that may be configured.
const MAX_TIMEOUT_S: u64 = 3_600;

/// Credentials of engines, and configured facts about them.
#[derive(Debug, Clone)]
pub(super) struct EngineSettings {
    authorization: Option<HeaderValue>,
    timeout: Duration,
    tls: Option<rustls::ClientConfig>,
    region: Option<Region>,
    /// Path after host and port of engines from a source.
    path: String,
    /// Name of the model at the engines; `None`: all models that they list.
    model: Option<String>,
    /// Names of the model in requests, if they differ.
    names: Vec<String>,
}

impl EngineSettings {
    /// Creates an engine found in a source.
    pub fn found(&self, found: &Found) -> Upstream {
        let scheme = if found.address.is_encrypted() { "https" } else { "http" };
        let name = found.address.authority();
        let base = format!("{scheme}://{name}{}", self.path);
        let server_name = found.server_name.clone().and_then(|name| ServerName::try_from(name).ok());
        self.upstream(name, base.into(), server_name)
    }

    /// The configured model: its name at the engines, and its names in requests. `None` if the engines are
    /// queried for their models.
    pub fn model(&self) -> Option<(&str, Vec<String>)> {
        let model = self.model.as_deref()?;
        let names = if self.names.is_empty() { vec![model.to_owned()] } else { self.names.clone() };
        Some((model, names))
    }

    /// The configured names in requests.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn upstream(&self, name: String, base: Arc<str>, server_name: Option<ServerName<'static>>) -> Upstream {
        let Self { authorization, timeout, tls, region, .. } = self.clone();
        Upstream::new(name, region, &base, authorization, timeout, tls, server_name)
    }
}

impl ReplicaConfig {
    /// Whether it is an OpenAI-compatible engine, not a worker.
    pub(super) fn is_engine(&self) -> bool {
        self.url.starts_with("http://") || self.url.starts_with("https://")
    }

    /// Whether it is a source of OpenAI-compatible engines.
    pub(super) fn tells_engines(&self) -> bool {
        !self.is_engine() && self.engine_path.is_some()
    }

    /// Creates the engine and its settings.
    ///
    /// # Errors
    /// When a value cannot be used.
    pub(super) fn engine(&self) -> Result<(Upstream, EngineSettings), FleetError> {
        let unusable = |reason: &str| self.unusable(reason);
        self.check_name()?;
        let base = self.url.trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| unusable("its address is no URL"))?;
        let authority = uri.authority().ok_or_else(|| unusable("its address names no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(unusable(
                "its address must be https://HOST/PATH, without a name, a password or a query",
            ));
        }
        if self.engine_path.is_some() {
            return Err(unusable("engine_path is for engines that are found; its address has a path"));
        }
        let tls = match (&self.ca, uri.scheme_str() == Some("https")) {
            (Some(ca), true) => Some(self.tls(ca).map_err(|reason| unusable(&reason))?),
            (None, true) => Some(trusting(None).map_err(|reason| unusable(&reason))?),
            (Some(_), false) => return Err(unusable("certificates are for https:// only")),
            (None, false) => None,
        };
        let settings = self.engine_settings(tls)?;
        let name = self.name.clone().unwrap_or_else(|| authority.as_str().to_owned());
        Ok((settings.upstream(name, Arc::from(base), None), settings))
    }

    /// Parses the source of engines and their settings. A file may list encrypted engines without a
    /// configured `ca`; their certificates must then come from authorities that the system trusts.
    ///
    /// # Errors
    /// When a value cannot be used.
    pub(super) fn engines(&self) -> Result<(Source, EngineSettings), FleetError> {
        let source = Source::parse(&self.url, self.ca.is_some(), Kind::Engines)?;
        if source.is_static() {
            return Err(self.unusable("engine_path is for engines that a file, DNS or Kubernetes tells"));
        }
        if self.name.is_some() {
            return Err(self.unusable("name is for one worker or engine, not for all that are found"));
        }
        let path = self.engine_path.as_deref().unwrap_or_default();
        if !(path.is_empty() || path.starts_with('/') && path.parse::<Uri>().is_ok() && !path.contains('?')) {
            return Err(self.unusable("engine_path must be a path such as /v1"));
        }
        let tls = |ca: &Path| self.tls(ca).map_err(|reason| self.unusable(&reason));
        // A system without trusted authorities can still reach unencrypted engines.
        let tls = self.ca.as_deref().map(tls).transpose()?.or_else(|| trusting(None).ok());
        Ok((source, self.engine_settings(tls)?))
    }

    fn engine_settings(&self, tls: Option<rustls::ClientConfig>) -> Result<EngineSettings, FleetError> {
        let authorization = self.api_key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))?;
            value.set_sensitive(true);
            Ok::<_, http::header::InvalidHeaderValue>(value)
        });
        let authorization =
            authorization.transpose().map_err(|_| self.unusable("its API key cannot be sent"))?;
        if self.token.is_some() {
            return Err(self.unusable("token is for workers; an engine has an api_key"));
        }
        let timeout_s = self.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
        if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
            return Err(self.unusable("timeout_s must be from 1 to 3600"));
        }
        Ok(EngineSettings {
            authorization,
            timeout: Duration::from_secs(timeout_s),
            tls,
            region: self.region(),
            path: self.engine_path.as_deref().unwrap_or_default().trim_end_matches('/').to_owned(),
            model: self.model.clone(),
            names: self.names.clone(),
        })
    }

    fn unusable(&self, reason: &str) -> FleetError {
        FleetError::Unusable { url: self.shown_url(), reason: reason.to_owned() }
    }

    /// The address without parts that may be secret.
    pub(super) fn shown_url(&self) -> String {
        self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, rest)| rest).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secret;

    #[test]
    fn what_is_said_of_engines_that_are_found_is_checked() {
        let config =
            |url: &str| ReplicaConfig { engine_path: Some("/v1/".to_owned()), ..ReplicaConfig::of_url(url) };
        let (source, settings) = config("dns://engines.example:8000").engines().expect("valid");
        assert_eq!((source.to_string().as_str(), settings.model()), ("dns://engines.example:8000", None));
        let found = Found { address: "throng://[::1]:8000".parse().expect("an address"), server_name: None };
        assert_eq!(settings.found(&found).url(), "http://[::1]:8000/v1");
        for (config, words) in [
            (config("throng://a:1"), "that a file, DNS or Kubernetes tells"),
            (config("file://relative"), "no address of workers"),
            (ReplicaConfig { engine_path: Some("v1".into()), ..config("dns://a:1") }, "a path such as"),
            (ReplicaConfig { engine_path: Some("/v1?a".into()), ..config("dns://a:1") }, "a path such as"),
            (ReplicaConfig { name: Some("a".into()), ..config("dns://a:1") }, "not for all"),
            (ReplicaConfig { token: Some(Secret::new("a")), ..config("dns://a:1") }, "token is for workers"),
            (ReplicaConfig { timeout_s: Some(0), ..config("dns://a:1") }, "timeout_s"),
            (ReplicaConfig { ca: Some("/nowhere".into()), ..config("dns://a:1") }, "/nowhere"),
        ] {
            let error = config.engines().map(drop).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        let named = config("http://a:1/v1").engine().map(drop).expect_err("two paths");
        assert!(named.to_string().contains("engine_path"), "{named}");
    }
}
