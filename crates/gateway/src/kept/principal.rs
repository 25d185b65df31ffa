//! The principal of a batch, stored with it: the caller in whose name its lines are answered. A key is
//! looked up again for each line, so that a revoked one ends the batch; a token's claims are stored, since
//! a batch may outlast the token.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use throng_api::ApiError;
use throng_core::request::TenantId;
use throng_store::{ApiKey, KeyDigest, LimitKind, Limits};

use crate::app::App;
use throng_auth::Tenant;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Principal {
    /// A key of the database, by digest.
    Stored(KeyDigest),
    /// The holder of a token.
    Token(Box<Token>),
    /// A key of the configuration, or an anonymous caller.
    Tenant,
}

/// Claims of a token that name its holder.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    id: String,
    user: String,
    organisation: String,
    organisation_id: String,
    project: String,
    project_id: String,
    models: Option<Vec<String>>,
    /// Limits of the token, its project, its organisation and each of its users, by name.
    limits: [Vec<(String, u64)>; 4],
}

/// Serializes the caller's identity.
pub(crate) fn principal_of(tenant: &Tenant) -> Value {
    let principal = match (&tenant.key, &tenant.user) {
        (Some(key), Some(_)) => Principal::Token(Box::new(Token::of(key))),
        (Some(key), None) => Principal::Stored(key.digest),
        (None, _) => Principal::Tenant,
    };
    serde_json::to_value(principal).unwrap_or_default()
}

/// Restores the tenant of the caller.
///
/// # Errors
/// 401 for a key that is unknown, revoked or expired by now.
pub(crate) fn tenant_of(app: &App, tenant: &str, principal: &Value) -> Result<Tenant, ApiError> {
    let principal = Principal::deserialize(principal).map_err(|_| ApiError::invalid_api_key())?;
    let found = match principal {
        Principal::Stored(digest) => Tenant::of(app.policy.keys.stored_key(&digest)?),
        Principal::Token(token) => Tenant::of_token(token.key()),
        Principal::Tenant if app.policy.keys.knows_tenant(tenant) => {
            Tenant::without_key(TenantId(Arc::from(tenant)))
        }
        Principal::Tenant => return Err(ApiError::invalid_api_key()),
    };
    if *found.id.0 == *tenant { Ok(found) } else { Err(ApiError::invalid_api_key()) }
}

impl Token {
    fn of(key: &ApiKey) -> Self {
        let named = |limits: &Limits| {
            let of_kind = |kind: LimitKind| Some((kind.name().to_owned(), limits.get(kind)?));
            LimitKind::ALL.into_iter().filter_map(of_kind).collect()
        };
        let limits = [&key.limits, &key.project_limits, &key.organisation_limits, &key.user_limits];
        Self {
            id: key.id.clone(),
            user: key.name.clone(),
            organisation: key.organisation.clone(),
            organisation_id: key.organisation_id.clone(),
            project: key.project.clone(),
            project_id: key.project_id.clone(),
            models: key.models.clone(),
            limits: limits.map(named),
        }
    }

    fn key(self) -> ApiKey {
        let read = |named: Vec<(String, u64)>| {
            Limits::of(
                named.into_iter().filter_map(|(name, limit)| Some((LimitKind::of_name(&name)?, limit))),
            )
        };
        let [limits, project_limits, organisation_limits, user_limits] = self.limits.map(read);
        ApiKey {
            id: self.id,
            prefix: String::new(),
            name: self.user,
            organisation: self.organisation,
            organisation_id: self.organisation_id,
            project: self.project,
            project_id: self.project_id,
            digest: [0; 32],
            created_unix_s: 0,
            expires_unix_s: None,
            revoked_unix_s: None,
            models: self.models,
            limits,
            project_limits,
            organisation_limits,
            user_limits,
        }
    }
}
