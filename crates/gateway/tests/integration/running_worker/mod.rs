//! Workers and a gateway over them, on real sockets in this process, with the paper executor or another one.
//! Does not know what is tested.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use throng_core::scheduling::executor::{Executor, ExecutorCapacity};
use throng_engine::{Engine, EngineConfig, EngineHandle, Peers, Tiers};
use throng_fleet::constraint::ModelGrammars;
use throng_gateway::{
    AccessConfig, BlockPuller, Fleet, Gateway, GatewayConfig, PeerSettings, ReplicaConfig, Secret, Worker,
    WorkerModel,
};
use throng_http::Shutdown;
use throng_testkit::paper_executor::PaperExecutor;
use throng_wire::{ArtifactKind, Description, Versions};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::harness::{Client, END, MAX_LEN, PATIENCE, Setup, byte_tokenizer};

pub const TOKEN: &str = "a-token";

type Artifacts = Vec<(ArtifactKind, Vec<u8>)>;

/// A worker that answers, and its engine.
pub struct RunningWorker {
    pub address: SocketAddr,
    pub engine: EngineHandle,
    serving: tokio::task::AbortHandle,
    ending: oneshot::Sender<Shutdown>,
}

impl RunningWorker {
    pub async fn start(name: &str, change: impl FnOnce(&mut Description)) -> Self {
        Self::start_with_steps_of(512, name, change).await
    }

    pub async fn start_with_steps_of(
        max_batch_tokens: u32,
        name: &str,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let make = |capacity| Box::new(PaperExecutor::new(capacity)) as _;
        Self::start_over(make, max_batch_tokens, name, change).await
    }

    /// With what `make` makes of a capacity as executor.
    pub async fn start_over(
        make: impl Fn(ExecutorCapacity) -> Box<dyn Executor> + Send + 'static,
        max_batch_tokens: u32,
        name: &str,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), make, max_batch_tokens, name, change).await
    }

    /// The same, on this address.
    pub async fn start_at(
        address: SocketAddr,
        make: impl Fn(ExecutorCapacity) -> Box<dyn Executor> + Send + 'static,
        max_batch_tokens: u32,
        name: &str,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let capacity = ExecutorCapacity { max_batch_tokens, ..Setup::default().capacity };
        let template = br#"[["default", "{{ messages }}"]]"#.to_vec();
        Self::start_model(
            address,
            make,
            capacity,
            vec![(ArtifactKind::ChatTemplates, template)],
            |description| {
                description.names = vec![name.to_owned()];
                change(description);
            },
        )
        .await
    }

    /// With a model of these files, for an executor of this capacity.
    pub async fn start_model(
        address: SocketAddr,
        make: impl Fn(ExecutorCapacity) -> Box<dyn Executor> + Send + 'static,
        capacity: ExecutorCapacity,
        artifacts: Artifacts,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        Self::start_among(address, make, capacity, (artifacts, None), change).await
    }

    /// A worker that exchanges blocks with others, on an address of its own.
    pub async fn start_exchanging(
        make: impl Fn(ExecutorCapacity) -> Box<dyn Executor> + Send + 'static,
        capacity: ExecutorCapacity,
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let settings = PeerSettings { token: Some(Secret::new(TOKEN)), ..PeerSettings::default() };
        let puller = BlockPuller::new(&settings, tokio::runtime::Handle::current()).expect("valid settings");
        let templates = (ArtifactKind::ChatTemplates, br#"[["default", "{{ messages }}"]]"#.to_vec());
        let given = (vec![templates], Some(Arc::new(puller)));
        Self::start_among(([127, 0, 0, 1], 0).into(), make, capacity, given, change).await
    }

    async fn start_among(
        address: SocketAddr,
        make: impl Fn(ExecutorCapacity) -> Box<dyn Executor> + Send + 'static,
        capacity: ExecutorCapacity,
        (artifacts, puller): (Artifacts, Option<Arc<BlockPuller>>),
        change: impl FnOnce(&mut Description),
    ) -> Self {
        let peers = puller.clone().map(|puller| Peers { puller, at_any_cost: false });
        let tiers = Tiers { disk: None, peers };
        let engine = Engine::start_with_tiers(EngineConfig::default(), &tiers, move || Ok(make(capacity)))
            .expect("the paper executor starts");
        let mut description = Description {
            versions: Versions::OWN,
            names: vec!["paper".to_owned()],
            fingerprint: "paper".to_owned(),
            max_model_len: MAX_LEN,
            context_tokens: u64::from(MAX_LEN),
            vocabulary_size: capacity.vocabulary_size,
            eos_token_ids: vec![END],
            defaults: Default::default(),
            chat_template_defaults: Default::default(),
            tool_call_parser: None,
            reasoning_parser: None,
            adapters: Vec::new(),
            pooling: None,
            takes_media: capacity.takes_media,
            region: None,
            role: Default::default(),
            is_ending: false,
            notice: None,
            artifacts: Vec::new(),
        };
        change(&mut description);
        let model = WorkerModel {
            description,
            artifacts,
            engine: engine.clone(),
            grammars: Some(ModelGrammars::new(Arc::new(byte_tokenizer()), vec![END])),
            answer_format: Arc::default(),
            adapters: None,
            puller,
            ranks: None,
        };
        let access = AccessConfig { api_keys: vec![Secret::new(TOKEN)], ..AccessConfig::default() };
        let config = GatewayConfig { access, ..GatewayConfig::default() };
        let worker = Worker::new(config, model).expect("a valid configuration");
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (ending, told) = oneshot::channel();
        let told = async {
            match told.await {
                Ok(how) => how,
                Err(_) => std::future::pending().await,
            }
        };
        let serving = tokio::spawn(worker.serve(listener, told)).abort_handle();
        Self { address, engine, serving, ending }
    }

    /// Begins its end: running requests may finish.
    pub fn end(self, how: Shutdown) {
        // Nobody is told where it has ended already.
        let _ = self.ending.send(how);
    }

    /// Ends at once, as a process that is killed, and gives its address back.
    pub async fn leave(self) -> SocketAddr {
        self.serving.abort();
        let gone = async {
            while tokio::net::TcpStream::connect(self.address).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("it is gone");
        self.engine.shutdown();
        self.address
    }

    /// Asks as a gateway does; status and body.
    pub async fn ask(&self, path: &str, fields: &[(&str, &str)], body: Option<String>) -> (u16, Vec<u8>) {
        let stream = tokio::net::TcpStream::connect(self.address).await.expect("it accepts");
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default()))).expect("valid");
        let reply = sender.send_request(request).await.expect("an answer");
        let status = reply.status().as_u16();
        (status, reply.into_body().collect().await.expect("a body").to_bytes().to_vec())
    }

    pub async fn idle(&self) {
        let busy = || {
            let stats = self.engine.stats().scheduler;
            stats.running + stats.waiting + stats.paused + stats.queued_requests + stats.used_blocks > 0
        };
        let idle = async {
            while busy() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("the engine becomes idle");
    }
}

