//! API keys as data: what is stored of a key, and how a new one is made. Does not know databases.

use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::limits::{LimitChange, Limits};

/// The SHA-256 digest of a key. Keys have 256 random bits, so that a digest cannot be searched for its key.
pub type KeyDigest = [u8; 32];

/// Prefix of keys.
const LABEL: &str = "sk-";
/// Hexadecimal digits of a key that are shown, so that its owner knows it again; 224 random bits stay secret.
const N_SHOWN_DIGITS: usize = 8;

/// The digest of a key as clients send it.
pub fn digest_of(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

/// A stored key; the key itself is not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its name for programs: `key_…`.
    pub id: String,
    /// Its first characters.
    pub prefix: String,
    /// Its name for people; may be empty.
    pub name: String,
    /// The organisation's name.
    pub organisation: String,
    /// The organisation's id: `org_…`.
    pub organisation_id: String,
    /// The project's name; unique within the organisation.
    pub project: String,
    /// The project's id: `proj_…`.
    pub project_id: String,
    /// The digest of the key.
    pub digest: KeyDigest,
    /// Time at which it was made, in seconds since the epoch.
    pub created_unix_s: u64,
    /// Time from which on it is refused.
    pub expires_unix_s: Option<u64>,
    /// Time at which it was revoked.
    pub revoked_unix_s: Option<u64>,
    /// The models that it may use; all when absent.
    pub models: Option<Vec<String>>,
    /// Amounts that it may use.
    pub limits: Limits,
    /// Amounts that all keys of its project may use.
    pub project_limits: Limits,
    /// Amounts that all projects of its organisation may use.
    pub organisation_limits: Limits,
    /// Amounts that each user of its project may use.
    pub user_limits: Limits,
}

impl ApiKey {
    /// Whether it was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked_unix_s.is_some()
    }

    /// Whether it has expired at this time.
    pub fn is_expired(&self, now_unix_s: u64) -> bool {
        self.expires_unix_s.is_some_and(|expires| now_unix_s >= expires)
    }

    /// Compares digests in a time that does not tell where they differ.
    pub fn has_digest(&self, digest: &KeyDigest) -> bool {
        self.digest.iter().zip(digest).fold(0, |acc, (a, b)| black_box(acc | (a ^ b))) == 0
    }
}

/// All keys at one revision of the database.
#[derive(Debug, Clone, Default)]
pub struct KeyTable {
    /// Rises with each change.
    pub revision: i64,
    /// The keys in the order in which they were made.
    pub keys: Vec<ApiKey>,
}

/// Properties of a new key.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// The organisation's name; made when it is new.
    pub organisation: String,
    /// The project's name; made when it is new.
    pub project: String,
    /// A name for people; may be empty.
    pub name: String,
    /// Time from which on it is refused.
    pub expires_unix_s: Option<u64>,
    /// The models that it may use; all when absent.
    pub models: Option<Vec<String>>,
    /// Amounts that it may use.
    pub limits: Limits,
}

/// Changes of a key; a property that is absent stays, and an inner `None` takes a restriction away.
#[derive(Debug, Clone, Default)]
#[allow(clippy::option_option, reason = "a change to nothing differs from no change")]
pub struct KeyChange {
    /// Time from which on it is refused.
    pub expires_unix_s: Option<Option<u64>>,
    /// The models that it may use.
    pub models: Option<Option<Vec<String>>>,
    /// Amounts that it may use.
    pub limits: LimitChange,
}

impl KeyChange {
    /// The key as it is after the change.
    pub(crate) fn apply(self, key: &mut ApiKey) {
        key.expires_unix_s = self.expires_unix_s.unwrap_or(key.expires_unix_s);
        key.models = self.models.unwrap_or_else(|| key.models.take());
        self.limits.into_iter().for_each(|(kind, limit)| key.limits.set(kind, limit));
    }
}

/// A new key: what is stored of it, and the key itself, which is nowhere else.
#[derive(Clone)]
pub struct CreatedKey {
    /// Key as it is stored.
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

/// A new random key.
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

/// A new random id that begins with `kind`.
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
