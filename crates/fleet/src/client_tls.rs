//! TLS settings of the fleet's outgoing connections. Does not connect.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use throng_http::tls_roots::{builder, certificates, roots_of};

/// Builds settings that trust the certificates of `ca` (none, for unencrypted connections), present `own`,
/// a certificate with its key, and negotiate `protocol`.
pub(crate) fn client_tls(
    ca: Option<&Path>,
    own: Option<(&Path, &Path)>,
    protocol: &[u8],
) -> Result<rustls::ClientConfig, String> {
    let roots = ca.map(roots_of).transpose()?.unwrap_or_else(RootCertStore::empty);
    let builder = builder().with_root_certificates(roots);
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
