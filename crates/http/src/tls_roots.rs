//! Certificates of servers that a client trusts. Does not connect.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

/// Returns the settings of a client that trusts the certificates in the file `ca`, or the system's where
/// there is no file.
///
/// # Errors
/// The file cannot be read, or the system has no certificates of authorities.
pub fn trusting(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match ca {
        Some(ca) => roots_of(ca)?,
        None => system_roots()?,
    };
    Ok(builder().with_root_certificates(roots).with_no_client_auth())
}

/// Returns the settings of a client that reaches its servers in clear text only: it trusts no certificate.
pub fn trusting_nobody() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// The file cannot be read, or is not PEM.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fault = |error: rustls::pki_types::pem::Error| format!("{}: {error}", file.display());
    let read = CertificateDer::pem_file_iter(file).map_err(fault)?;
    read.collect::<Result<_, _>>().map_err(fault)
}

/// Reads the certificates of a PEM file as roots of trust.
///
/// # Errors
/// The file cannot be read, or has no certificate.
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

/// Builds settings of a client with ring as the provider and the default versions of TLS.
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
