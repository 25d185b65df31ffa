//! Workers and engines in two regions behind one gateway, over real sockets: requests stay in the nearest
//! region while it has room and answers, and those of an organisation with a residency rule never reach
//! another region, whatever fails. Each of their placements and refusals is in the log and in the database.

use std::net::SocketAddr;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::harness::{Client, MAX_LEN, PATIENCE, Reply, Server, Setup, completion, post_bytes};
use crate::running_worker::{RunningWorker, TOKEN, all_ready, serve, until};
use serde_json::{Value, json};
use throng_core::scheduling::batch::{ScheduledBatch, StepOutput};
use throng_core::scheduling::executor::{Executor, ExecutorCapacity, ExecutorError};
use throng_gateway::{
    Fleet, FleetError, Gateway, GatewayConfig, ModelAlias, ReplicaConfig, ResidencyRule, RoutingConfig,
    Secret, ShadowConfig, WeightedModel,
};
use throng_store::{Journal, NewKey, open};
use throng_testkit::fault_proxy::{Direction, FaultProxy, Flow};
use throng_testkit::paper_executor::PaperExecutor;
use throng_wire::{Description, Pooling};

const OPERATOR_KEY: &str = "the-operators-key";
/// The organisation that a rule binds to `eu`, and one without a rule.
const BOUND: &str = "bound";
const FREE: &str = "free";
/// More tokens than all probes of a test have together.
const PROMPT_TOKENS: u32 = 1_000;

/// A gateway in `eu`, with a key for each organisation.
struct Place {
    address: SocketAddr,
    operator: SocketAddr,
    keys: [(&'static str, String); 2],
    _fleet: Fleet,
    _folder: tempfile::TempDir,
}

fn rule(organisation: &str, regions: &[&str]) -> ResidencyRule {
    let regions = regions.iter().map(|&region| region.to_owned()).collect();
    ResidencyRule { organisation: organisation.to_owned(), regions }
}

fn routing() -> RoutingConfig {
    RoutingConfig {
        region: Some("eu".to_owned()),
        regions: vec!["eu".to_owned(), "us".to_owned()],
        residency: vec![rule(BOUND, &["eu"])],
        ..RoutingConfig::default()
    }
}

impl Place {
    async fn start(routing: RoutingConfig, replicas: &[ReplicaConfig]) -> Self {
        log();
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("throng.db").display());
        let mut config = GatewayConfig { routing, ..GatewayConfig::default() };
        config.access.database = Some(url.clone());
        config.access.admin_key = Some(Secret::new(OPERATOR_KEY));
        config.access.admin_listen = Some("127.0.0.1:0".to_owned());
        let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
        let store = open(&url).await.expect("a database");
        let mut keys = [BOUND, FREE].map(|organisation| (organisation, String::new()));
        for (organisation, key) in &mut keys {
            let new = NewKey {
                organisation: (*organisation).to_owned(),
                project: "p".to_owned(),
                ..NewKey::default()
            };
            *key = store.create_key(new).await.expect("made").secret().to_owned();
        }
        loading.stored_keys().expect("a database").refresh(&*store).await.expect("read");
        let ledger = loading.ledger().expect("a database");
        let journal = Journal::open(&folder.path().join("journal")).expect("a journal");
        ledger.open(journal, store).await.expect("opened");
        tokio::spawn(ledger.follow());
        let fleet = loading.start_fleet(replicas, Some(&Secret::new(TOKEN))).expect("valid addresses");
        let (address, operator) = serve(gateway).await;
        Self { address, operator, keys, _fleet: fleet, _folder: folder }
    }

    /// Asks as the operator.
    async fn operate(&self, path: &str) -> Reply {
        let mut client = Client::connect(self.operator).await;
        let key = format!("authorization: Bearer {OPERATOR_KEY}");
        client.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{key}\r\n\r\n")).await;
        client.reply().await.expect("an answer")
    }

    /// Waits until the gateway says this of its workers.
    async fn until(&self, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.until_listed("/fleet", "workers", is_so).await
    }

    /// Waits until a list in an answer to the operator is so.
    async fn until_listed(&self, path: &str, list: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let waiting = async {
            loop {
                let told = self.operate(path).await.json();
                let found = told[list].as_array().expect("a list").clone();
                if is_so(&found) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so")
    }

    /// Sends a request of this organisation.
    async fn begin(&self, organisation: &str, path: &str, body: &Value, fields: &[&str]) -> Client {
        let key = self.keys.iter().find(|(known, _)| *known == organisation).expect("an organisation");
        let key = format!("authorization: Bearer {}", key.1);
        let mut client = Client::connect(self.address).await;
        let fields: Vec<&str> = fields.iter().copied().chain([key.as_str()]).collect();
        client.send(post_bytes(path, &body.to_string(), &fields)).await;
        client
    }

    async fn ask(&self, organisation: &str, body: &Value, fields: &[&str]) -> Reply {
        let mut client = self.begin(organisation, "/v1/completions", body, fields).await;
        client.reply().await.expect("an answer")
    }
}

/// What was logged since the first call, by all tests.
fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<&'static Mutex<Vec<u8>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let lines: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        let writer = move || Lines(lines);
        tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
        lines
    })
}

