//! A gateway and its workers as processes, which can be killed, stopped and started again. Does not know what
//! is asked.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_testkit::fault_proxy::FaultProxy;

use crate::process::{LIMIT, POLL, Server, end, free_port, throng};

const TOKEN: &str = "the-token-of-the-test";

/// A gateway and its workers; all are killed when it is dropped.
pub struct Fleet {
    gateway: Server,
    url: String,
    workers: Vec<Worker>,
}

struct Worker {
    port: u16,
    process: Option<Child>,
    /// What its gateway reaches it through.
    proxy: Option<FaultProxy>,
}

impl Worker {
    fn start(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command =
            throng(&["worker", "--listen", &listen, "--threads", "1", "--kv-cache-memory", "48MiB"]);
        command.args(["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]);
        command.env("THRONG_WORKER_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("the binary runs"));
    }

    /// Where its gateway finds it.
    fn address(&self) -> SocketAddr {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        self.proxy.as_ref().map_or(own, FaultProxy::address)
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            end(&mut process);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fleet {
    /// A gateway with so many workers, all of which answer.
    pub fn start(n_workers: usize) -> Self {
        Self::start_workers(Self::start_without_workers(n_workers))
    }

    /// Like [`Self::start`], with a proxy in front of each worker.
    pub fn start_behind_proxies(n_workers: usize) -> Self {
        let proxied = |port| Some(FaultProxy::start((Ipv4Addr::LOCALHOST, port).into()));
        Self::start_workers(Self::of(n_workers, proxied))
    }

    fn start_workers(mut fleet: Self) -> Self {
        fleet.workers.iter_mut().for_each(Worker::start);
        fleet.until_ready();
        fleet
    }

    /// A gateway for workers that do not run.
    pub fn start_without_workers(n_workers: usize) -> Self {
        Self::of(n_workers, |_| None)
    }

    fn of(n_workers: usize, proxy: impl Fn(u16) -> Option<FaultProxy>) -> Self {
        let worker = |_| {
            let port = free_port();
            Worker { port, process: None, proxy: proxy(port) }
        };
        let workers: Vec<Worker> = (0..n_workers).map(worker).collect();
        let port = free_port();
        let mut command = throng(&["gateway", "--port", &port.to_string()]);
        // Workers start as slowly as a busy machine makes them.
        let config = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gateway-{port}.toml"));
        std::fs::write(&config, "[expert.gateway.routing]\nreplica_wait_s = 100\n").expect("written");
        command.arg("--config").arg(&config);
        for worker in &workers {
            command.args(["--replica", &format!("throng://{}", worker.address())]);
        }
        command.env("THRONG_WORKER_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null());
        let gateway = Server { process: command.spawn().expect("the binary runs"), port };
        Self { gateway, url: format!("http://127.0.0.1:{port}"), workers }
    }

    /// Where the gateway listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The proxy in front of a worker.
    pub fn proxy(&self, worker: usize) -> &FaultProxy {
        self.workers[worker].proxy.as_ref().expect("it has one")
    }

    /// The name by which clients can ask for a worker.
    pub fn name(&self, worker: usize) -> String {
        self.workers[worker].address().to_string()
    }

    /// How long it takes from now until a worker gets no requests any more.
    pub fn until_out(&self, worker: usize) -> Duration {
        let began = Instant::now();
        until_ok(|| {
            let reply = ureq::get(format!("{}/fleet", self.url)).call().expect("the gateway answers");
            let told: Value = serde_json::from_reader(reply.into_body().into_reader()).expect("a document");
            let is_out = told["workers"][worker]["state"] != "ready";
            is_out.then(|| began.elapsed()).ok_or_else(|| format!("it stays: {told}"))
        })
    }

    /// Sends a signal to the gateway.
    pub fn signal_gateway(&self, name: &str) {
        self.gateway.signal(name);
    }

    /// Kills all workers, waits, and starts them again.
    pub fn restart_all(&mut self, pause: Duration) {
        self.workers.iter_mut().for_each(Worker::kill);
        std::thread::sleep(pause);
        self.workers.iter_mut().for_each(Worker::start);
    }

    /// For how many seconds each worker has been connected.
    pub fn connected_s(&mut self) -> Vec<u64> {
        let answer = self.get("/fleet");
        let told: Value =
            serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
        let workers = told["workers"].as_array().expect("a list");
        workers.iter().map(|worker| worker["seconds"].as_u64().expect("a number")).collect()
    }

    /// Waits until all workers have been connected for so long.
    pub fn until_connected_s(&mut self, seconds: u64) -> Vec<u64> {
        until_ok(|| {
            let connected = self.connected_s();
            let is_long = connected.iter().all(|for_s| *for_s >= seconds);
            if is_long { Ok(connected) } else { Err(format!("they never stay: {connected:?}")) }
        })
    }

    /// Sends a signal to a worker.
    pub fn signal(&self, worker: usize, name: &str) {
        let process = self.workers[worker].process.as_ref().expect("it runs");
        let kill = format!("kill -{name} {}", process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success(), "{kill}");
    }

    /// Waits until a worker has ended by itself.
    pub fn ended(&mut self, worker: usize) -> ExitStatus {
        end(&mut self.workers[worker].process.take().expect("it runs"))
    }

    /// Waits until all workers answer, after starting this one again if it was killed.
    pub fn mend(&mut self, worker: usize, was_killed: bool) {
        if was_killed {
            self.workers[worker].kill();
            self.workers[worker].start();
        }
        self.until_ready();
        self.until_answers(worker);
    }

    /// Waits until this worker itself answers: a connection that has died unnoticed fails the first request
    /// that may not move to another worker.
    fn until_answers(&self, worker: usize) {
        let body = r#"{"model": "throng-starter", "prompt": "The sea is", "max_tokens": 1}"#;
        until_ok(|| {
            let request = ureq::post(format!("{}/v1/completions", self.url));
            let request = request.header("content-type", "application/json");
            let answer = request.header("x-throng-replica", self.name(worker)).send(body);
            answer.map(drop).map_err(|error| format!("it never answers: {error}"))
        });
    }

    /// The whole answer to a GET, head and body.
    pub fn get(&mut self, path: &str) -> String {
        self.gateway.ask("GET", path, "")
    }

    /// Asks until the answer contains these words.
    pub fn until(&mut self, path: &str, words: &str) {
        until_ok(|| {
            let answer = self.get(path);
            if answer.contains(words) { Ok(()) } else { Err(format!("{words:?} never came: {answer}")) }
        });
    }

    /// What `throng fleet status` prints.
    pub fn status(&self) -> String {
        let mut command = throng(&["fleet", "status", "--url", &self.url]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut text = String::new();
        process.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
        end(&mut process);
        text
    }

    fn until_ready(&mut self) {
        until_ok(|| {
            let answer = self.get("/fleet");
            let n_ready = answer.matches("\"state\":\"ready\"").count();
            let are_all = n_ready == self.workers.len();
            if are_all { Ok(()) } else { Err(format!("some workers never came: {answer}")) }
        });
    }
}

/// Tries again and again, and panics with the latest fault when it takes too long.
fn until_ok<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(fault) => assert!(Instant::now() < until, "{fault}"),
        }
        std::thread::sleep(POLL);
    }
}
