//! The connections to one foreign engine, and what a request to it can come to. Does not know what is asked.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use throng_core::routing::Region;

use crate::regions::Forwarding;
use crate::trust::trusting_nobody;

/// For the way to the engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// An idle connection is kept for so long …
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// … and at most so many of them.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Of an answer that says what is wrong.
pub(super) const MAX_ERROR_BYTES: usize = 64 << 10;

/// One foreign engine.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// As operators call it.
    pub name: String,
    /// Its region.
    pub region: Option<Region>,
    base: Arc<str>,
    authorization: Option<HeaderValue>,
    /// The longest that it may say nothing.
    pub timeout: Duration,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why an attempt came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no connection to it.
    Unreachable(String),
    /// The connection broke after the request was sent.
    Broken(String),
    /// It said nothing for too long.
    Silent,
    /// It refuses: too many requests, or not now.
    Busy(StatusCode),
    /// It failed, or it does not accept what this gateway shows it.
    Failed(StatusCode),
    /// It says that the request is wrong: status and body are the client's.
    Rejected(StatusCode, Bytes),
    /// Its answer is not what it should be.
    Nonsense(&'static str),
    /// It is a gateway, which does not take what another gateway forwarded to this one.
    Loop,
    /// It is a gateway, and has nothing in the regions that the request is bound to.
    OutOfRegion,
}

impl Fault {
    /// A word for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Broken(_) => "upstream_broken",
            Self::Silent => "upstream_timeout",
            Self::Busy(_) => "upstream_busy",
            Self::Failed(_) => "upstream_error",
            Self::Rejected(..) => "upstream_rejected",
            Self::Nonsense(_) => "upstream_nonsense",
            Self::Loop => "too_many_hops",
            Self::OutOfRegion => "region_not_permitted",
        }
    }

    /// Whether it says something about the engine; else only about this request there.
    pub fn is_of_the_engine(&self) -> bool {
        !matches!(self, Self::Loop | Self::OutOfRegion)
    }

    /// What an engine means by 403 or 508, which it also may say for reasons of its own.
    fn of_gateway(status: StatusCode, body: &[u8]) -> Self {
        let told: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        match told["error"]["code"].as_str() {
            Some("too_many_hops") => Self::Loop,
            Some("region_not_permitted") => Self::OutOfRegion,
            _ => Self::Failed(status),
        }
    }
}

impl Upstream {
    /// An engine that is reached at `base`. Its certificate must be for `server_name`, or for the host of `base` without.
    pub fn new(
        name: String,
        region: Option<Region>,
        base: Arc<str>,
        authorization: Option<HeaderValue>,
        timeout: Duration,
        (tls, server_name): (Option<rustls::ClientConfig>, Option<ServerName<'static>>),
    ) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let mut tls = tls.unwrap_or_else(trusting_nobody);
        // The builder demands to set them.
        tls.alpn_protocols.clear();
        let mut connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        if let Some(name) = server_name {
            connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let connector = connector.enable_http1().enable_http2().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .build(connector);
        Self { name, region, base, authorization, timeout, client }
    }

    /// Where it is, for operators.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends a body and waits for the head of a good answer. Dropping the future or the answer's body ends the request there.
    ///
    /// # Errors
    /// What came instead.
    pub(super) async fn post(
        &self,
        path: &str,
        forwarding: &Forwarding,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let request = Request::post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(forwarding.add_to(request), body, timeout).await
    }

    /// A document.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub(super) async fn get(&self, path: &str, max_bytes: usize, timeout: Duration) -> Result<Bytes, Fault> {
        let request = Request::get(format!("{}{path}", self.base));
        let read = async {
            let answer = self.send(request, Bytes::new(), timeout).await?;
            read_all(answer.into_body(), max_bytes).await
        };
        tokio::time::timeout(timeout, read).await.unwrap_or(Err(Fault::Silent))
    }

