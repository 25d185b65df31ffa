//! Authentication by API keys or tokens. Keeps only digests of the keys. Does not know routes.
#![forbid(unsafe_code)]

mod config;
mod named_limits;
mod stored;
mod tenant;
mod tokens;

use std::hint::black_box;
use std::sync::Arc;

use http::{HeaderMap, header};
use throng_api::ApiError;
use throng_core::request::TenantId;
use throng_fleet::Secret;
use throng_store::{ApiKey, KeyDigest, digest_of};

pub use config::{ClaimNames, TokenConfig};
pub use named_limits::{LimitFault, read_limits};
use stored::KnownScopes;
pub use stored::StoredKeys;
pub use tenant::Tenant;
use tokens::TokenVerifier;
pub use tokens::{IssuerKeys, KeySetError};

/// Maximum bytes of an accepted key; longer ones are refused without a look-up.
const MAX_KEY_BYTES: usize = 512;

/// SHA-256 digests of the accepted keys, of the configuration and of the database, with their tenants.
#[derive(Debug)]
pub struct ApiKeys {
    keys: Vec<(KeyDigest, TenantId)>,
    stored: Option<StoredKeys>,
    operator: Option<KeyDigest>,
    tokens: Option<TokenVerifier>,
}

impl ApiKeys {
    /// Hashes the keys. A tenant's name is the beginning of its key's digest, so that it can be logged.
    pub fn new(keys: &[Secret], stored: Option<StoredKeys>) -> Self {
        let entry = |key: &Secret| {
            let digest = digest_of(key.reveal().as_bytes());
            let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            (digest, TenantId(Arc::from(format!("key-{name}"))))
        };
        Self { keys: keys.iter().map(entry).collect(), stored, operator: None, tokens: None }
    }

    /// Adds the operator's key.
    pub fn with_operator(mut self, key: Option<&Secret>) -> Self {
        self.operator = key.map(|key| digest_of(key.reveal().as_bytes()));
        self
    }

    /// Adds the verification of an identity provider's tokens.
    pub fn with_tokens(mut self, tokens: Option<(&TokenConfig, IssuerKeys)>) -> Self {
        self.tokens = tokens.map(|(config, keys)| TokenVerifier::new(config.clone(), keys));
        self
    }

    /// Whether the operator has a key.
    pub fn knows_operator(&self) -> bool {
        self.operator.is_some()
    }

    /// Keys of the database, if there is one.
    pub fn stored(&self) -> Option<&StoredKeys> {
        self.stored.as_ref()
    }

    /// The key of the database with this digest.
    ///
    /// # Errors
    /// 401 for a key that is unknown, revoked or expired.
    pub fn stored_key(&self, digest: &KeyDigest) -> Result<Arc<ApiKey>, ApiError> {
        self.stored.as_ref().ok_or_else(ApiError::invalid_api_key)?.find(digest)
    }

    /// Whether a tenant without a stored key may still send requests: a configured key, or anyone if no key
    /// is needed.
    pub fn knows_tenant(&self, tenant: &str) -> bool {
        self.is_open() || self.keys.iter().any(|(_, known)| *known.0 == *tenant)
    }

    /// Whether clients need no key. With a database they need one, even if it has no keys.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty() && self.stored.is_none() && self.tokens.is_none()
    }

    /// Whether a key can be sent in a header.
    pub fn is_well_formed(key: &[u8]) -> bool {
        (1..=MAX_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
    }

    /// Finds the tenant of the request's one credential (`Authorization: Bearer` or `x-api-key`).
    ///
    /// # Errors
    /// 401 for none, and others for several, malformed, unknown, revoked or expired ones. Anyone but the
    /// operator is the anonymous tenant when no key is needed.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Tenant, ApiError> {
        let credential = credential(headers);
        let digest = credential.filter(|key| Self::is_well_formed(key)).map(digest_of);
        if self.operator.as_ref().zip(digest.as_ref()).is_some_and(|(known, sought)| is_same(known, sought)) {
            return Ok(Tenant::operator());
        }
        if self.is_open() {
            return Ok(Tenant::anonymous());
        }
        if !headers.contains_key(header::AUTHORIZATION) && !headers.contains_key("x-api-key") {
            return Err(ApiError::missing_api_key());
        }
        if let (Some(tokens), Some(token)) =
            (&self.tokens, credential.filter(|one| TokenVerifier::is_token(one)))
        {
            let known = self.stored.as_ref().map(StoredKeys::table);
            let key = match &known {
                Some(table) => tokens.verify(token, &table.scopes),
                None => tokens.verify(token, &KnownScopes::default()),
            };
            return key.map(Tenant::of_token);
        }
        let digest = digest.ok_or_else(ApiError::invalid_api_key)?;
        match (self.find(&digest), &self.stored) {
            (Some(tenant), _) => Ok(Tenant::without_key(tenant)),
            (None, Some(stored)) => stored.find(&digest).map(Tenant::of),
            (None, None) => Err(ApiError::invalid_api_key()),
        }
    }

    /// Compares with every configured key, in constant time.
    fn find(&self, sought: &KeyDigest) -> Option<TenantId> {
        let mut found = None;
        for (digest, tenant) in &self.keys {
            if is_same(digest, sought) {
                found = Some(tenant.clone());
            }
        }
        found
    }
}

/// Compares two digests in constant time.
fn is_same(known: &KeyDigest, sought: &KeyDigest) -> bool {
    known.iter().zip(sought).fold(0, |acc, (a, b)| black_box(acc | (a ^ b))) == 0
}

fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    let plain = headers.get_all("x-api-key").iter().map(|value| Some(value.as_bytes()));
    let mut all = bearer.chain(plain);
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    only.map(<[u8]>::trim_ascii).filter(|key| !key.is_empty() && key.iter().all(u8::is_ascii_graphic))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a header value"));
        }
        map
    }

    #[test]
    fn one_well_formed_known_key_passes_and_nothing_else() {
        let keys = ApiKeys::new(&[Secret::new("first"), Secret::new("second")], None);
        let ask = |list: &[(&'static str, &str)]| keys.authenticate(&headers(list)).map(|tenant| tenant.id);
        let first = ask(&[("authorization", "Bearer first")]).expect("a known key");
        assert_eq!(first, ask(&[("x-api-key", "first")]).expect("the same key"));
        assert_eq!(first, ask(&[("authorization", "bearer first")]).expect("schemes have no case"));
        assert_ne!(first, ask(&[("authorization", "Bearer second")]).expect("a known key"));
        assert!(!first.0.contains("first"));
        let long = format!("Bearer {}", "x".repeat(1000));
        let refused: &[&[(&'static str, &str)]] = &[
            &[],
            &[("authorization", "")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Basic first")],
            &[("authorization", "first")],
            &[("authorization", "Bearer First")],
            &[("authorization", "Bearer first"), ("authorization", "Bearer first")],
            &[("authorization", "Bearer first"), ("x-api-key", "first")],
            &[("authorization", "Bearer ' OR 1=1 --")],
            &[("authorization", "Bearer schlüssel")],
            &[("authorization", &long)],
        ];
        for list in refused {
            let code = if list.is_empty() { "missing_api_key" } else { "invalid_api_key" };
            assert_eq!(ask(list).expect_err("not a key").code(), code, "{list:?}");
        }
        assert!(ApiKeys::new(&[], None).authenticate(&headers(&[])).is_ok());
    }
}
