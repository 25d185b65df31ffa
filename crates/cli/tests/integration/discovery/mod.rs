//! Workers, and engines of other makers, that come and go while clients stream: a gateway finds them in a
//! file, in DNS (addresses and SRV records) and among the endpoints of a Kubernetes service, whose servers
//! are spoken to over real sockets. Workers and gateways are processes of their own.

mod dns_server;
mod kubernetes_server;

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::process::{LIMIT, POLL, Server, end, free_port, throng};
use dns_server::DnsServer;
use kubernetes_server::KubernetesServer;

/// Three workers on one port of three addresses of this machine, as three pods have.
const N_WORKERS: usize = 3;
const N_CLIENTS: usize = 3;
const TOKEN: &str = "the-token-of-the-test";

fn ip(worker: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, 1 + u8::try_from(worker).expect("few"))
}

/// What comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Workers,
    /// `throng serve`, as any server with OpenAI's API.
    Engines,
}

impl What {
    fn scheme(self) -> &'static str {
        match self {
            Self::Workers => "throng://",
            Self::Engines => "http://",
        }
    }

    /// What clients call the model.
    fn model(self) -> &'static str {
        match self {
            Self::Workers => "throng-starter",
            Self::Engines => "starter",
        }
    }
}

struct Worker {
    process: Child,
    ip: Ipv4Addr,
    port: u16,
    what: What,
}

impl Worker {
    fn start(ip: Ipv4Addr, port: u16, what: What) -> Self {
        let (host, number, listen) = (ip.to_string(), port.to_string(), format!("{ip}:{port}"));
        let mut command = match what {
            What::Workers => throng(&["worker", "--listen", &listen]),
            What::Engines => throng(&["serve", "--host", &host, "--port", &number, "--api-key", TOKEN]),
        };
        command.args(["--threads", "1", "--kv-cache-memory", "48MiB"]);
        command.env("THRONG_WORKER_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: command.spawn().expect("the binary runs"), ip, port, what }
    }

    /// Killed and started again, which no stream may notice when no gateway lists it.
    fn restart(&mut self) {
        self.process.kill().expect("it runs");
        end(&mut self.process);
        *self = Self::start(self.ip, self.port, self.what);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        end(&mut self.process);
    }
}

/// A place that tells which workers there are.
enum Place {
    File(PathBuf),
    Addresses(DnsServer),
    Records(DnsServer),
    Kubernetes(KubernetesServer),
}

impl Place {
    /// The replica that the gateway's configuration names.
    fn replica(&self, port: u16, what: What) -> String {
        let url = match self {
            Self::File(path) => format!("url = \"file://{}\"", path.display()),
            Self::Addresses(server) => format!("url = \"dns://{}/workers.test:{port}\"", server.address()),
            Self::Records(server) => {
                format!("url = \"srv://{}/_throng._tcp.workers.test\"", server.address())
            }
            Self::Kubernetes(server) => format!(
                "url = \"kubernetes://default/throng-worker:engine\"\nkubernetes_api = {{ url = \"http://{}\", token_file = \"{}\" }}",
                server.address(),
                server.token_file().display()
            ),
        };
        match what {
            What::Workers => url,
            What::Engines => format!(
                "{url}\nengine_path = \"/v1\"\napi_key = \"{TOKEN}\"\nmodel = \"throng-starter\"\nnames = [\"starter\"]"
            ),
        }
    }

    /// Tells from now on that there are these workers.
    fn set(&mut self, workers: &[usize], port: u16, what: What) {
        let ips: Vec<Ipv4Addr> = workers.iter().map(|&worker| ip(worker)).collect();
        match self {
            Self::File(path) => {
                let lines: Vec<String> =
                    ips.iter().map(|ip| format!("{}{ip}:{port}", what.scheme())).collect();
                let new = path.with_extension("new");
                std::fs::write(&new, lines.join("\n")).expect("written");
                std::fs::rename(new, path).expect("renamed");
            }
            Self::Addresses(server) | Self::Records(server) => server.set(&ips, port),
            Self::Kubernetes(server) => server.set(&ips, port),
        }
    }
}

fn ask(server: &mut Server, what: What) -> String {
    let body = r#"{"model": "MODEL", "max_tokens": 32, "temperature": 0, "stream": true, "ignore_eos": true,
        "request_id": "the-same", "messages": [{"role": "user", "content": "Tell me about the sea."}]}"#;
    let body = body.replace("MODEL", what.model());
    let mut answer = String::new();
    server.begin("POST", "/v1/chat/completions", &body).read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("data: [DONE]"), "{answer}");
    let content = |line: &str| Some(line.split_once("\"content\":")?.1.split_once('}')?.0.to_owned());
    answer.lines().filter_map(content).collect()
}

