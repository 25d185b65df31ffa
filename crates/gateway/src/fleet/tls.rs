//! What connections of the fleet trust and show. Does not connect.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Trusts the certificates of `ca` (nobody without, for connections that are not encrypted), shows `own`, a certificate and its key, and
/// speaks `protocol`.
pub(super) fn client_tls(
    ca: Option<&Path>,
    own: Option<(&Path, &Path)>,
    protocol: &[u8],
) -> Result<rustls::ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| format!("{}: {error}", ca.display()))?;
        }
    }
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let of_file = PrivateKeyDer::from_pem_file(key);
            let private = of_file.map_err(|error| format!("{}: {error}", key.display()))?;
            let shown = builder.with_client_auth_cert(certificates(certificate)?, private);
            shown.map_err(|error| format!("{}: {error}", certificate.display()))?
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fault = |error: rustls::pki_types::pem::Error| format!("{}: {error}", file.display());
    let read = CertificateDer::pem_file_iter(file).map_err(fault)?;
    read.collect::<Result<_, _>>().map_err(fault)
}
