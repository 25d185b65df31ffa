//! As much of a Kubernetes API server as a list and a watch of EndpointSlices need: resource versions,
//! watches that end, versions that are forgotten (410), a token that is exchanged. Does not know workers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A watch ends after this time, far earlier than a real one.
const WATCH: Duration = Duration::from_millis(700);

pub struct KubernetesServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    folder: tempfile::TempDir,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default, Clone)]
struct State {
    version: u64,
    /// Versions before it are forgotten.
    oldest: u64,
    ips: Vec<Ipv4Addr>,
    port: u16,
    token: String,
}

impl KubernetesServer {
    /// Answers until the process ends.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::<Shared>::default();
        let folder = tempfile::tempdir().expect("a folder");
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = of_thread.clone();
                std::thread::spawn(move || drop(serve(&stream.expect("a connection"), &shared)));
            }
        });
        Self { address, shared, folder }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("token")
    }

    /// The service has these endpoints from now on, and another token must be shown. Every second change,
    /// earlier versions are forgotten.
    pub fn set(&self, ips: &[Ipv4Addr], port: u16) {
        let mut state = self.shared.state.lock().expect("no panic");
        state.version += 1;
        if state.version.is_multiple_of(2) {
            state.oldest = state.version;
        }
        (state.ips, state.port) = (ips.to_vec(), port);
        state.token = format!("token-{}", state.version);
        exchange(&self.token_file(), &state.token);
        self.shared.changed.notify_all();
    }
}

fn exchange(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{text}\n")).expect("written");
    std::fs::rename(new, file).expect("renamed");
}

/// The only slice. One more endpoint is not ready, and must not be used.
fn slice(state: &State) -> String {
    let mut endpoints = String::from(r#"{"addresses":["127.0.0.99"],"conditions":{"ready":false}}"#);
    for ip in &state.ips {
        let _ =
            write!(endpoints, r#",{{"addresses":["{ip}"],"conditions":{{"ready":true,"serving":true}}}}"#);
    }
    format!(
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"throng-worker-x7k2p",
        "resourceVersion":"{}"}},"addressType":"IPv4","ports":[{{"name":"engine","port":{},"protocol":"TCP"}}],
        "endpoints":[{endpoints}]}}"#,
        state.version, state.port
    )
    .replace('\n', " ")
}

fn serve(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let target = head[0].split(' ').nth(1).expect("a target").to_owned();
        let state = shared.state.lock().expect("no panic").clone();
        let bearer = format!("Bearer {}", state.token);
        let shown = head.iter().any(|line| {
            line.split_once(": ")
                .is_some_and(|(name, value)| name.eq_ignore_ascii_case("authorization") && value == bearer)
        });
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dthrong-worker";
        assert!(target.starts_with(path), "{target}");
        if !shown {
            write!(writer, "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")?;
        } else if target.contains("&watch=true") {
            watch(writer, shared, &target)?;
        } else {
            let list = format!(
                r#"{{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{{"resourceVersion":"{}"}},"items":[{}]}}"#,
                state.version,
                slice(&state)
            );
            write!(
                writer,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{list}",
                list.len()
            )?;
        }
    }
}

fn watch(mut writer: &TcpStream, shared: &Shared, target: &str) -> std::io::Result<()> {
    let version = target.split_once("resourceVersion=").expect("a version").1;
    let version: u64 = version.split('&').next().expect("a version").parse().expect("a number");
    write!(
        writer,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    let state = shared.state.lock().expect("no panic");
    let (state, _) =
        shared.changed.wait_timeout_while(state, WATCH, |state| state.version <= version).expect("no panic");
    let event = if version < state.oldest {
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#
            .to_owned()
    } else if state.version > version {
        format!(r#"{{"type":"MODIFIED","object":{}}}"#, slice(&state))
    } else {
        format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"EndpointSlice","metadata":{{"resourceVersion":"{version}"}}}}}}"#
        )
    };
    drop(state);
    write!(writer, "{:x}\r\n{event}\n\r\n0\r\n\r\n", event.len() + 1)
}
