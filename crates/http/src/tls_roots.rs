//! Trusted certificate authorities for outgoing connections. Does not connect.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

/// Returns client settings that trust the certificates in the file `ca`, or the system's without a file.
///
/// # Errors
/// When the file cannot be read, or the system has no certificate authorities.
pub fn trusting(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match ca {
        Some(ca) => roots_of(ca)?,
        None => system_roots()?,
    };
    Ok(builder().with_root_certificates(roots).with_no_client_auth())
}

/// Returns client settings that trust no certificate, for unencrypted connections only.
pub fn trusting_nobody() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// When the file cannot be read, or is not PEM.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fault = |error: rustls::pki_types::pem::Error| format!("{}: {error}", file.display());
    let read = CertificateDer::pem_file_iter(file).map_err(fault)?;
    read.collect::<Result<_, _>>().map_err(fault)
}

/// Reads the certificates of a PEM file as trusted roots.
///
/// # Errors
/// When the file cannot be read, or contains no certificate.
pub fn roots_of(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match roots.is_empty() {
        true => Err(format!("{} has no certificate", file.display())),
        false => Ok(roots),
    }
}

/// Returns a builder of client settings with ring as the provider and the default TLS versions.
pub fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
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
