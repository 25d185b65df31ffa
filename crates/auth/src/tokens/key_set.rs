//! An issuer's public keys (JWK Set, RFC 7517). Keys that cannot verify a signature are ignored. Does not
//! fetch the document.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;

use super::signatures::is_accepted;

/// Maximum number of keys of an issuer; further ones are ignored.
const MAX_KEYS: usize = 64;

/// Reason why a document is not a set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// The document is not an object with `keys`.
    #[error("it is not a JWK Set")]
    NotAKeySet,
    /// No key of the document can verify a token.
    #[error("it has no public key for RS, PS, ES or EdDSA signatures")]
    NoKeys,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

/// An issuer's keys.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<VerifyingKey>,
}

#[derive(Debug)]
struct VerifyingKey {
    id: Option<String>,
    /// Algorithms of the key: one if the document names it.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl KeySet {
    /// Reads the document.
    ///
    /// # Errors
    /// [`KeySetError`].
    pub fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        let document: Document = serde_json::from_slice(json).map_err(|_| KeySetError::NotAKeySet)?;
        let keys =
            document.keys.into_iter().filter_map(|key| verifying_key(serde_json::from_value(key).ok()?));
        let keys: Vec<_> = keys.take(MAX_KEYS).collect();
        if keys.is_empty() { Err(KeySetError::NoKeys) } else { Ok(Self { keys }) }
    }

    /// Number of keys.
    pub fn n_keys(&self) -> usize {
        self.keys.len()
    }

    /// The key that a token names, if it has the token's algorithm; for a token without a key id, the only
    /// key with the algorithm.
    pub fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let suits = |key: &&VerifyingKey| {
            key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id)
        };
        let mut found = self.keys.iter().filter(suits);
        match (found.next(), found.next()) {
            (Some(only), None) => Some(&only.key),
            _ => None,
        }
    }
}

fn verifying_key(jwk: Jwk) -> Option<VerifyingKey> {
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let of_kind: Vec<Algorithm> = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => return None,
    };
    let named = jwk.common.key_algorithm.map(named_algorithm);
    let is_for = |algorithm: &Algorithm| named.is_none_or(|named| named == Some(*algorithm));
    let algorithms: Vec<_> = of_kind.into_iter().filter(|one| is_accepted(*one) && is_for(one)).collect();
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (!algorithms.is_empty()).then_some(VerifyingKey { id: jwk.common.key_id, algorithms, key })
}

fn named_algorithm(name: KeyAlgorithm) -> Option<Algorithm> {
    name.to_string().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: &str = r#""x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM""#;

    #[test]
    fn only_public_keys_for_signatures_are_found_and_only_for_their_algorithm() {
        let keys = format!(
            r#"{{"keys": [
                {{"kty":"EC","crv":"P-256","kid":"a",{POINT}}},
                {{"kty":"EC","crv":"P-256","kid":"e","use":"enc",{POINT}}},
                {{"kty":"oct","kid":"s","k":"c2VjcmV0","alg":"HS256"}},
                {{"kty":"RSA","kid":"r","alg":"RS256","n":"AQAB","e":"AQAB"}},
                {{"kty":"unheard of"}}, 7
            ]}}"#
        );
        let keys = KeySet::parse(keys.as_bytes()).expect("a set of keys");
        assert_eq!(keys.n_keys(), 2);
        assert!(
            keys.find(Some("a"), Algorithm::ES256).is_some() && keys.find(None, Algorithm::ES256).is_some()
        );
        assert!(
            keys.find(Some("r"), Algorithm::RS256).is_some()
                && keys.find(Some("r"), Algorithm::PS256).is_none()
        );
        for (id, algorithm) in [
            ("a", Algorithm::HS256),
            ("a", Algorithm::ES384),
            ("e", Algorithm::ES256),
            ("s", Algorithm::HS256),
            ("r", Algorithm::ES256),
            ("x", Algorithm::RS256),
        ] {
            assert!(keys.find(Some(id), algorithm).is_none(), "{id} {algorithm:?}");
        }
        for (json, error) in [
            ("[]", KeySetError::NotAKeySet),
            (r#"{"keys": 1}"#, KeySetError::NotAKeySet),
            (r#"{"keys": []}"#, KeySetError::NoKeys),
        ] {
            assert_eq!(KeySet::parse(json.as_bytes()).map(|_| ()), Err(error));
        }
    }
}