struct Lines(&'static Mutex<Vec<u8>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines of the audit about this request.
fn audit(request: &str) -> Vec<String> {
    let text = String::from_utf8(log().lock().expect("no panic").clone()).expect("text");
    let is_meant = |line: &&str| line.contains("audit: ") && line.contains(&format!("request=\"{request}\""));
    text.lines().filter(is_meant).map(str::to_owned).collect()
}

/// The paper executor with steps of three milliseconds.
struct Slow(PaperExecutor);

impl Executor for Slow {
    fn capacity(&self) -> ExecutorCapacity {
        self.0.capacity()
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        std::thread::sleep(Duration::from_millis(3));
        self.0.execute(batch, output)
    }
}

/// A vector for each text.
struct Vectors(ExecutorCapacity);

impl Executor for Vectors {
    fn capacity(&self) -> ExecutorCapacity {
        self.0
    }

    fn collect(&mut self, batch: &ScheduledBatch, output: &mut StepOutput) -> Result<(), ExecutorError> {
        output.clear();
        for scheduled in batch.sequences() {
            output.begin_sequence();
            if scheduled.sample {
                output.push_vector(&[1.0, 2.0]);
            }
        }
        Ok(())
    }
}

fn in_region(region: &str) -> impl FnOnce(&mut Description) {
    let region = Some(region.to_owned());
    move |description| description.region = region
}

/// A worker of this region with slow steps of 64 tokens.
async fn worker(name: &str, region: &str) -> RunningWorker {
    let make = |capacity| Box::new(Slow(PaperExecutor::new(capacity))) as Box<dyn Executor>;
    RunningWorker::start_over(make, 64, name, in_region(region)).await
}

fn replica(address: SocketAddr) -> ReplicaConfig {
    ReplicaConfig::of_url(format!("throng://{address}"))
}

/// Prompt tokens that a worker was given.
fn given(worker: &RunningWorker) -> u64 {
    worker.engine.stats().scheduler.counters.cache_query_tokens
}

/// A request with a prompt that begins as no other does.
fn request(max_tokens: u32, is_streaming: bool) -> Value {
    let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|_| fastrand::u32(..250)).collect();
    completion(
        json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "stream": is_streaming}),
    )
}

