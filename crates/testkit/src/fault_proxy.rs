//! A TCP proxy that can fail like networks: it delays, stops forwarding in one or both directions, loses
//! connections, and leaves them half-open. Bytes that it holds back are delivered late when it is healed, as
//! TCP does after a partition. Does not know the forwarded data.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of chunks of one direction that are held back; then the sender's socket fills up.
const MAX_CHUNKS: usize = 64;
const CHUNK_BYTES: usize = 16 << 10;

/// Direction in which bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server behind the proxy.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Treatment of the bytes of one direction, on existing and new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The bytes arrive after this time.
    Passes(Duration),
    /// The bytes and the end of a connection do not arrive, although they are taken from their sender.
    Held,
}

/// A proxy in front of one server. Dropping it closes all connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    known: Mutex<Known>,
    changed: Condvar,
}

#[derive(Debug)]
struct Known {
    to_server: Flow,
    to_client: Flow,
    is_closed: bool,
    n_accepted: usize,
    links: Vec<Arc<Link>>,
}

/// A client's connection and that to the server.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    is_cut: AtomicBool,
    /// Whether the server's side has ended without a notice to the client.
    is_half_open: AtomicBool,
}

impl FaultProxy {
    /// Starts a proxy in front of `server`, which need not listen yet. All bytes pass at first.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let passes = Flow::Passes(Duration::ZERO);
        let known = Known {
            to_server: passes,
            to_client: passes,
            is_closed: false,
            n_accepted: 0,
            links: Vec::new(),
        };
        let shared = Arc::new(Shared { server, known: Mutex::new(known), changed: Condvar::new() });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&accepting, &listener));
        Self { address, shared }
    }

    /// Address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the treatment of this direction's bytes from now on.
    pub fn set(&self, direction: Direction, flow: Flow) {
        let mut known = self.shared.known();
        match direction {
            Direction::ToServer => known.to_server = flow,
            Direction::ToClient => known.to_client = flow,
        }
        drop(known);
        self.shared.changed.notify_all();
    }

    /// Accepts connections, but delivers no bytes.
    pub fn hold_all(&self) {
        self.set(Direction::ToServer, Flow::Held);
        self.set(Direction::ToClient, Flow::Held);
    }

    /// Lets all bytes pass again, and delivers the held-back ones.
    pub fn heal(&self) {
        self.set(Direction::ToServer, Flow::Passes(Duration::ZERO));
        self.set(Direction::ToClient, Flow::Passes(Duration::ZERO));
    }

    /// Closes all connections, at both ends.
    pub fn break_connections(&self) {
        let links = std::mem::take(&mut self.shared.known().links);
        links.iter().for_each(|link| link.cut());
        self.shared.changed.notify_all();
    }

    /// Drops the server's ends of all connections without telling the clients, as when a machine loses its
    /// power. New connections work as before.
    pub fn leave_half_open(&self) {
        for link in &self.shared.known().links {
            link.is_half_open.store(true, Ordering::Release);
            let _ = link.server.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Number of accepted connections so far.
    pub fn n_accepted(&self) -> usize {
        self.shared.known().n_accepted
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.known().is_closed = true;
        self.break_connections();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until bytes received at `came` may be delivered; `false` if they never may.
    fn wait(&self, link: &Link, direction: Direction, came: Instant) -> bool {
        let mut known = self.known();
        loop {
            if known.is_closed || link.is_cut.load(Ordering::Acquire) {
                return false;
            }
            let flow = match direction {
                _ if link.is_half_open.load(Ordering::Acquire) => Flow::Held,
                Direction::ToServer => known.to_server,
                Direction::ToClient => known.to_client,
            };
            known = match flow {
                Flow::Held => self.changed.wait(known).unwrap_or_else(PoisonError::into_inner),
                Flow::Passes(delay) => {
                    let left = (came + delay).saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return true;
                    }
                    self.changed.wait_timeout(known, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Link {
    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        let mut known = shared.known();
        if known.is_closed {
            return;
        }
        known.n_accepted += 1;
        drop(known);
        // A server that does not listen: the client's connection is closed.
        let Some((client, server)) = client.ok().zip(TcpStream::connect(shared.server).ok()) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (is_cut, is_half_open) = Default::default();
        let link = Arc::new(Link { client, server, is_cut, is_half_open });
        shared.known().links.push(link.clone());
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (shared, link) = (shared.clone(), link.clone());
            std::thread::spawn(move || carry(&shared, &link, direction));
        }
    }
}

/// Carries the bytes of one direction until its end.
fn carry(shared: &Arc<Shared>, link: &Arc<Link>, direction: Direction) {
    let (tell, told) = sync_channel(MAX_CHUNKS);
    let reading = link.clone();
    std::thread::spawn(move || {
        let source = match direction {
            Direction::ToServer => &reading.client,
            Direction::ToClient => &reading.server,
        };
        read_all(source, &tell);
    });
    let sink = match direction {
        Direction::ToServer => &link.server,
        Direction::ToClient => &link.client,
    };
    if write_all(shared, link, direction, sink, &told).is_err() {
        link.cut();
    }
    let is_this = |other: &Arc<Link>| Arc::ptr_eq(other, link);
    if link.is_cut.load(Ordering::Acquire) {
        shared.known().links.retain(|other| !is_this(other));
    }
}

fn read_all(mut source: &TcpStream, tell: &SyncSender<(Instant, Vec<u8>)>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(n @ 1..) = source.read(&mut chunk) {
        if tell.send((Instant::now(), chunk[..n].to_vec())).is_err() {
            return;
        }
    }
}

/// Writes received bytes as soon as they may be delivered, and then the end.
fn write_all(
    shared: &Shared,
    link: &Link,
    direction: Direction,
    mut sink: &TcpStream,
    told: &Receiver<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    for (came, bytes) in told {
        if !shared.wait(link, direction, came) {
            return Ok(());
        }
        sink.write_all(&bytes)?;
    }
    if shared.wait(link, direction, Instant::now()) {
        sink.shutdown(Shutdown::Write)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that echoes its input.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        address
    }

    fn says(stream: &mut TcpStream, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        stream.read_exact(&mut bytes).expect("it comes");
        assert_eq!(bytes, expected.as_bytes());
    }

    fn is_silent(stream: &mut TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        let read = stream.read(&mut [0]);
        stream.set_read_timeout(None).expect("no limit");
        read.is_err_and(|error| matches!(error.kind(), std::io::ErrorKind::WouldBlock))
    }

    #[test]
    fn what_is_held_back_comes_late_and_whole() {
        let proxy = FaultProxy::start(echo());
        let mut stream = TcpStream::connect(proxy.address()).expect("it accepts");
        stream.write_all(b"one").expect("sent");
        says(&mut stream, "one");
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.set(direction, Flow::Held);
            stream.write_all(b"two").expect("sent");
            assert!(is_silent(&mut stream), "{direction:?}");
            let mut other = TcpStream::connect(proxy.address()).expect("it accepts");
            other.write_all(b"three").expect("sent");
            assert!(is_silent(&mut other), "{direction:?}");
            proxy.heal();
            says(&mut stream, "two");
            says(&mut other, "three");
        }
        let began = Instant::now();
        proxy.set(Direction::ToClient, Flow::Passes(Duration::from_millis(30)));
        stream.write_all(b"four").expect("sent");
        says(&mut stream, "four");
        assert!(began.elapsed() >= Duration::from_millis(30));
        assert_eq!(proxy.n_accepted(), 3);
    }

    #[test]
    fn connections_are_lost_with_and_without_a_word() {
        let proxy = FaultProxy::start(echo());
        let mut stream = TcpStream::connect(proxy.address()).expect("it accepts");
        stream.write_all(b"one").expect("sent");
        says(&mut stream, "one");
        proxy.leave_half_open();
        stream.write_all(b"two").expect("taken");
        assert!(is_silent(&mut stream));
        let mut other = TcpStream::connect(proxy.address()).expect("it accepts");
        other.write_all(b"three").expect("sent");
        says(&mut other, "three");
        proxy.break_connections();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
        assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
    }
}
