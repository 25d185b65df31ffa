//! Verification of token signatures with ring, for the `jsonwebtoken` crate. Only public-key algorithms, so
//! that a token cannot choose a shared secret. Does not know claims.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as ring_signature;

/// Accepted algorithms. RSA keys must have 2048 to 8192 bits.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Whether signatures of this algorithm are accepted.
pub fn is_accepted(algorithm: Algorithm) -> bool {
    ALGORITHMS.contains(&algorithm)
}

/// Selects ring as the cryptography of `jsonwebtoken` in this process.
pub fn install() {
    static INSTALLED: Once = Once::new();
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        verifier_factory: verifier,
        key_utils: KeyUtils::new_unimplemented(),
    };
    // Another provider stays if a program of this process has installed one.
    INSTALLED.call_once(|| {
        let _ = PROVIDER.install_default();
    });
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if !is_accepted(*algorithm) || key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.kind().clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let is_valid = match (self.algorithm, &self.key) {
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                ring_signature::UnparsedPublicKey::new(&ring_signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
            }
            (Algorithm::ES384, DecodingKeyKind::SecretOrDer(point)) => {
                ring_signature::UnparsedPublicKey::new(&ring_signature::ECDSA_P384_SHA384_FIXED, point)
                    .verify(message, signature)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => {
                ring_signature::UnparsedPublicKey::new(&ring_signature::ED25519, point)
                    .verify(message, signature)
            }
            (algorithm, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let parameters = rsa_parameters(algorithm).ok_or_else(signature::Error::new)?;
                ring_signature::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            _ => Err(ring::error::Unspecified),
        };
        is_valid.map_err(|_| signature::Error::new())
    }
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static ring_signature::RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &ring_signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &ring_signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &ring_signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &ring_signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &ring_signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &ring_signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}
