//! A connection to a worker: opens it, sends requests, reads documents and streams of lines, and detects
//! its loss. Does not know requests and models.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use throng_core::fleet::routing::Region;
use throng_http::awake::{AwakeTimer, within};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::WorkerAddress;
use super::request_body::RequestBody;

/// Timeout for connecting, handshakes included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the head of a small request's response, and of a document.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without any data after which a ping is sent.
const PING_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of the ping's answer.
const PING_TIMEOUT: Duration = Duration::from_millis(1000);
/// Bytes buffered for a stream's reader.
const STREAM_WINDOW_BYTES: u32 = 32 << 10;
/// Bytes buffered for all streams, so large that slow readers do not block other streams.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// Address and credentials of a worker.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Address of the worker.
    pub address: WorkerAddress,
    /// Name of the worker in the configuration, if any.
    pub name: Option<String>,
    /// Name that its certificate must have; `None`: the host of the address.
    pub server_name: Option<String>,
    /// Value of the header with the token.
    pub authorization: Option<HeaderValue>,
    /// TLS settings of the connections.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Configured region of the worker; `None`: the region that the worker reports.
    pub region: Option<Region>,
}

/// A connection to a worker. A lost connection stays lost, and later data on it is ignored: reconnecting
/// creates a new `Connection`.
#[derive(Debug, Clone)]
pub struct Connection {
    sender: http2::SendRequest<RequestBody>,
    authorization: Option<HeaderValue>,
    base: Arc<str>,
    /// Closed when the connection is lost.
    lost: watch::Receiver<()>,
}

/// Marks a connection as lost when dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    _lost: watch::Sender<()>,
    closed: tokio::task::JoinHandle<()>,
}

impl ConnectionGuard {
    /// Waits until the connection takes no further requests: the worker has said so (`GOAWAY`, RFC 9113
    /// section 6.8), and requests that run go on, or the connection has ended.
    pub async fn closed_to_requests(&mut self) {
        let _ = (&mut self.closed).await;
    }
}

impl Endpoint {
    /// Name by which clients can select the worker: the configured one, else host and port.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.authority())
    }

    /// Name in logs and metrics: the configured one, else the address.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.to_string())
    }

    /// Opens a connection to the worker.
    ///
    /// # Errors
    /// The reason, for operators.
    pub async fn connect(&self) -> Result<(Connection, ConnectionGuard), String> {
        self.connect_with(STREAM_WINDOW_BYTES).await
    }

    /// Connects, with this many bytes buffered for a stream's reader.
    ///
    /// # Errors
    /// The reason, for operators.
    pub async fn connect_with(&self, window_bytes: u32) -> Result<(Connection, ConnectionGuard), String> {
        let connecting = self.connect_now(window_bytes);
        let late = |_| "no connection in time".to_owned();
        within(CONNECT_TIMEOUT, connecting).await.map_err(late)?
    }

    async fn connect_now(&self, window_bytes: u32) -> Result<(Connection, ConnectionGuard), String> {
        let to = (self.address.host(), self.address.port());
        let stream = TcpStream::connect(to).await.map_err(|error| format!("cannot connect: {error}"))?;
        let _ = stream.set_nodelay(true);
        let tls = match (&self.tls, self.address.is_encrypted()) {
            (Some(tls), true) => tls,
            (None, true) => return Err("no certificates are named that its own could come from".to_owned()),
            (_, false) => return self.shake_hands(TokioIo::new(stream), window_bytes).await,
        };
        let name = self.server_name.as_deref().unwrap_or(self.address.host());
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| "its name cannot stand in a certificate".to_owned())?;
        let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
        let stream = stream.map_err(|error| format!("the TLS handshake failed: {error}"))?;
        self.shake_hands(TokioIo::new(stream), window_bytes).await
    }

    async fn shake_hands<Io>(
        &self,
        io: Io,
        window_bytes: u32,
    ) -> Result<(Connection, ConnectionGuard), String>
    where
        Io: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(AwakeTimer)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(window_bytes)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let shaken = builder.handshake(io).await;
        let (sender, connection) = shaken.map_err(|error| format!("the HTTP/2 handshake failed: {error}"))?;
        let (tell, lost) = watch::channel(());
        // The future of the client's side ends with `GOAWAY` already.
        let closed = tokio::spawn(connection.map(|_| ()));
        let scheme = if self.address.is_encrypted() { "https" } else { "http" };
        let base = format!("{scheme}://{}", self.address.authority()).into();
        let connection = Connection { sender, authorization: self.authorization.clone(), base, lost };
        Ok((connection, ConnectionGuard { _lost: tell, closed }))
    }
}

impl Connection {
    /// Completes when the connection is lost.
    pub fn lost(&self) -> BoxFuture<'static, ()> {
        let mut lost = self.lost.clone();
        async move { while lost.changed().await.is_ok() {} }.boxed()
    }

    /// Whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        self.lost.has_changed().is_err()
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// The reason why there is no answer, for operators.
    pub async fn send(
        &self,
        request: http::request::Builder,
        path: &str,
        body: RequestBody,
    ) -> Result<Response<Incoming>, String> {
        let mut request = request.uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request: Request<_> = request.body(body).map_err(|error| error.to_string())?;
        let mut sender = self.sender.clone();
        let sending = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        tokio::select! {
            biased;
            () = self.lost() => Err("the connection is lost".to_owned()),
            sent = sending => sent.map_err(|error| format!("the request was broken off: {error}")),
        }
    }

    /// Sends a GET request and returns the body of a response with status 200.
    ///
    /// # Errors
    /// Errors of [`Self::send`], and other statuses with the worker's message.
    pub async fn get(&self, path: &str) -> Result<Incoming, String> {
        let asked = self.send(Request::get("/"), path, RequestBody::empty());
        let answer = within(ANSWER_TIMEOUT, asked).await.map_err(|_| "no answer in time")??;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            StatusCode::UNAUTHORIZED => Err("the token is wrong or missing".to_owned()),
            status => Err(format!("it answered {path} with {status}")),
        }
    }

    /// Reads a document of at most `max_bytes`. There is no time limit as long as data arrives.
    ///
    /// # Errors
    /// Errors of [`Self::get`].
    pub async fn bytes(&self, path: &str, max_bytes: usize) -> Result<Bytes, String> {
        let body = self.get(path).await?;
        tokio::select! {
            biased;
            () = self.lost() => Err("the connection is lost".to_owned()),
            read = Limited::new(body, max_bytes).collect() => match read {
                Ok(read) => Ok(read.to_bytes()),
                Err(error) => Err(format!("{path} cannot be read: {error}")),
            },
        }
    }

    /// Reads a JSON document of at most `max_bytes`.
    ///
    /// # Errors
    /// Errors of [`Self::bytes`], and when it has another form.
    pub async fn document<T: DeserializeOwned>(&self, path: &str, max_bytes: usize) -> Result<T, String> {
        let bytes = self.bytes(path, max_bytes);
        let bytes = within(ANSWER_TIMEOUT, bytes).await.map_err(|_| "no answer in time")??;
        serde_json::from_slice(&bytes).map_err(|error| format!("{path} cannot be read: {error}"))
    }
}
