//! Tokens for an MCP server by OAuth's client credentials, for which no person is asked. Does not discover
//! authorization servers: the operator's setting alone says where the secret is sent.

use std::time::Duration;

use futures_util::StreamExt;
use http::HeaderValue;
use reqwest::Url;
use serde::Deserialize;
use tokio::time::Instant;

use crate::config::OauthConfig;
use crate::hosts;
use crate::http_tool::encoded;

/// Time within which a token must be had.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an authorization server's answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum time before its expiry at which a token is replaced, or half of its life if that is less.
const MARGIN: Duration = Duration::from_secs(30);

/// A client of an authorization server.
#[derive(Debug)]
pub(crate) struct ClientCredentials {
    client: reqwest::Client,
    config: OauthConfig,
    token_url: Url,
    /// URL of the MCP server, for which the token is (RFC 8707).
    resource: String,
}

/// A token as the header of requests.
#[derive(Debug)]
pub(super) struct Token {
    pub header: HeaderValue,
    /// Time at which it must be replaced.
    pub valid_until: Option<Instant>,
}

/// Place of the client's secret in a request.
#[derive(Debug, Clone, Copy)]
enum Secret {
    Header,
    Body,
}

#[derive(Debug, Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    expires_in: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Refused {
    #[serde(default)]
    error: String,
}

impl ClientCredentials {
    /// Creates the client for the MCP server at `resource`.
    ///
    /// # Errors
    /// The fault of the settings.
    pub fn new(config: &OauthConfig, client: reqwest::Client, resource: &Url) -> Result<Self, String> {
        let token_url = hosts::parse(&config.token_url).map_err(|fault| format!("token_url: {fault}"))?;
        if config.client_id.is_empty() || config.client_secret.reveal().is_empty() {
            return Err("needs client_id and client_secret".to_owned());
        }
        let mut resource = resource.clone();
        resource.set_fragment(None);
        Ok(Self { client, config: config.clone(), token_url, resource: resource.into() })
    }

    /// Asks for a token.
    ///
    /// # Errors
    /// The reason, without addresses and secrets.
    pub(super) async fn token(&self) -> Result<Token, String> {
        let asking = async {
            let answer = match self.ask(Secret::Header).await? {
                // Some servers read the secret from the body alone.
                Err(refused) if refused.error == "invalid_client" => self.ask(Secret::Body).await?,
                answer => answer,
            };
            answer.map_err(|refused| match refused.error.as_str() {
                "" => "its authorization server gives no token".to_owned(),
                error => format!("its authorization server gives no token: {error:?}"),
            })
        };
        let late = "its authorization server does not answer in time";
        let granted = tokio::time::timeout(TIMEOUT, asking).await.map_err(|_| late)??;
        if !granted.token_type.eq_ignore_ascii_case("bearer") {
            return Err("its authorization server gives another token than a bearer's".to_owned());
        }
        let header = HeaderValue::from_str(&format!("Bearer {}", granted.access_token));
        let mut header = header.map_err(|_| "its authorization server gives a token that is no header's")?;
        header.set_sensitive(true);
        let lifetime = granted.expires_in.map(Duration::from_secs);
        let valid_until = lifetime.and_then(|life| Instant::now().checked_add(life - MARGIN.min(life / 2)));
        Ok(Token { header, valid_until })
    }

    async fn ask(&self, secret: Secret) -> Result<Result<Granted, Refused>, String> {
        let OauthConfig { client_id, client_secret, scopes, .. } = &self.config;
        let mut form = vec![("grant_type", "client_credentials"), ("resource", &self.resource)];
        let scope = scopes.join(" ");
        if !scope.is_empty() {
            form.push(("scope", &scope));
        }
        let mut request = self.client.post(self.token_url.clone()).header("accept", "application/json");
        match secret {
            Secret::Header => {
                request = request.basic_auth(encoded(client_id), Some(encoded(client_secret.reveal())));
            }
            Secret::Body => {
                form.extend([("client_id", client_id.as_str()), ("client_secret", client_secret.reveal())])
            }
        }
        let pairs = form.into_iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let body = pairs.collect::<Vec<_>>().join("&");
        let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
        let fault = |error: reqwest::Error| {
            format!("its authorization server does not answer: {}", error.without_url())
        };
        let answer = request.send().await.map_err(fault)?;
        let is_granted = answer.status().is_success();
        let (mut bytes, mut stream) = (Vec::new(), answer.bytes_stream());
        while let Some(piece) = stream.next().await {
            bytes.extend_from_slice(&piece.map_err(fault)?);
            if bytes.len() > MAX_ANSWER_BYTES {
                return Err("its authorization server's answer is too long".to_owned());
            }
        }
        if !is_granted {
            return Ok(Err(serde_json::from_slice(&bytes).unwrap_or_default()));
        }
        let granted = serde_json::from_slice(&bytes);
        granted.map(Ok).map_err(|_| "its authorization server's answer is not that of OAuth".to_owned())
    }
}
