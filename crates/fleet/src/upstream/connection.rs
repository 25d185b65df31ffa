//! The connections to one upstream engine, and the faults of requests to it. Does not know the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::ServerName;
use throng_core::fleet::routing::Region;
use throng_http::awake::{AwakeTimer, within};
use throng_http::tls_roots::trusting_nobody;

use super::fault::Fault;
use super::forwarding::Forwarding;
use super::reason::is_of_request;
use super::trouble::Trouble;

/// Timeout for connecting to the engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time until an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of idle connections.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Maximum bytes of an error's body.
pub(super) const MAX_ERROR_BYTES: usize = 64 << 10;

/// One upstream engine.
#[derive(Debug)]
pub struct Upstream {
    /// Name for operators.
    pub name: String,
    /// Region of the engine.
    pub region: Option<Region>,
    /// Configured address.
    url: Arc<str>,
    /// Base addresses to try, the likeliest first.
    bases: Vec<Arc<str>>,
    base_idx: AtomicUsize,
    /// Whether the engine has answered at the current base address.
    is_base_known: AtomicBool,
    authorization: Option<HeaderValue>,
    /// Maximum silence of the engine.
    pub timeout: Duration,
    /// Current fault, for operators.
    pub trouble: Trouble,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Upstream {
    /// Creates an engine at `url`. Its certificate must be valid for `server_name`, or for the host of
    /// `url` if that is `None`.
    pub fn new(
        name: String,
        region: Option<Region>,
        url: &str,
        authorization: Option<HeaderValue>,
        timeout: Duration,
        tls: Option<rustls::ClientConfig>,
        server_name: Option<ServerName<'static>>,
    ) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let mut tls = tls.unwrap_or_else(trusting_nobody);
        // The builder sets the protocols itself and requires an empty list.
        tls.alpn_protocols.clear();
        let mut connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        if let Some(name) = server_name {
            connector = connector.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let connector = connector.enable_http1().enable_http2().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .timer(AwakeTimer)
            .pool_timer(AwakeTimer)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .build(connector);
        let (bases, base_idx, is_base_known) = (bases_of(url), AtomicUsize::new(0), AtomicBool::new(false));
        let (url, trouble) = (Arc::from(url), Trouble::default());
        Self { name, region, url, bases, base_idx, is_base_known, authorization, timeout, trouble, client }
    }

    /// Configured address, for operators.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Records and logs a fault of the engine.
    pub(super) fn complain(&self, fault: &Fault) {
        let reason = fault.told();
        if self.trouble.is_due(fault.name()) {
            tracing::warn!(engine = self.url(), reason, "an engine does not answer as it should");
        }
        self.trouble.begin(reason);
    }

    /// The current base address: the part before `/chat/completions`.
    pub(super) fn base(&self) -> &str {
        let idx = self.base_idx.load(Ordering::Acquire);
        self.bases.get(idx).map_or(&self.url, |base| base)
    }

    /// Number of base addresses that are still possible.
    pub(super) fn n_bases(&self) -> usize {
        if self.is_base_known.load(Ordering::Acquire) { 1 } else { self.bases.len() }
    }

    /// Keeps the current base address, since the engine answers at it.
    pub(super) fn keep_base(&self) {
        self.is_base_known.store(true, Ordering::Release);
    }

    /// Switches to the next base address, since the current one does not answer.
    pub(super) fn try_next_base(&self) {
        if self.n_bases() > 1 {
            let next = (self.base_idx.load(Ordering::Acquire) + 1) % self.bases.len();
            self.base_idx.store(next, Ordering::Release);
        }
    }

    /// Sends a body to `url` and waits for the head of a successful response. Dropping the future or the
    /// response's body ends the request at the engine.
    ///
    /// # Errors
    /// The fault of the response or of the connection.
    pub(super) async fn post(
        &self,
        url: String,
        forwarding: &Forwarding,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Response<Incoming>, Fault> {
        let request =
            Request::post(url).header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(forwarding.add_to(request), body, timeout).await
    }

    /// Fetches a document from the engine.
    ///
    /// # Errors
    /// Errors of [`Self::post`].
    pub(super) async fn get(&self, path: &str, max_bytes: usize, timeout: Duration) -> Result<Bytes, Fault> {
        let request = Request::get(format!("{}{path}", self.base()));
        let read = async {
            let answer = self.send(request, Bytes::new(), timeout).await?;
            read_all(answer.into_body(), max_bytes).await
        };
        within(timeout, read).await.unwrap_or(Err(Fault::Silent))
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
        let sending = within(timeout, self.client.request(request));
        let answer = sending.await.map_err(|_| Fault::Silent)?.map_err(|error| broken(&error))?;
        let status = answer.status();
        match status {
            StatusCode::OK => Ok(answer),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(Fault::Busy(status)),
            _ => {
                let body = read_error(answer, timeout).await;
                // For other faults the status is enough, so an unreadable body does not matter.
                let body = if is_of_request(status) { body? } else { body.unwrap_or_default() };
                Err(Fault::of_status(status, body))
            }
        }
    }
}

/// Base addresses that a configured address may mean: that of a server, of its API or of one of its
/// endpoints.
fn bases_of(url: &str) -> Vec<Arc<str>> {
    const ENDPOINTS: [&str; 5] =
        ["/chat/completions", "/completions", "/models", "/embeddings", "/responses"];
    let url = url.trim_end_matches('/');
    let url = ENDPOINTS.iter().find_map(|endpoint| url.strip_suffix(endpoint)).unwrap_or(url);
    let path =
        url.split_once("://").map_or(url, |(_, rest)| rest).split_once('/').map_or("", |(_, path)| path);
    let is_versioned = path.rsplit('/').next().is_some_and(|last| {
        last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    });
    let (own, with_version) = (Arc::from(url), Arc::from(format!("{url}/v1")));
    match path {
        _ if is_versioned => vec![own],
        "" => vec![with_version, own],
        _ => vec![own, with_version],
    }
}

/// Reads the body of an error.
async fn read_error(answer: Response<Incoming>, timeout: Duration) -> Result<Bytes, Fault> {
    let read = within(timeout, read_all(answer.into_body(), MAX_ERROR_BYTES));
    read.await.unwrap_or(Err(Fault::Silent))
}

/// Reads all bytes of a response.
pub(super) async fn read_all(body: Incoming, max_bytes: usize) -> Result<Bytes, Fault> {
    let fault = |error: Box<dyn std::error::Error + Send + Sync>| match error.is::<LengthLimitError>() {
        true => Fault::Nonsense("the answer is too large"),
        false => Fault::Broken("the answer broke off".to_owned()),
    };
    Ok(Limited::new(body, max_bytes).collect().await.map_err(fault)?.to_bytes())
}

/// The fault with its chain of causes: hyper's own message does not contain them.
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
    use throng_http::tls_roots::trusting;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn upstream(
        scheme: &str,
        address: SocketAddr,
        tls: Option<rustls::ClientConfig>,
        name: Option<&str>,
    ) -> Upstream {
        let name = name.map(|name| ServerName::try_from(name.to_owned()).expect("a name"));
        let url = format!("{scheme}://{address}/v1");
        Upstream::new("engine".to_owned(), None, &url, None, TIMEOUT, tls, name)
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        (listener, address)
    }

    /// Reads a request and sends `answer`.
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

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (url, bases) in [
            ("http://host:8000", &["http://host:8000/v1", "http://host:8000"][..]),
            ("http://host:8000/", &["http://host:8000/v1", "http://host:8000"]),
            ("http://host/v1", &["http://host/v1"]),
            ("http://host/v1/", &["http://host/v1"]),
            ("http://host/v1/chat/completions", &["http://host/v1"]),
            ("https://host/openai", &["https://host/openai", "https://host/openai/v1"]),
            ("https://host/api/v3", &["https://host/api/v3"]),
            ("https://host/v1beta/openai", &["https://host/v1beta/openai", "https://host/v1beta/openai/v1"]),
            ("https://host/models", &["https://host/v1", "https://host"]),
        ] {
            assert_eq!(bases_of(url).iter().map(|base| &**base).collect::<Vec<_>>(), bases, "{url}");
        }
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
