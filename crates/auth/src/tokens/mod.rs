//! Bearer tokens of an identity provider (JSON Web Tokens, RFC 7519), accepted in place of API keys. The
//! caller provides the provider's keys; a token with an unknown key id requests a new reading. Does not
//! know HTTP.

mod claims;
mod key_set;
mod signatures;

use std::sync::{Arc, PoisonError, RwLock};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use throng_store::ApiKey;
use tokio::sync::Notify;

use self::claims::Claims;
use self::key_set::KeySet;
pub use self::key_set::KeySetError;
use super::stored::KnownScopes;
use crate::config::TokenConfig;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Maximum bytes of an accepted token.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Tolerated difference between clocks.
const LEEWAY_S: u64 = 60;

/// Keys of the issuer at the last reading; none before the first one. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct IssuerKeys {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    keys: RwLock<Arc<KeySet>>,
    wanted: Notify,
}

impl IssuerKeys {
    /// Replaces the keys by those of a JWK Set, and returns their number.
    ///
    /// # Errors
    /// When the document has no usable key; the keys stay as they were.
    pub fn replace(&self, json: &[u8]) -> Result<usize, KeySetError> {
        let keys = KeySet::parse(json)?;
        let n = keys.n_keys();
        *self.shared.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(n)
    }

    /// Waits until a token has named an unknown key.
    pub async fn wanted(&self) {
        self.shared.wanted.notified().await;
    }

    fn current(&self) -> Arc<KeySet> {
        self.shared.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Requirements on tokens.
#[derive(Debug)]
pub(super) struct TokenVerifier {
    config: TokenConfig,
    keys: IssuerKeys,
}

impl TokenVerifier {
    pub fn new(config: TokenConfig, keys: IssuerKeys) -> Self {
        signatures::install();
        Self { config, keys }
    }

    /// Whether a credential is a token rather than a key: three parts, the first of which is JSON in Base64.
    pub fn is_token(credential: &[u8]) -> bool {
        credential.starts_with(b"eyJ") && credential.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// The key that represents the token.
    ///
    /// # Errors
    /// 401 for a token that is invalid or has expired; 503 until the issuer's keys have been read.
    pub fn verify(&self, token: &[u8], known: &KnownScopes) -> Result<ApiKey, ApiError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(ApiError::refused_token("it is too long"));
        }
        let header =
            decode_header(token).map_err(|_| ApiError::refused_token("its header cannot be read"))?;
        if !signatures::is_accepted(header.alg) || header.crit.is_some() {
            return Err(ApiError::refused_token("its algorithm is not accepted"));
        }
        let keys = self.keys.current();
        if keys.n_keys() == 0 {
            return Err(ApiError::overloaded(
                "The keys of the tokens' issuer are not known yet.",
                retry_after_s(),
            ));
        }
        let Some(key) = keys.find(header.kid.as_deref(), header.alg) else {
            self.keys.shared.wanted.notify_one();
            return Err(ApiError::refused_token("the issuer has no such key"));
        };
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&[&self.config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        (validation.validate_nbf, validation.leeway) = (true, LEEWAY_S);
        let token = decode::<Claims>(token, key, &validation).map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature => ApiError::token_expired(),
            ErrorKind::ImmatureSignature => ApiError::refused_token("it is not valid yet"),
            ErrorKind::InvalidIssuer => ApiError::refused_token("it is of another issuer"),
            ErrorKind::InvalidAudience => ApiError::refused_token("it is for another audience"),
            ErrorKind::MissingRequiredClaim(_) => ApiError::refused_token("it lacks exp, iss or aud"),
            _ => ApiError::refused_token("its signature is wrong"),
        })?;
        claims::key_of(&token.claims, &self.config.claims, known).map_err(|claim| {
            ApiError::refused_token(&format!("its claim '{claim}' is absent or cannot be used"))
        })
    }
}
