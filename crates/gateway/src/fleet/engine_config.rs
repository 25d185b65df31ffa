//! What an operator says about one foreign engine. Does not connect.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Uri};

use super::config::{FleetError, ReplicaConfig};
use crate::foreign::Upstream;
use crate::trust::trusting;

/// How long an engine may say nothing, unless it is set.
const DEFAULT_TIMEOUT_S: u64 = 120;
/// The longest that may be set.
const MAX_TIMEOUT_S: u64 = 3_600;

impl ReplicaConfig {
    /// Whether it is an OpenAI-compatible engine and not a worker.
    pub(super) fn is_foreign(&self) -> bool {
        self.url.starts_with("http://") || self.url.starts_with("https://")
    }

    /// Where it is, and what it must be shown.
    ///
    /// # Errors
    /// When something cannot be used.
    pub(super) fn upstream(&self) -> Result<Upstream, FleetError> {
        let unusable =
            |reason: &str| FleetError::Unusable { url: self.shown_url(), reason: reason.to_owned() };
        self.check_name()?;
        let base = self.url.trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| unusable("its address is no URL"))?;
        let authority = uri.authority().ok_or_else(|| unusable("its address names no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(unusable(
                "its address must be https://HOST/PATH, without a name, a password or a query",
            ));
        }
        let authorization = self.api_key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))?;
            value.set_sensitive(true);
            Ok::<_, http::header::InvalidHeaderValue>(value)
        });
        let authorization = authorization.transpose().map_err(|_| unusable("its API key cannot be sent"))?;
        if self.token.is_some() {
            return Err(unusable("token is for workers; an engine has an api_key"));
        }
        let timeout_s = self.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
        if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
            return Err(unusable("timeout_s must be from 1 to 3600"));
        }
        let tls = match (&self.ca, uri.scheme_str() == Some("https")) {
            (Some(ca), true) => Some(self.tls(ca).map_err(|reason| unusable(&reason))?),
            (None, true) => Some(trusting(None).map_err(|reason| unusable(&reason))?),
            (Some(_), false) => return Err(unusable("certificates are for https:// only")),
            (None, false) => None,
        };
        let name = self.name.clone().unwrap_or_else(|| authority.as_str().to_owned());
        let (region, timeout) = (self.region(), Duration::from_secs(timeout_s));
        Ok(Upstream::new(name, region, Arc::from(base), authorization, timeout, tls))
    }

    /// The address without what may be secret in it.
    pub(super) fn shown_url(&self) -> String {
        self.url.rsplit_once('@').map_or(self.url.as_str(), |(_, rest)| rest).to_owned()
    }
}
