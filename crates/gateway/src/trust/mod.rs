//! Which servers this one trusts when it is their client. Does not connect.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

/// Trusts the certificates in the file `ca`, or those that the system does.
///
/// # Errors
/// When the file cannot be read, or the system trusts nobody.
pub(crate) fn trusting(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match ca {
        Some(ca) => roots_of(ca)?,
        None => system_roots()?,
    };
    Ok(builder().with_root_certificates(roots).with_no_client_auth())
}

/// For servers that are reached in clear text.
pub(crate) fn trusting_nobody() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// The certificates in a file.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fault = |error: rustls::pki_types::pem::Error| format!("{}: {error}", file.display());
    let read = CertificateDer::pem_file_iter(file).map_err(fault)?;
    read.collect::<Result<_, _>>().map_err(fault)
}

/// The certificates in a file, to be trusted.
///
/// # Errors
/// When it cannot be read, or has none.
pub(crate) fn roots_of(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match roots.is_empty() {
        true => Err(format!("{} has no certificate", file.display())),
        false => Ok(roots),
    }
}

/// What a client is made of.
pub(crate) fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err("this machine has no certificates of authorities: name them with ca".to_owned()),
        false => Ok(roots),
    }
}
