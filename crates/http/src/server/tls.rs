//! TLS: the certificate and its key, read again when their files change, and the handshake. Does not know
//! HTTP.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::overflow::refuse;
use super::socket::ClientSocket;
use crate::connection::Socket;

/// Additional bytes of an encrypted connection: keys, and the buffers of records.
pub(super) const TLS_BYTES: usize = 48 << 10;
/// Maximum encrypted bytes that wait for the socket.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// Interval of checks whether the files have changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// First byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

/// Files for TLS, all in PEM.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate of the server, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// Unencrypted private key of the certificate.
    pub key: PathBuf,
    /// Certificate authorities for clients' certificates; without it no client must present one.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    /// Whether clients must have a certificate.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
}

/// Whether clients must have a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Clients must present a certificate.
    #[default]
    Required,
    /// A certificate that a client presents must be valid.
    Optional,
}

/// Error of a certificate or key file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or contains no certificate or key.
    #[error("{}: {reason}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Reason why it cannot be used.
        reason: String,
    },
    /// The certificate and the key do not match, or have an unsupported format.
    #[error("the certificate {} with the key {}: {reason}", certificate.display(), key.display())]
    Unfit {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// Reason why it cannot be used.
        reason: String,
    },
}

/// Settings for accepting encrypted connections.
#[derive(Debug)]
pub struct Tls {
    files: TlsConfig,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<rustls::ServerConfig>,
    /// Stamp of the files that were read last, whether valid or not.
    stamp: Stamp,
}

/// Modification times and lengths of the files.
type Stamp = Vec<Option<(SystemTime, u64)>>;

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: &TlsConfig) -> Result<Self, TlsError> {
        let stamp = stamp(files);
        let config = read(files)?;
        Ok(Self { files: files.clone(), current: RwLock::new(Current { config, stamp }) })
    }

    /// Reads the files again whenever they change. If the new ones are invalid, the previous ones stay in
    /// use.
    pub async fn follow_changes(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let this = self.clone();
            let _ = tokio::task::spawn_blocking(move || this.read_if_changed()).await;
        }
    }

    fn read_if_changed(&self) {
        let stamp = stamp(&self.files);
        if self.current.read().unwrap_or_else(PoisonError::into_inner).stamp == stamp {
            return;
        }
        let read = read(&self.files);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.stamp = stamp;
        match read {
            Ok(config) => {
                current.config = config;
                tracing::info!("the certificate has been read again");
            }
            Err(error) => {
                tracing::warn!(%error, "the changed certificate cannot be used; the one before stays")
            }
        }
    }

    /// Acceptor with the current certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        let config = self.current.read().unwrap_or_else(PoisonError::into_inner).config.clone();
        TlsAcceptor::from(config)
    }

    /// Performs the handshake; `None` if it fails. A client without TLS is sent `not_https`.
    pub(super) async fn accept(
        &self,
        socket: ClientSocket,
        not_https: &[u8],
    ) -> Option<TlsStream<ClientSocket>> {
        if !begins_handshake(&socket.socket).await {
            refuse(&socket.socket, not_https).await;
            return None;
        }
        let bound = |connection: &mut rustls::ServerConnection| {
            connection.set_buffer_limit(Some(SEND_BUFFER_BYTES));
        };
        match self.acceptor().accept_with(socket, bound).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                tracing::debug!(%error, "a handshake failed");
                None
            }
        }
    }
}

/// Whether the first byte is that of a handshake, without consuming it; always true for Unix domain
/// sockets.
async fn begins_handshake(socket: &Socket) -> bool {
    let mut first = [HANDSHAKE];
    match socket {
        Socket::Tcp(stream) => stream.peek(&mut first).await.is_ok() && first[0] == HANDSHAKE,
        #[cfg(unix)]
        Socket::Unix(_) => true,
    }
}

fn stamp(files: &TlsConfig) -> Stamp {
    let all = [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()];
    let of_file =
        |file: &PathBuf| fs::metadata(file).ok().and_then(|of| Some((of.modified().ok()?, of.len())));
    all.into_iter().flatten().map(of_file).collect()
}

fn read(files: &TlsConfig) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let unfit = |reason: String| TlsError::Unfit {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        reason,
    };
    let certificates = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| {
        fault(&files.key, &error, "no private key in PEM (an encrypted one is not supported)")
    })?;
    let provider = Arc::new(ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let of_file = |error: String| TlsError::File { file: file.clone(), reason: error };
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(file)? {
                roots.add(certificate).map_err(|error| of_file(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match files.client_certificates {
                ClientCertificates::Required => verifier,
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| of_file(error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(certificates, key).map_err(|error| unfit(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let none = "no certificate in PEM";
    let read = CertificateDer::pem_file_iter(file).map_err(|error| fault(file, &error, none))?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| fault(file, &error, none))?;
    if all.is_empty() {
        return Err(TlsError::File { file: file.to_owned(), reason: none.to_owned() });
    }
    Ok(all)
}

fn fault(file: &Path, error: &rustls::pki_types::pem::Error, otherwise: &str) -> TlsError {
    let reason = match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => otherwise.to_owned(),
        other => other.to_string(),
    };
    TlsError::File { file: file.to_owned(), reason }
}