    async fn send(
        &self,
        mut request: http::request::Builder,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body)).map_err(|error| Fault::Broken(error.to_string()))?;
        let sending = tokio::time::timeout(timeout, self.client.request(request));
        let answer = sending.await.map_err(|_| Fault::Silent)?.map_err(|error| broken(&error))?;
        let status = answer.status();
        match status {
            StatusCode::OK => Ok(answer),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(Fault::Busy(status)),
            StatusCode::BAD_REQUEST
            | StatusCode::CONFLICT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => {
                Err(Fault::Rejected(status, read_error(answer, timeout).await?))
            }
            StatusCode::FORBIDDEN | StatusCode::LOOP_DETECTED => {
                Err(Fault::of_gateway(status, &read_error(answer, timeout).await?))
            }
            _ => Err(Fault::Failed(status)),
        }
    }
}

/// What an answer says is wrong.
async fn read_error(answer: Response<Incoming>, timeout: Duration) -> Result<Bytes, Fault> {
    let read = tokio::time::timeout(timeout, read_all(answer.into_body(), MAX_ERROR_BYTES));
    read.await.unwrap_or(Err(Fault::Silent))
}

/// All bytes of an answer.
pub(super) async fn read_all(body: Incoming, max_bytes: usize) -> Result<Bytes, Fault> {
    let fault = |error: Box<dyn std::error::Error + Send + Sync>| match error.is::<LengthLimitError>() {
        true => Fault::Nonsense("the answer is too large"),
        false => Fault::Broken("the answer broke off".to_owned()),
    };
    Ok(Limited::new(body, max_bytes).collect().await.map_err(fault)?.to_bytes())
}

/// With the chain of causes: hyper's own sentence does not say what happened.
fn broken(error: &hyper_util::client::legacy::Error) -> Fault {
    let mut sentence = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        sentence = format!("{sentence}: {cause}");
        source = cause.source();
    }
    if error.is_connect() { Fault::Unreachable(sentence) } else { Fault::Broken(sentence) }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rcgen::{CertificateParams, KeyPair};
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::trust::trusting;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn upstream(
        scheme: &str,
        address: SocketAddr,
        tls: Option<rustls::ClientConfig>,
        name: Option<&str>,
    ) -> Upstream {
        let name = name.map(|name| ServerName::try_from(name.to_owned()).expect("a name"));
        let base = format!("{scheme}://{address}").into();
        Upstream::new("engine".to_owned(), None, base, None, TIMEOUT, (tls, name))
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        (listener, address)
    }

    /// Reads a request and answers it so.
    async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &str) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_) => return,
            }
        }
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_told_from_one_that_is_not_there() {
        let (listener, address) = listener().await;
        let of_engine = upstream("http", address, None, None);
        let asking = of_engine.get("/models", 1024, TIMEOUT);
        let breaking = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            answer(stream, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").await;
        };
        let (told, ()) = tokio::join!(asking, breaking);
        assert!(matches!(told, Err(Fault::Broken(_))), "{told:?}");
        drop(listener);
        let told = of_engine.get("/models", 1024, TIMEOUT).await;
        assert!(matches!(told, Err(Fault::Unreachable(_))), "{told:?}");
    }

    #[tokio::test]
    async fn a_certificate_must_be_for_the_name_that_is_said() {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["engines.test".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("signed");
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, certificate.pem()).expect("written");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate");
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(stream) = acceptor.accept(stream).await {
                    answer(stream, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                }
            }
        });
        let tls = || Some(trusting(Some(&ca)).expect("certificates"));
        let told = async |name| upstream("https", address, tls(), name).get("/models", 1024, TIMEOUT).await;
        assert_eq!(told(Some("engines.test")).await, Ok(Bytes::from("{}")));
        for name in [None, Some("others.test")] {
            let told = told(name).await;
            assert!(matches!(told, Err(Fault::Unreachable(_))), "{told:?}");
        }
    }
}