#[tokio::test]
async fn requests_stay_in_the_nearest_region_until_it_is_loaded_or_dead() {
    let (near, far) = (worker("paper", "eu").await, worker("paper", "us").await);
    let proxy = FaultProxy::start(far.address);
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.set(direction, Flow::Passes(Duration::from_millis(100)));
    }
    let place = Place::start(routing(), &[replica(near.address), replica(proxy.address())]).await;
    let told = place
        .until(|workers| {
            let is_measured = workers.iter().all(|worker| worker["round_trip_ms"].as_f64().is_some());
            workers.len() == 2 && all_ready(workers) && is_measured
        })
        .await;
    assert_eq!((&told[0]["region"], &told[1]["region"]), (&json!("eu"), &json!("us")));
    assert!(told[1]["round_trip_ms"].as_f64() >= Some(200.0), "{told:?}");
    // What is predicted of a worker is learned from steps of a whole prompt, which probes are not.
    for address in [near.address, proxy.address()] {
        let pin = format!("x-throng-replica: {address}");
        assert_eq!(place.ask(FREE, &request(1, false), &[&pin]).await.status, 200);
    }
    let before = given(&far);
    for _ in 0..5 {
        assert_eq!(place.ask(FREE, &request(1, false), &[]).await.status, 200);
    }
    assert!(given(&near) >= 6 * u64::from(PROMPT_TOKENS) && given(&far) < before + 100, "{}", given(&far));
    // As many at once as the near region needs more than 200 ms for.
    let bodies: Vec<Value> = (0..24).map(|_| request(1, false)).collect();
    let asked = bodies.iter().map(|body| place.ask(FREE, body, &[]));
    assert!(futures_util::future::join_all(asked).await.iter().all(|reply| reply.status == 200));
    let (of_near, of_far) = (given(&near), given(&far));
    assert!(
        of_near >= 6 * u64::from(PROMPT_TOKENS) && of_far >= before + u64::from(PROMPT_TOKENS),
        "{of_far}"
    );
    near.leave().await;
    place.until(|workers| workers[0]["state"] == "down").await;
    assert_eq!(place.ask(FREE, &request(1, false), &[]).await.status, 200);
    assert!(given(&far) >= of_far + u64::from(PROMPT_TOKENS));
}

#[tokio::test]
async fn a_bound_request_never_leaves_its_regions_whatever_dies() {
    let mut of_eu = vec![worker("paper", "eu").await, worker("paper", "eu").await];
    let of_us = worker("paper", "us").await;
    let addresses = of_eu.iter().chain([&of_us]).map(|worker| replica(worker.address));
    let place = Place::start(routing(), &addresses.collect::<Vec<_>>()).await;
    place.until(|workers| workers.len() == 3 && all_ready(workers)).await;
    // The worker that runs the stream dies twice. The first time another one of the region goes on.
    for number in 1..=2 {
        let before: Vec<u64> = of_eu.iter().map(given).collect();
        let id = format!("x-request-id: stream-{number}");
        let mut stream = place.begin(BOUND, "/v1/completions", &request(200, true), &[&id]).await;
        stream.read_until("data: ").await;
        let is_running = |idx: &usize| given(&of_eu[*idx]) >= before[*idx] + u64::from(PROMPT_TOKENS);
        let running = (0..of_eu.len()).find(is_running).expect("one runs it");
        of_eu.remove(running).leave().await;
        let text = stream.reply().await.expect("an answer").text().to_owned();
        let lines = audit(&format!("stream-{number}"));
        let (is_whole, is_refused) = (text.ends_with("data: [DONE]\n\n"), text.contains("\"error\""));
        assert!((is_whole, is_refused) == (number == 1, number == 2), "{number}: {text}");
        assert!(
            lines.len() == 2
                && lines[0].contains("region=\"eu\"")
                && lines[0].contains("organisation=\"bound\""),
            "{lines:#?}"
        );
        assert!(lines[1].contains(if number == 1 { "region=\"eu\"" } else { "is refused" }), "{lines:#?}");
    }
    // Nobody is left there.
    for body in [request(1, false), request(1, true)] {
        let (status, _, _, code) = place.ask(BOUND, &body, &["x-request-id: refused"]).await.error();
        assert_eq!((status, code.as_str()), (503, "no_healthy_worker"));
    }
    assert!(audit("refused").iter().all(|line| line.contains("is refused")) && audit("refused").len() == 2);
    // A pin is no way out, and says that no permitted region has such a replica.
    let pin = format!("x-throng-replica: {}", of_us.address);
    let (status, _, _, code) = place.ask(BOUND, &request(1, false), &[&pin]).await.error();
    assert_eq!((status, code.as_str()), (403, "region_not_permitted"));
    assert!(given(&of_us) < 100, "{} tokens of the bound organisation left its region", given(&of_us));
    assert_eq!(place.ask(FREE, &request(1, false), &["x-request-id: free"]).await.status, 200);
    assert!(given(&of_us) >= u64::from(PROMPT_TOKENS) && audit("free").is_empty());
}

