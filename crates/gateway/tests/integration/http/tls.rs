//! Encrypted connections: both protocols, certificates that change, certificates of clients, and the same
//! deadlines as in clear.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Server, Setup, chat, completion, post_bytes};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use serde_json::json;
use throng_gateway::{ClientCertificates, TlsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority whose certificates the clients trust, and the files of a server.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn issue(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes a new certificate and its key; returns the certificate.
    fn renew(&self) -> Vec<u8> {
        let (certificate, key) = self.issue();
        std::fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        std::fs::write(self.path("cert.pem"), certificate.pem()).unwrap();
        certificate.der().to_vec()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    fn config(&self) -> TlsConfig {
        TlsConfig { certificate: self.path("cert.pem"), key: self.path("key.pem"), ..TlsConfig::default() }
    }

    fn setup(&self) -> Setup {
        let mut setup = Setup::default();
        setup.config.tls = Some(self.config());
        setup
    }

    fn connector(&self, protocol: &str, with_certificate: bool) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if with_certificate {
            let (certificate, key) = self.issue();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, server: &Server, protocol: &str) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        self.connector(protocol, false).connect(name, stream).await.unwrap()
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>, request: impl AsRef<[u8]>) -> String {
    stream.write_all(request.as_ref()).await.unwrap();
    let mut answer = vec![0; 64 << 10];
    let read = async {
        let mut n = 0;
        loop {
            n += stream.read(&mut answer[n..]).await.unwrap();
            let so_far = String::from_utf8_lossy(&answer[..n]).into_owned();
            if so_far.ends_with('}') || (so_far.contains("content-length: 0") && so_far.ends_with("\r\n\r\n"))
            {
                return so_far;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer")
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn both_protocols_are_served() {
    let authority = Authority::new();
    authority.renew();
    let server = Server::start(authority.setup()).await;
    let mut stream = authority.connect(&server, "http/1.1").await;
    let body = chat(json!({"max_tokens": 4})).to_string();
    for _ in 0..2 {
        let answer = ask(&mut stream, post_bytes("/v1/chat/completions", &body, &[])).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("finish_reason"), "{answer}");
    }
    let stream = authority.connect(&server, "h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("https://localhost/v1/chat/completions")
        .header("content-type", "application/json")
        .body(Full::<Bytes>::from(body))
        .unwrap();
    let answer = send.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("finish_reason"));
    let clear = Client::connect(server.address).await.get("/health").await;
    assert!(clear.status == 400 && clear.text().contains("https://"), "{clear:?}");
}

#[tokio::test]
async fn a_certificate_is_read_again_when_it_changes() {
    let authority = Authority::new();
    let first = authority.renew();
    let server = Server::start(authority.setup()).await;
    let shown = async || {
        let stream = authority.connect(&server, "http/1.1").await;
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let mut open = authority.connect(&server, "http/1.1").await;
    assert_eq!(shown().await, first);
    std::fs::write(authority.path("cert.pem"), "not a certificate").unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(shown().await, first, "a broken file does not replace a good one");
    let second = authority.renew();
    let changed = async {
        while shown().await != second {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.expect("the new certificate is shown");
    assert!(ask(&mut open, HEALTH).await.starts_with("HTTP/1.1 200 "), "open connections stay");
}

#[tokio::test]
async fn clients_can_be_asked_for_certificates() {
    let authority = Authority::new();
    authority.renew();
    let stranger = Authority::new();
    for (wanted, without) in [(ClientCertificates::Required, false), (ClientCertificates::Optional, true)] {
        let mut setup = authority.setup();
        let files = TlsConfig {
            client_ca: Some(authority.path("ca.pem")),
            client_certificates: wanted,
            ..authority.config()
        };
        setup.config.tls = Some(files);
        let server = Server::start(setup).await;
        let is_answered = async |with_certificate: bool| {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let connector = authority.connector("http/1.1", with_certificate);
            let Ok(mut stream) = connector.connect(name, stream).await else { return false };
            let _ = stream.write_all(HEALTH.as_bytes()).await;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.is_ok() && &answer == b"HTTP/1.1 200"
        };
        assert!(is_answered(true).await);
        assert_eq!(is_answered(false).await, without, "{wanted:?}");
    }
    let files = TlsConfig { certificate: stranger.path("ca.pem"), ..authority.config() };
    let mut setup = authority.setup();
    setup.config.tls = Some(files);
    let error = throng_gateway::Gateway::loading(setup.config, Default::default()).expect_err("another key");
    assert!(error.to_string().contains("key.pem"), "{error}");
}

#[tokio::test]
async fn slow_clients_have_the_same_deadlines() {
    let authority = Authority::new();
    authority.renew();
    let mut setup = authority.setup();
    setup.config.server.header_timeout_s = 1;
    setup.config.server.slow_reader_timeout_s = 1;
    let server = Server::start(setup).await;
    // Neither a handshake that does not begin, nor one that stands still.
    for beginning in [&b""[..], &[22, 3, 1, 2, 0, 1]] {
        let mut silent = Client::connect(server.address).await;
        silent.send(beginning).await;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, silent.stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{beginning:?}");
    }
    // A head that stands still.
    let mut stream = authority.connect(&server, "http/1.1").await;
    stream.write_all(b"GET /health HTTP/1.1\r\nho").await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it closes");
    assert!(closed.is_err() || !rest.starts_with(b"HTTP/1.1 200"));
    // A reader that takes nothing of a long stream.
    let long = completion(json!({"stream": true, "ignore_eos": true, "max_tokens": 3500, "n": 16}));
    let mut deaf = authority.connect(&server, "http/1.1").await;
    deaf.write_all(&post_bytes("/v1/completions", &long.to_string(), &[])).await.unwrap();
    server.has_made(10).await;
    server.idle().await;
    // A client that leaves.
    let mut leaving = authority.connect(&server, "http/1.1").await;
    leaving.write_all(&post_bytes("/v1/completions", &long.to_string(), &[])).await.unwrap();
    let mut first = [0; 12];
    leaving.read_exact(&mut first).await.unwrap();
    drop(leaving);
    server.idle().await;
}
