//! A host of images on loopback, which counts connections and keeps the heads of requests, and a resolver
//! whose answers a test defines.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::remote_images::resolver::Resolver;

/// Behaviour of a host towards a request.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// Sends these bytes and closes the connection.
    Reply(Vec<u8>),
    /// Sends these bytes and then no more, with the connection open.
    Stall(Vec<u8>),
    /// Sends these bytes and then zeros without end.
    Endless(Vec<u8>),
}

impl Behaviour {
    /// A file with status 200.
    pub fn file(content: &[u8]) -> Self {
        Self::with(200, &[], content)
    }

    pub fn with(status: u16, fields: &[&str], content: &[u8]) -> Self {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let head = format!("HTTP/1.1 {status} Said\r\n{fields}content-length: {}\r\n\r\n", content.len());
        Self::Reply([head.as_bytes(), content].concat())
    }

    pub fn redirect(to: &str) -> Self {
        Self::with(302, &[&format!("location: {to}")], b"")
    }
}

/// A running host.
#[derive(Debug)]
pub struct Site {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    connections: watch::Receiver<Connections>,
}

/// Numbers of a host's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    pub begun: usize,
    pub ended: usize,
}

impl Site {
    /// Starts a host that answers each path as `behave` says.
    pub async fn start(behave: impl Fn(&str) -> Behaviour + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", None, behave).await
    }

    pub async fn start_at(
        place: &str,
        tls: Option<TlsAcceptor>,
        behave: impl Fn(&str) -> Behaviour + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(place).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (count, connections) = watch::channel(Connections::default());
        let (kept, behave, count) = (heads.clone(), Arc::new(behave), Arc::new(count));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.send_modify(|n| n.begun += 1);
                let (kept, behave, count, tls) = (kept.clone(), behave.clone(), count.clone(), tls.clone());
                tokio::spawn(async move {
                    let _ = match tls {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => answer(stream, &kept, &*behave).await,
                            Err(error) => Err(error),
                        },
                        None => answer(stream, &kept, &*behave).await,
                    };
                    count.send_modify(|n| n.ended += 1);
                });
            }
        });
        Self { address, heads, connections }
    }

    /// The heads of the requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }

    /// Number of connections so far.
    pub fn n_connections(&self) -> usize {
        self.connections.borrow().begun
    }

    /// Waits until `is_so` accepts the connections.
    pub async fn until(&self, is_so: impl FnMut(&Connections) -> bool) {
        let mut connections = self.connections.clone();
        let waiting = connections.wait_for(is_so);
        tokio::time::timeout(super::PATIENCE, waiting).await.expect("it becomes so").expect("the site runs");
    }
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    heads: &Mutex<Vec<String>>,
    behave: &(dyn Fn(&str) -> Behaviour + Send + Sync),
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let path = head.split(' ').nth(1).expect("a target").to_owned();
    heads.lock().expect("no panic").push(head);
    match behave(&path) {
        Behaviour::Reply(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await
        }
        Behaviour::Stall(bytes) => {
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            // The other side closes it.
            stream.read(&mut [0]).await.map(drop)
        }
        Behaviour::Endless(bytes) => {
            stream.write_all(&bytes).await?;
            loop {
                stream.write_all(&[0; 1 << 16]).await?;
            }
        }
    }
}

/// A resolver with prepared answers to each name, of which the last one is repeated.
#[derive(Debug, Default)]
pub struct Answers(Mutex<Vec<(String, VecDeque<Vec<IpAddr>>)>>, Mutex<Vec<String>>);

impl Answers {
    pub fn new(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let addresses = |list: &&[&str]| {
            list.iter().map(|text| text.parse().expect("an address")).collect::<Vec<IpAddr>>()
        };
        let of = |(name, answers): &(&str, &[&[&str]])| {
            ((*name).to_owned(), answers.iter().map(addresses).collect())
        };
        Arc::new(Self(Mutex::new(names.iter().map(of).collect()), Mutex::default()))
    }

    /// The requested names, in order.
    pub fn asked(&self) -> Vec<String> {
        self.1.lock().expect("no panic").clone()
    }
}

impl Resolver for Answers {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.1.lock().expect("no panic").push(host.to_owned());
        let mut names = self.0.lock().expect("no panic");
        let answers = names.iter_mut().find(|(name, _)| name == host).map(|(_, answers)| answers);
        let answer =
            answers.and_then(
                |answers| {
                    if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() }
                },
            );
        std::future::ready(answer.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))).boxed()
    }
}