#[tokio::test]
async fn the_audit_is_in_the_database_and_the_operator_reads_it_in_pages() {
    let (of_eu, of_us) = (worker("paper", "eu").await, worker("paper", "us").await);
    let place = Place::start(routing(), &[replica(of_eu.address), replica(of_us.address)]).await;
    place.until(|workers| workers.len() == 2 && all_ready(workers)).await;
    assert_eq!(place.ask(BOUND, &request(1, false), &["x-request-id: audit-1"]).await.status, 200);
    assert_eq!(place.ask(FREE, &request(1, false), &["x-request-id: audit-free"]).await.status, 200);
    let pin = format!("x-throng-replica: {}", of_us.address);
    let refused = place.ask(BOUND, &request(1, false), &["x-request-id: audit-2", &pin]).await;
    assert_eq!(refused.status, 403);

    let lines = place.until_listed("/admin/audit?organisation=bound", "data", |lines| lines.len() >= 3).await;
    let of = |line: &Value| {
        ["event", "request_id", "organisation", "model", "permitted_regions", "replica", "region", "reason"]
            .map(|field| line[field].clone())
    };
    let eu = json!(["eu"]);
    let nothing = Value::Null;
    let name = of_eu.address.to_string();
    assert_eq!(
        of(&lines[0]),
        [
            json!("rule"),
            nothing.clone(),
            json!(BOUND),
            nothing.clone(),
            eu.clone(),
            nothing.clone(),
            nothing.clone(),
            nothing.clone()
        ]
    );
    assert_eq!(
        of(&lines[1]),
        [
            json!("placed"),
            json!("audit-1"),
            json!(BOUND),
            json!("paper"),
            eu.clone(),
            json!(name),
            json!("eu"),
            nothing.clone()
        ]
    );
    let reason = json!("no replica of the model is in a permitted region");
    assert_eq!(
        of(&lines[2]),
        [
            json!("refused"),
            json!("audit-2"),
            json!(BOUND),
            json!("paper"),
            eu,
            nothing.clone(),
            nothing,
            reason
        ]
    );
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
    assert!(lines.iter().all(|line| (now - line["at"].as_f64().expect("a time")).abs() < 600.0));

    // The same a line at a time, and by time.
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = place.operate(&format!("/admin/audit?limit=1&after={after}")).await.json();
        seen.extend(page["data"].as_array().expect("a list").clone());
        match page["last"].as_u64() {
            Some(last) => after = last,
            None => break,
        }
    }
    assert_eq!(seen, lines, "the request without a rule has no line");
    let ended = place.operate("/admin/audit?end_time=1000").await.json();
    assert_eq!((&ended["data"], &ended["has_more"]), (&json!([]), &json!(false)));
    for (query, parameter) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("after=-1", "after"),
        ("start_time=x", "start_time"),
        ("limit=1&limit=2", "limit"),
    ] {
        let error = place.operate(&format!("/admin/audit?{query}")).await.error();
        assert_eq!((error.0, error.2), (400, json!(parameter)), "{query}");
    }
    assert_eq!(place.operate("/admin/audit?colour=red").await.error().0, 400);
    let metrics = place.operate("/metrics").await;
    assert!(metrics.text().contains("throng_audit_lost_lines_total 0"), "{}", metrics.text());
}

