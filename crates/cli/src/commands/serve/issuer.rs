//! Reads the keys of the token issuer over HTTP at intervals, and gives them to the gateway. While the issuer
//! is unreachable, the last known keys stay valid. Does not know the content of tokens.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use throng_gateway::{AccessConfig, Loading, TokenConfig};

use crate::error_chain::in_full;

/// Timeout of a request to the issuer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a response of the issuer.
const MAX_BYTES: u64 = 1 << 20;
/// Minimum interval between requests to the issuer, independent of their result and of the keys that tokens
/// name.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// Starts a task that keeps the issuer's keys current. Does nothing without an issuer.
pub fn follow(access: &AccessConfig, loading: &Loading) {
    let (Some(config), Some(keys)) = (access.tokens.clone(), loading.issuer_keys()) else { return };
    let agent =
        ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).max_redirects(0).build().new_agent();
    tokio::spawn(async move {
        let mut is_failing = false;
        loop {
            let (asked, of) = (agent.clone(), config.clone());
            let read = tokio::task::spawn_blocking(move || fetch(&asked, &of)).await;
            let taken = read.map_err(anyhow::Error::from).flatten().and_then(|json| Ok(keys.replace(&json)?));
            match taken {
                Ok(n) if is_failing => tracing::info!(n, "the keys of the tokens' issuer are read again"),
                Ok(n) => tracing::debug!(n, "read the keys of the tokens' issuer"),
                Err(ref error) if !is_failing => {
                    let reason = in_full(error);
                    tracing::warn!(
                        reason,
                        "cannot read the keys of the tokens' issuer; the last known ones hold"
                    );
                }
                Err(_) => {}
            }
            is_failing = taken.is_err();
            tokio::time::sleep(MIN_INTERVAL).await;
            let rest = Duration::from_secs(config.refresh_s).saturating_sub(MIN_INTERVAL);
            if !is_failing {
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    () = keys.wanted() => {}
                }
            }
        }
    });
}

fn fetch(agent: &ureq::Agent, config: &TokenConfig) -> Result<Vec<u8>> {
    let url = match &config.jwks_url {
        Some(url) => url.clone(),
        None => {
            let place = format!("{}/.well-known/openid-configuration", config.issuer.trim_end_matches('/'));
            let found: Discovery = serde_json::from_slice(&get(agent, &place)?)
                .with_context(|| format!("{place}: no discovery document"))?;
            ensure!(found.issuer == config.issuer, "{place}: it is of the issuer {:?}", found.issuer);
            let is_safe = found.jwks_uri.starts_with("https://") || config.issuer.starts_with("http://");
            ensure!(is_safe, "{place}: its jwks_uri is not encrypted");
            found.jwks_uri
        }
    };
    get(agent, &url)
}

fn get(agent: &ureq::Agent, url: &str) -> Result<Vec<u8>> {
    let mut answer = agent.get(url).call().with_context(|| url.to_owned())?;
    ensure!(answer.status().is_success(), "{url}: status {}", answer.status());
    answer.body_mut().with_config().limit(MAX_BYTES).read_to_vec().with_context(|| url.to_owned())
}
