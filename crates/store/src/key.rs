//! API keys as data: the stored form of a key, and the creation of keys. Does not know databases.

use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::limits::{LimitChange, Limits};

/// SHA-256 digest of a key. Keys have 256 random bits, so a key cannot be found from its digest.
pub type KeyDigest = [u8; 32];

/// Prefix of API keys.
const LABEL: &str = "sk-";
/// Number of a key's hexadecimal digits that are shown, so that its owner recognizes it; 224 random bits
/// stay secret.
const N_SHOWN_DIGITS: usize = 8;

/// The digest of a key as clients send it.
pub fn digest_of(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// A stored key, without the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Id of the key: `key_…`.
    pub id: String,
    /// First characters of the key.
    pub prefix: String,
    /// Name for people; may be empty.
    pub name: String,
    /// Name of the organisation.
    pub organisation: String,
    /// Id of the organisation: `org_…`.
    pub organisation_id: String,
    /// Name of the project; unique within the organisation.
    pub project: String,
    /// Id of the project: `proj_…`.
    pub project_id: String,
    /// Digest of the key.
    pub digest: KeyDigest,
    /// Creation time, in seconds since the epoch.
    pub created_unix_s: u64,
    /// Expiry, in seconds since the epoch.
    pub expires_unix_s: Option<u64>,
    /// Time of the revocation, in seconds since the epoch.
    pub revoked_unix_s: Option<u64>,
    /// Models that the key may use; `None`: all.
    pub models: Option<Vec<String>>,
    /// Limits of the key.
    pub limits: Limits,
    /// Limits that all keys of the project share.
    pub project_limits: Limits,
    /// Limits that all projects of the organisation share.
    pub organisation_limits: Limits,
    /// Limits of each user of the project.
    pub user_limits: Limits,
}

impl ApiKey {
    /// Whether the key was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked_unix_s.is_some()
    }

    /// Whether the key has expired at this time.
    pub fn is_expired(&self, now_unix_s: u64) -> bool {
        self.expires_unix_s.is_some_and(|expires| now_unix_s >= expires)
    }

    /// Compares digests in constant time.
    pub fn has_digest(&self, digest: &KeyDigest) -> bool {
        self.digest.iter().zip(digest).fold(0, |acc, (a, b)| black_box(acc | (a ^ b))) == 0
    }
}

/// All keys at one revision of the database.
#[derive(Debug, Clone, Default)]
pub struct KeyTable {
    /// Revision, which rises with each change.
    pub revision: i64,
    /// Keys in order of creation.
    pub keys: Vec<ApiKey>,
}

/// Properties of a new key.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// Name of the organisation; created if it is new.
    pub organisation: String,
    /// Name of the project; created if it is new.
    pub project: String,
    /// Name for people; may be empty.
    pub name: String,
    /// Expiry, in seconds since the epoch.
    pub expires_unix_s: Option<u64>,
    /// Models that the key may use; `None`: all.
    pub models: Option<Vec<String>>,
    /// Limits of the key.
    pub limits: Limits,
}

/// Changes of a key. `None` leaves a property unchanged; an inner `None` removes a restriction.
#[derive(Debug, Clone, Default)]
#[allow(clippy::option_option, reason = "a change to nothing differs from no change")]
pub struct KeyChange {
    /// Expiry, in seconds since the epoch.
    pub expires_unix_s: Option<Option<u64>>,
    /// Models that the key may use.
    pub models: Option<Option<Vec<String>>>,
    /// Changes of the key's limits.
    pub limits: LimitChange,
}

impl KeyChange {
    /// Applies the changes to a key.
    pub(crate) fn apply(self, key: &mut ApiKey) {
        key.expires_unix_s = self.expires_unix_s.unwrap_or(key.expires_unix_s);
        key.models = self.models.unwrap_or_else(|| key.models.take());
        self.limits.into_iter().for_each(|(kind, limit)| key.limits.set(kind, limit));
    }
}

/// A new key with its secret, which is not stored anywhere.
#[derive(Clone)]
pub struct CreatedKey {
    /// Stored form of the key.
    pub key: ApiKey,
    secret: String,
}

impl CreatedKey {
    /// Secret that clients send.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn new(key: ApiKey, secret: String) -> Self {
        Self { key, secret }
    }
}

impl fmt::Debug for CreatedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedKey").field("key", &self.key).field("secret", &"***").finish()
    }
}

/// Creates a new random key.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn random_secret() -> Result<String, StoreError> {
    Ok(format!("{LABEL}{}", random_hex::<32>()?))
}

/// The part of a key that may be shown.
pub(crate) fn prefix_of(secret: &str) -> String {
    secret.chars().take(LABEL.len() + N_SHOWN_DIGITS).collect()
}

/// Creates a new random id that starts with `kind`.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn random_id(kind: &str) -> Result<String, StoreError> {
    Ok(format!("{kind}_{}", random_hex::<12>()?))
}

fn random_hex<const N_BYTES: usize>() -> Result<String, StoreError> {
    let mut bytes = [0; N_BYTES];
    getrandom::fill(&mut bytes).map_err(StoreError::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_differ_and_show_only_their_prefix() {
        let (first, second) = (random_secret().expect("random"), random_secret().expect("random"));
        assert_ne!(first, second);
        assert_eq!(first.len(), LABEL.len() + 64);
        assert_eq!(prefix_of(&first), first[..11]);
        let key = ApiKey {
            id: random_id("key").expect("random"),
            prefix: prefix_of(&first),
            name: String::new(),
            organisation: "o".to_owned(),
            organisation_id: "org_1".to_owned(),
            project: "p".to_owned(),
            project_id: "proj_1".to_owned(),
            digest: digest_of(first.as_bytes()),
            created_unix_s: 1,
            expires_unix_s: Some(10),
            revoked_unix_s: None,
            models: None,
            limits: Limits::default(),
            project_limits: Limits::default(),
            organisation_limits: Limits::default(),
            user_limits: Limits::default(),
        };
        assert!(
            key.has_digest(&digest_of(first.as_bytes())) && !key.has_digest(&digest_of(second.as_bytes()))
        );
        assert!(!key.is_expired(9) && key.is_expired(10));
        let created = CreatedKey::new(key, first.clone());
        assert!(!format!("{created:?}").contains(&first[11..]));
    }
}