#[tokio::test]
async fn a_worker_that_comes_back_in_another_region_is_another_one() {
    let worker_there = worker("paper", "eu").await;
    let other = worker("paper", "us").await;
    let place = Place::start(routing(), &[replica(worker_there.address), replica(other.address)]).await;
    place.until(|workers| workers.len() == 2 && all_ready(workers)).await;
    assert_eq!(place.ask(BOUND, &request(1, false), &[]).await.status, 200);
    let address = worker_there.leave().await;
    let make = |capacity| Box::new(Slow(PaperExecutor::new(capacity))) as Box<dyn Executor>;
    let moved = RunningWorker::start_at(address, make, 64, "paper", in_region("us")).await;
    place.until(|workers| workers[0]["region"] == "us" && all_ready(workers)).await;
    let (status, _, _, code) = place.ask(BOUND, &request(1, false), &[]).await.error();
    assert_eq!((status, code.as_str()), (403, "region_not_permitted"));
    assert!(given(&moved) + given(&other) < 100);
    assert_eq!(place.ask(FREE, &request(1, false), &[]).await.status, 200);
}

#[tokio::test]
async fn foreign_engines_vectors_and_copies_keep_the_rule_too() {
    let (engine_eu, engine_us) =
        (Server::start(Setup::default()).await, Server::start(Setup::default()).await);
    let engine = |server: &Server, region: &str| ReplicaConfig {
        model: Some("org/paper".to_owned()),
        names: vec!["foreign".to_owned()],
        region: Some(region.to_owned()),
        ..ReplicaConfig::of_url(format!("http://{}/v1", server.address))
    };
    let (chat, shadow) = (worker("chat", "eu").await, worker("shadow", "us").await);
    let make = |capacity| {
        let capacity = ExecutorCapacity { takes_whole_prompts: true, max_batch_tokens: MAX_LEN, ..capacity };
        Box::new(Vectors(capacity)) as Box<dyn Executor>
    };
    let embedder = RunningWorker::start_over(make, MAX_LEN, "embedder", |description| {
        in_region("us")(description);
        description.pooling = Some(Pooling {
            labels: None,
            are_exclusive: false,
            are_logits: false,
            normalizes: false,
            n_segments: 1,
            segment_stride: 0,
            prompts: Default::default(),
            default_prompt: None,
        });
    })
    .await;
    let mut routing = routing();
    let target = |model: &str| vec![WeightedModel { model: model.to_owned(), weight: 1 }];
    let elsewhere = ModelAlias {
        name: "elsewhere".to_owned(),
        targets: target("shadow"),
        fallback: vec!["chat".to_owned()],
        shadow: None,
    };
    let alias = ModelAlias {
        name: "alias".to_owned(),
        targets: target("chat"),
        fallback: Vec::new(),
        shadow: Some(ShadowConfig { model: "shadow".to_owned(), percent: 100, max_in_flight: 8 }),
    };
    routing.aliases = vec![alias, elsewhere];
    let workers = [&chat, &shadow, &embedder].map(|worker| replica(worker.address));
    let engines = [engine(&engine_eu, "eu"), engine(&engine_us, "us")];
    let place = Place::start(routing, &[&workers[..], &engines[..]].concat()).await;
    let is_near = |worker: &Value| worker["round_trip_ms"].as_f64().is_some();
    place.until(|all| all.len() == 5 && all_ready(all) && all.iter().all(is_near)).await;

    let mut foreign = completion(json!({"model": "foreign", "max_tokens": 3, "ignore_eos": true}));
    let made = |server: &Server| server.engine.stats().scheduler.counters.output_tokens;
    let before = made(&engine_us);
    for _ in 0..10 {
        assert_eq!(place.ask(BOUND, &foreign, &["x-request-id: foreign"]).await.status, 200);
    }
    let lines = audit("foreign");
    assert!(lines.len() == 10 && lines.iter().all(|line| line.contains("region=\"eu\"")), "{lines:#?}");
    let mut stopping = engine_eu;
    stopping.begin_stop();
    stopping.stopped().await;
    for is_streaming in [false, true] {
        foreign["stream"] = json!(is_streaming);
        let (status, _, _, code) = place.ask(BOUND, &foreign, &[]).await.error();
        assert_eq!((status, code.as_str()), (503, "no_healthy_worker"));
    }
    assert_eq!(made(&engine_us), before, "a bound request reached an engine of another region");
    assert_eq!(place.ask(FREE, &foreign, &[]).await.status, 200);

    let texts = json!({"model": "embedder", "input": [1, 2, 3]});
    let mut client = place.begin(BOUND, "/v1/embeddings", &texts, &["x-request-id: vectors"]).await;
    let (status, kind, _, code) = client.reply().await.expect("an answer").error();
    assert_eq!((status, code.as_str()), (403, "region_not_permitted"), "{kind}");
    assert!(audit("vectors").iter().any(|line| line.contains("is refused")));
    let mut client = place.begin(FREE, "/v1/embeddings", &texts, &[]).await;
    assert_eq!(client.reply().await.expect("an answer").status, 200);

    // The next model of an alias answers where the first one is in another region.
    let mut body = request(1, false);
    body["model"] = json!("elsewhere");
    let reply = place.ask(BOUND, &body, &[]).await;
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("chat")));
    body["model"] = json!("alias");
    let by_header = ["x-throng-hops: 1", "x-throng-regions: eu"];
    for (organisation, fields) in
        [(BOUND, &[][..]), (BOUND, &[]), (FREE, &by_header[..1]), (FREE, &by_header[1..]), (FREE, &[])]
    {
        assert_eq!(place.ask(organisation, &body, fields).await.status, 200);
    }
    let copied = async {
        while given(&shadow) < u64::from(PROMPT_TOKENS) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, copied).await.expect("the free organisation's request is copied");
    shadow.idle().await;
    assert!(given(&shadow) < 2 * u64::from(PROMPT_TOKENS), "a request that is bound or forwarded was copied");
}