/// Waits until exactly these workers are listed, and all of them answer.
fn until_listed(server: &mut Server, workers: &[usize], what: What) {
    let until = Instant::now() + LIMIT;
    loop {
        let fleet = server.ask("GET", "/fleet", "");
        let is_there = |worker: &usize| fleet.contains(&format!("{}{}:", what.scheme(), ip(*worker)));
        let n_ready = fleet.matches("\"state\":\"ready\"").count();
        if n_ready == workers.len()
            && fleet.matches("\"url\"").count() == n_ready
            && workers.iter().all(is_there)
        {
            return;
        }
        assert!(Instant::now() < until, "{workers:?} never came: {fleet}");
        std::thread::sleep(POLL);
    }
}

/// Clients stream without a pause while the workers are exchanged one after the other. How many answers they
/// got.
fn exchange(what: What, mut place: Place, workers: &mut [Worker], port: u16) -> usize {
    place.set(&[0, 1], port, what);
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("gateway.toml");
    std::fs::write(&config, format!("[[replica]]\n{}\n", place.replica(port, what))).expect("written");
    let at = free_port();
    let mut command =
        throng(&["gateway", "--port", &at.to_string(), "--config", config.to_str().expect("a path")]);
    command.env("THRONG_WORKER_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server { process: command.spawn().expect("the binary runs"), port: at };
    until_listed(&mut server, &[0, 1], what);
    if what == What::Workers {
        let metrics = server.ask("GET", "/metrics", "");
        let desired = metrics.lines().find(|line| line.starts_with("throng_desired_replicas{"));
        assert!(
            desired.is_some_and(|line| line.contains("\"throng-starter\"") && line.ends_with(" 2")),
            "{desired:?}"
        );
    }
    let expected = ask(&mut server, what);
    assert!(!expected.is_empty());
    let (is_over, n_answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..N_CLIENTS {
            scope.spawn(|| {
                // Another view of the same server, which does not own its process.
                let idle = throng(&["--version"]).stdout(Stdio::null()).spawn().expect("the binary runs");
                let mut server = Server { process: idle, port: at };
                while !is_over.load(Ordering::Acquire) {
                    let answer =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ask(&mut server, what)));
                    let answer = answer.unwrap_or_else(|fault| {
                        is_over.store(true, Ordering::Release);
                        std::panic::resume_unwind(fault)
                    });
                    assert_eq!(answer, expected);
                    n_answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for listed in [[1, 2], [2, 0], [0, 1]] {
            place.set(&listed, port, what);
            until_listed(&mut server, &listed, what);
            let unlisted = (0..N_WORKERS).find(|worker| !listed.contains(worker)).expect("one is not");
            workers[unlisted].restart();
            // Each set of workers answers some.
            let before = n_answers.load(Ordering::Relaxed);
            let until = Instant::now() + LIMIT;
            while n_answers.load(Ordering::Relaxed) < before + N_CLIENTS && !is_over.load(Ordering::Acquire) {
                assert!(Instant::now() < until, "no answers any more");
                std::thread::sleep(POLL);
            }
        }
        is_over.store(true, Ordering::Release);
    });
    n_answers.into_inner()
}

fn come_and_go(what: What) {
    let port = free_port();
    let mut workers: Vec<Worker> =
        (0..N_WORKERS).map(|worker| Worker::start(ip(worker), port, what)).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let places = [
        ("file", Place::File(folder.path().join("workers"))),
        ("addresses", Place::Addresses(DnsServer::start())),
        ("SRV records", Place::Records(DnsServer::start())),
        ("Kubernetes", Place::Kubernetes(KubernetesServer::start())),
    ];
    for (name, place) in places {
        println!("{name}: {} answers, 0 failed", exchange(what, place, &mut workers, port));
    }
}

#[test]
fn workers_come_and_go_while_clients_stream() {
    come_and_go(What::Workers);
}

#[test]
fn engines_come_and_go_while_clients_stream() {
    come_and_go(What::Engines);
}

#[test]
fn a_source_that_is_none_is_refused() {
    for url in ["file://relative", "dns://name-without-port", "kubernetes://only/two"] {
        let output = throng(&["gateway", "--port", "0", "--replica", url]).output().expect("it ran");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("no address of workers"), "{told}");
    }
}
