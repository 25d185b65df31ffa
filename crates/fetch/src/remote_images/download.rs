//! The download of one file: its host is resolved once, every address is checked, and the connection goes to
//! a checked address. Follows few redirects, each checked as the first URL was. Does not know deadlines.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use throng_api::{Addresses, ImageHosts, host_name};
use throng_http::awake::within;
use throng_http::memory::{MemoryBudget, Part, Reservation};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsConnector;
use url::{Host, Position, Url};

use super::MAX_IMAGE_BYTES;
use super::fault::DownloadFault;
use super::resolver::Resolver;

/// Maximum number of redirects of a download.
const MAX_REDIRECTS: usize = 3;
/// Maximum number of addresses of a host to which connections are tried.
const MAX_ADDRESSES: usize = 4;
/// Timeout for connecting to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum bytes of the head of an image's response.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes of memory for each byte of a file: it is copied once when it is whole.
const COPIES: usize = 2;

/// Downloads files from the hosts of a list.
#[derive(Debug)]
pub(super) struct Downloader {
    /// Hosts from which downloads are permitted.
    pub hosts: Arc<ImageHosts>,
    resolver: Arc<dyn Resolver>,
    tls: Arc<ClientConfig>,
}

/// A downloaded file.
#[derive(Debug)]
pub(super) struct File {
    pub bytes: Arc<[u8]>,
    pub memory: Reservation,
}

/// Answer of a host.
enum Answer {
    File(File),
    /// The file has moved to another URL.
    Moved(Url),
}

impl Downloader {
    pub fn new(hosts: Arc<ImageHosts>, resolver: Arc<dyn Resolver>, tls: ClientConfig) -> Self {
        Self { hosts, resolver, tls: Arc::new(tls) }
    }

    /// Downloads the file at a URL. A lookup of its host keeps `slot` until it has ended, even when the
    /// future is dropped.
    ///
    /// # Errors
    /// [`DownloadFault`], except those of time.
    pub async fn download(
        &self,
        mut url: Url,
        memory: &Arc<MemoryBudget>,
        slot: &Arc<OwnedSemaphorePermit>,
    ) -> Result<File, DownloadFault> {
        for _ in 0..=MAX_REDIRECTS {
            let addresses = self.hosts.permitted(&url).ok_or(DownloadFault::Redirect)?;
            let stream = self.connect(&url, addresses, slot).await?;
            let answer = match url.scheme() {
                "https" => {
                    let name = host_name(&url).and_then(|host| server_name(&host));
                    let name = name.ok_or(DownloadFault::Unreachable)?;
                    let stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await;
                    exchange(stream.map_err(|_| DownloadFault::Unreachable)?, &url, memory).await?
                }
                _ => exchange(stream, &url, memory).await?,
            };
            match answer {
                Answer::File(file) => return Ok(file),
                // An answer that was not encrypted could be anybody's.
                Answer::Moved(next) if url.scheme() == "https" && next.scheme() != "https" => break,
                Answer::Moved(next) => url = next,
            }
        }
        Err(DownloadFault::Redirect)
    }

    /// Connects to a checked address of the URL's host.
    async fn connect(
        &self,
        url: &Url,
        permitted: Addresses,
        slot: &Arc<OwnedSemaphorePermit>,
    ) -> Result<TcpStream, DownloadFault> {
        let port = url.port_or_known_default().ok_or(DownloadFault::Unreachable)?;
        let found = match url.host() {
            Some(Host::Ipv4(address)) => vec![IpAddr::V4(address)],
            Some(Host::Ipv6(address)) => vec![IpAddr::V6(address)],
            _ => self.resolve(url, slot).await?,
        };
        // One inner address among several means that the name is not what the operator took it for.
        if let Some(address) = found.iter().find(|address| !permitted.include(**address)) {
            let host = url.host_str();
            tracing::warn!(host, %address, "an image is not fetched from an address that its host may not have");
            return Err(DownloadFault::Unreachable);
        }
        for address in found.into_iter().take(MAX_ADDRESSES) {
            let connecting = TcpStream::connect(SocketAddr::new(address, port));
            if let Ok(Ok(stream)) = within(CONNECT_TIMEOUT, connecting).await {
                return Ok(stream);
            }
        }
        Err(DownloadFault::Unreachable)
    }

    async fn resolve(
        &self,
        url: &Url,
        slot: &Arc<OwnedSemaphorePermit>,
    ) -> Result<Vec<IpAddr>, DownloadFault> {
        let host = host_name(url).ok_or(DownloadFault::Unreachable)?;
        let (lookup, slot) = (self.resolver.resolve(&host), slot.clone());
        // The system's lookup occupies a thread until it ends.
        let lookup = tokio::spawn(async move {
            let found = lookup.await;
            drop(slot);
            found
        });
        lookup.await.ok().and_then(Result::ok).ok_or(DownloadFault::Unreachable)
    }
}

/// The name that the host's certificate must have.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    ServerName::try_from(inner.unwrap_or(host).to_owned()).ok()
}

/// Requests the file over a connection of its own, which ends with the answer.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    url: &Url,
    memory: &Arc<MemoryBudget>,
) -> Result<Answer, DownloadFault> {
    let unreachable = |_| DownloadFault::Unreachable;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
    let request = request(url)?;
    let talk = async move {
        let response = sender.send_request(request).await.map_err(unreachable)?;
        read(response, url, memory).await
    };
    match select(pin!(talk), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The bytes that have arrived are still to be read.
        Either::Right((_, talk)) => talk.await,
    }
}

/// A request without cookies, credentials and a referrer.
fn request(url: &Url) -> Result<Request<Empty<Bytes>>, DownloadFault> {
    const AGENT: HeaderValue = HeaderValue::from_static(concat!("throng/", env!("CARGO_PKG_VERSION")));
    let host = &url[Position::BeforeHost..Position::AfterPort];
    let target = &url[Position::BeforePath..Position::AfterQuery];
    let request = Request::get(target)
        .header(header::HOST, host)
        .header(header::USER_AGENT, AGENT)
        .header(header::ACCEPT, HeaderValue::from_static("image/*"))
        .header(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))
        .header(header::CONNECTION, HeaderValue::from_static("close"));
    request.body(Empty::new()).map_err(|_| DownloadFault::Unreachable)
}

async fn read(
    response: Response<Incoming>,
    url: &Url,
    memory: &Arc<MemoryBudget>,
) -> Result<Answer, DownloadFault> {
    match response.status() {
        StatusCode::OK => {}
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            return next.map(Answer::Moved).ok_or(DownloadFault::Redirect);
        }
        status => return Err(DownloadFault::Status(status)),
    }
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(DownloadFault::Encoded);
    }
    let mut body = response.into_body();
    if hyper::body::Body::size_hint(&body).lower() > MAX_IMAGE_BYTES as u64 {
        return Err(DownloadFault::TooLarge);
    }
    let (mut bytes, mut memory) = (Vec::new(), memory.reservation(Part::Bodies));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| DownloadFault::Unreachable)?;
        let Ok(data) = frame.into_data() else { continue };
        let n_bytes = bytes.len() + data.len();
        if n_bytes > MAX_IMAGE_BYTES {
            return Err(DownloadFault::TooLarge);
        }
        memory.cover(COPIES * n_bytes).map_err(DownloadFault::Memory)?;
        bytes.extend_from_slice(&data);
    }
    let bytes: Arc<[u8]> = bytes.into();
    memory.set(bytes.len()).map_err(DownloadFault::Memory)?;
    Ok(Answer::File(File { bytes, memory }))
}