#[tokio::test]
async fn a_rule_for_everyone_holds_without_keys_and_unknown_regions_are_refused() {
    let (lost, of_us) = (worker("paper", "mars").await, worker("paper", "us").await);
    let config = GatewayConfig {
        routing: RoutingConfig { residency: vec![rule("*", &["eu"])], ..routing() },
        ..GatewayConfig::default()
    };
    let (_fleet, address) =
        crate::running_worker::gateway_at(config.clone(), &[lost.address, of_us.address]).await;
    let mut client = Client::connect(address).await;
    let told = until(&mut client, |workers| {
        workers.len() == 2 && workers[0]["reason"].is_string() && workers[1]["state"] == "ready"
    })
    .await;
    assert!(told[0]["reason"].as_str().is_some_and(|reason| reason.contains("mars")), "{told:?}");
    let (status, _, _, code) = client.post("/v1/completions", &request(1, false)).await.error();
    assert_eq!((status, code.as_str()), (403, "region_not_permitted"));
    let (_, loading) = Gateway::loading(config, Default::default()).expect("valid");
    let replicas = [ReplicaConfig { region: Some("mars".to_owned()), ..replica(of_us.address) }];
    match loading.start_fleet(&replicas, None) {
        Err(FleetError::Unusable { reason, .. }) => assert!(reason.contains("(eu, us)"), "{reason}"),
        started => panic!("{started:?}"),
    }
}

#[tokio::test]
async fn models_of_the_gateways_own_process_are_in_its_region() {
    for (region, status) in [("eu", 200), ("us", 403)] {
        let mut setup = Setup { has_embedder: true, ..Setup::default() };
        let region = Some(region.to_owned());
        setup.config.routing = RoutingConfig { region, residency: vec![rule("*", &["eu"])], ..routing() };
        let server = Server::start(setup).await;
        let mut client = server.connect().await;
        for (path, body) in [
            ("/v1/completions", completion(json!({"max_tokens": 1}))),
            ("/v1/embeddings", json!({"model": crate::harness::EMBEDDER, "input": [1, 2, 3]})),
        ] {
            assert_eq!(client.post(path, &body).await.status, status, "{path}");
        }
        let metrics = client.get("/metrics").await;
        let outcome = if status == 200 { "placed" } else { "refused" };
        let line = format!(
            "throng_residency_requests_total{{model_name=\"paper\",engine=\"0\",outcome=\"{outcome}\"}} 1"
        );
        assert!(metrics.text().contains(&line), "{}", metrics.text());
    }
}
