//! The tenant of a request, with its stored key. Does not know how keys are found.

use std::sync::Arc;

use throng_core::request::TenantId;
use throng_store::ApiKey;

/// Tenant of a request.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Id for fairness: a stored key's project, a configured key, a token's user without project, or the
    /// common tenant of clients without keys. Its first letters name the kind (`proj_`, `key-`, `user_`),
    /// so that equal names of different kinds are different tenants.
    pub id: TenantId,
    /// Stored key with its organisation, project and limits; `None` for configured keys and anonymous
    /// clients.
    pub key: Option<Arc<ApiKey>>,
    /// User that a token names, which has precedence over the user in the request's body.
    pub user: Option<Arc<str>>,
    /// Whether the request has the operator's key.
    pub is_operator: bool,
}

impl Tenant {
    /// The tenant of clients without keys, if no key is needed.
    pub fn anonymous() -> Self {
        Self::without_key(TenantId::anonymous())
    }

    /// A tenant without restrictions.
    pub fn without_key(id: TenantId) -> Self {
        Self { id, key: None, user: None, is_operator: false }
    }

    /// The operator as a tenant.
    pub fn operator() -> Self {
        Self { is_operator: true, ..Self::without_key(TenantId(Arc::from("operator"))) }
    }

    /// The tenant of a stored key.
    pub fn of(key: Arc<ApiKey>) -> Self {
        let id = TenantId(Arc::from(key.project_id.as_str()));
        Self { id, key: Some(key), user: None, is_operator: false }
    }

    /// The tenant of a token, represented by a key with the name of the token's user.
    pub fn of_token(key: ApiKey) -> Self {
        let user = Some(Arc::from(key.name.as_str()));
        Self { user, ..Self::of(Arc::new(key)) }
    }

    /// Whether the key permits `name`, or another name of the same model, given in `served`. A permitted
    /// name of a model permits its other names; an adapter is permitted only by its own name.
    pub fn permits(&self, name: &str, served: &[String]) -> bool {
        self.names(name)
            || served.iter().any(|known| known == name) && served.iter().any(|one| self.names(one))
    }

    /// Whether the key is restricted to some models.
    pub fn is_restricted(&self) -> bool {
        self.key.as_deref().is_some_and(|key| key.models.is_some())
    }

    /// Whether the key has no restriction of models, or lists this name.
    pub fn names(&self, name: &str) -> bool {
        let models = self.key.as_deref().and_then(|key| key.models.as_deref());
        models.is_none_or(|models| models.iter().any(|model| model == name))
    }
}
