//! Settings of tokens. Does not read files.

use serde::{Deserialize, Serialize};

/// Bearer tokens (JSON Web Tokens) of an identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Issuer of the tokens, which their `iss` must equal.
    pub issuer: String,
    /// Audience that `aud` of the tokens must contain.
    pub audience: String,
    /// URL of the issuer's keys; when absent, the one that `ISSUER/.well-known/openid-configuration` names.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// Interval in seconds at which the keys are read again; a token with an unknown key id also causes a
    /// reading.
    #[serde(default = "default_refresh_s")]
    pub refresh_s: u64,
    /// Names of the claims.
    #[serde(default)]
    pub claims: ClaimNames,
}

/// Names of the claims that identify the caller.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaimNames {
    /// Claim of the organisation; `default` if a token lacks it.
    pub organisation: String,
    /// Claim of the project, which is the tenant; without it a token has a project of its own.
    pub project: String,
    /// Claim of the user, which is required.
    pub user: String,
    /// Claim of the permitted models: a list, or a string of names separated by blanks; all if a token
    /// lacks it.
    pub models: String,
    /// Claim of the user's limits: an object as in the operator's API.
    pub limits: String,
}

impl Default for ClaimNames {
    fn default() -> Self {
        let [organisation, project, user, models, limits] =
            ["organisation", "project", "sub", "models", "limits"].map(str::to_owned);
        Self { organisation, project, user, models, limits }
    }
}

impl TokenConfig {
    /// Default interval in seconds of reading keys.
    pub const DEFAULT_REFRESH_S: u64 = 300;
}

fn default_refresh_s() -> u64 {
    TokenConfig::DEFAULT_REFRESH_S
}