/// A gateway over these workers, and the address that it answers on.
pub async fn gateway(workers: &[&RunningWorker]) -> (Fleet, SocketAddr) {
    gateway_with(GatewayConfig::default(), workers).await
}

pub async fn gateway_with(config: GatewayConfig, workers: &[&RunningWorker]) -> (Fleet, SocketAddr) {
    let addresses: Vec<SocketAddr> = workers.iter().map(|worker| worker.address).collect();
    gateway_at(config, &addresses).await
}

/// A gateway over workers at these addresses.
pub async fn gateway_at(config: GatewayConfig, workers: &[SocketAddr]) -> (Fleet, SocketAddr) {
    let (fleet, address, _) = gateway_with_operator(config, workers).await;
    (fleet, address)
}

/// The same, and where it answers the operator.
pub async fn gateway_with_operator(
    config: GatewayConfig,
    workers: &[SocketAddr],
) -> (Fleet, SocketAddr, SocketAddr) {
    let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
    let replica = |worker: &SocketAddr| ReplicaConfig::of_url(format!("throng://{worker}"));
    let replicas: Vec<_> = workers.iter().map(replica).collect();
    let fleet = loading.start_fleet(&replicas, Some(&Secret::new(TOKEN))).expect("valid addresses");
    let (address, operator) = serve(gateway).await;
    (fleet, address, operator)
}

/// Where this gateway answers clients and the operator from now on.
pub async fn serve(gateway: Gateway) -> (SocketAddr, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let of_operator = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let bound = |listener: &TcpListener| listener.local_addr().expect("a bound socket");
    let (address, operator) = (bound(&listener), bound(&of_operator));
    let gateway = gateway.with_admin_listener(of_operator);
    tokio::spawn(gateway.serve(listener, std::future::pending::<()>()));
    (address, operator)
}

/// Waits until the gateway says this of its workers.
pub async fn until(client: &mut Client, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let waiting = async {
        loop {
            let workers = client.get("/fleet").await.json()["workers"].as_array().expect("a list").clone();
            if is_so(&workers) {
                return workers;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so")
}

pub fn all_ready(workers: &[Value]) -> bool {
    workers.iter().all(|worker| worker["state"] == "ready")
}
