//! Gateways that forward to gateways, over real sockets: a request goes through two of them at most, a loop
//! ends with an error, and what binds a request to regions holds behind the second one.

use std::net::SocketAddr;
use std::time::Duration;

use crate::harness::{Client, PATIENCE, Reply, Server, Setup, completion, post_bytes};
use serde_json::{Value, json};
use throng_gateway::{Fleet, Gateway, GatewayConfig, ReplicaConfig, ResidencyRule, RoutingConfig};
use tokio::net::TcpListener;

const HOPS: &str = "x-throng-hops";

/// A gateway over engines and gateways.
struct Place {
    address: SocketAddr,
    _fleet: Fleet,
}

impl Place {
    async fn start(routing: RoutingConfig, replicas: &[ReplicaConfig]) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.expect("a free port"), routing, replicas).await
    }

    async fn start_on(listener: TcpListener, routing: RoutingConfig, replicas: &[ReplicaConfig]) -> Self {
        let config = GatewayConfig { routing, ..GatewayConfig::default() };
        let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
        let fleet = loading.start_fleet(replicas, None).expect("valid addresses");
        let address = listener.local_addr().expect("a bound socket");
        tokio::spawn(gateway.serve(listener, std::future::pending::<()>()));
        Self { address, _fleet: fleet }
    }

    async fn engines(&self) -> Vec<Value> {
        let told = Client::connect(self.address).await.get("/fleet").await.json();
        told["workers"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until so many of its engines are ready.
    async fn until_ready(&self, n: usize) {
        let waiting = async {
            while self.engines().await.iter().filter(|engine| engine["state"] == "ready").count() < n {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so");
    }

    async fn ask(&self, body: &Value, fields: &[&str]) -> Reply {
        let mut client = Client::connect(self.address).await;
        client.send(post_bytes("/v1/completions", &body.to_string(), fields)).await;
        client.reply().await.expect("an answer")
    }
}

fn replica(address: SocketAddr, region: Option<&str>) -> ReplicaConfig {
    ReplicaConfig {
        model: Some("paper".to_owned()),
        region: region.map(str::to_owned),
        ..ReplicaConfig::of_url(format!("http://{address}/v1"))
    }
}

async fn engine(region: Option<&str>) -> Server {
    let mut setup = Setup::default();
    setup.config.routing.region = region.map(str::to_owned);
    Server::start(setup).await
}

async fn stop(mut engine: Server) {
    engine.begin_stop();
    engine.stopped().await;
}

fn made(engine: &Server) -> u64 {
    engine.engine.stats().scheduler.counters.output_tokens
}

/// Each request has another prompt.
fn request() -> Value {
    let prompt: Vec<u32> = (0..20).map(|_| fastrand::u32(..250)).collect();
    completion(json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true}))
}

fn code(reply: &Reply) -> (u16, String) {
    let (status, _, _, code) = reply.error();
    (status, code)
}

#[tokio::test]
async fn a_request_goes_through_two_gateways_and_no_third() {
    let engine = engine(None).await;
    let last = Place::start(RoutingConfig::default(), &[replica(engine.address, None)]).await;
    last.until_ready(1).await;
    let middle = Place::start(RoutingConfig::default(), &[replica(last.address, None)]).await;
    middle.until_ready(1).await;
    assert_eq!(middle.ask(&request(), &[]).await.status, 200);
    for body in [request(), completion(json!({"stream": true}))] {
        let before = made(&engine);
        // As the first of three gateways sends it.
        let forwarded = middle.ask(&body, &[&format!("{HOPS}: 1")]).await;
        assert_eq!(code(&forwarded), (508, "too_many_hops".to_owned()));
        assert_eq!(forwarded.header("x-should-retry"), Some("false"));
        let forwarded = middle.ask(&body, &[&format!("{HOPS}: 2")]).await;
        assert_eq!(code(&forwarded), (508, "too_many_hops".to_owned()));
        assert_eq!(made(&engine), before);
    }
    assert_eq!(
        code(&middle.ask(&request(), &[&format!("{HOPS}: x")]).await),
        (400, "invalid_value".to_owned())
    );
    // Refusals are of the requests: the gateway is as ready as before. A server that computes takes what two gateways have forwarded.
    for _ in 0..10 {
        assert_eq!(middle.ask(&request(), &[&format!("{HOPS}: 1")]).await.status, 508);
    }
    assert_eq!(middle.engines().await[0]["state"], "ready");
    assert_eq!(middle.ask(&request(), &[]).await.status, 200);
    assert_eq!(last.ask(&request(), &[&format!("{HOPS}: 1")]).await.status, 200);
    // A third one is never ready, since its probes count as requests do.
    let first = Place::start(RoutingConfig::default(), &[replica(middle.address, None)]).await;
    let refused = async {
        while !first.engines().await[0]["reason"].as_str().is_some_and(|reason| reason.contains("gateway")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("its probe is refused");
    assert_eq!(code(&first.ask(&request(), &[]).await), (503, "no_healthy_worker".to_owned()));
}

#[tokio::test]
async fn gateways_that_point_at_each_other_help_out_and_do_not_loop() {
    let (of_one, of_two) = (engine(None).await, engine(None).await);
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.expect("a free port") };
    let (for_one, for_two) = (bind().await, bind().await);
    let place = |listener: &TcpListener| listener.local_addr().expect("a bound socket");
    let addresses = [place(&for_one), place(&for_two)];
    let one = [replica(of_one.address, None), replica(addresses[1], None)];
    let two = [replica(of_two.address, None), replica(addresses[0], None)];
    let one = Place::start_on(for_one, RoutingConfig::default(), &one).await;
    let two = Place::start_on(for_two, RoutingConfig::default(), &two).await;
    one.until_ready(2).await;
    two.until_ready(2).await;
    for _ in 0..20 {
        assert_eq!(one.ask(&request(), &[]).await.status, 200);
        assert_eq!(two.ask(&request(), &[]).await.status, 200);
    }
    // One computes for both.
    stop(of_one).await;
    let before = made(&of_two);
    let answers = async {
        while one.ask(&request(), &[]).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answers).await.expect("the other gateway's engine answers");
    assert!(made(&of_two) > before);
    // Nobody computes: each gateway has only the other one left.
    stop(of_two).await;
    for _ in 0..10 {
        for gateway in [&one, &two] {
            let (status, code) = code(&gateway.ask(&request(), &[]).await);
            let is_known = ["no_healthy_worker", "overloaded", "too_many_hops", "upstream_error"]
                .contains(&code.as_str());
            assert!(is_known && status >= 502, "{status} {code}");
        }
    }
}

#[tokio::test]
async fn what_binds_a_request_holds_behind_the_next_gateway() {
    let (of_eu, of_us) = (engine(Some("eu")).await, engine(Some("us")).await);
    let known = |residency| RoutingConfig {
        region: Some("eu".to_owned()),
        regions: vec!["eu".to_owned(), "us".to_owned()],
        residency,
        ..RoutingConfig::default()
    };
    let engines = [replica(of_eu.address, Some("eu")), replica(of_us.address, Some("us"))];
    let second = Place::start(known(Vec::new()), &engines).await;
    second.until_ready(2).await;
    let rule = ResidencyRule { organisation: "*".to_owned(), regions: vec!["eu".to_owned()] };
    let gateway = replica(second.address, Some("eu"));
    let bound = Place::start(known(vec![rule]), std::slice::from_ref(&gateway)).await;
    let free = Place::start(known(Vec::new()), std::slice::from_ref(&gateway)).await;
    bound.until_ready(1).await;
    free.until_ready(1).await;
    // A server that knows better where it is refuses what is not for it.
    let rule = ResidencyRule { organisation: "*".to_owned(), regions: vec!["eu".to_owned()] };
    let misled = Place::start(known(vec![rule]), &[replica(of_us.address, Some("eu"))]).await;
    misled.until_ready(1).await;
    let before = made(&of_us);
    assert_eq!(code(&misled.ask(&request(), &[]).await), (403, "region_not_permitted".to_owned()));
    for _ in 0..10 {
        assert_eq!(bound.ask(&request(), &[]).await.status, 200);
        assert_eq!(free.ask(&request(), &["x-throng-regions: eu"]).await.status, 200);
    }
    // A header narrows a rule, and does not widen it.
    assert_eq!(
        code(&bound.ask(&request(), &["x-throng-regions: us"]).await),
        (403, "region_not_permitted".to_owned())
    );
    let both = bound.ask(&request(), &["x-throng-regions: us, eu"]).await;
    assert_eq!(both.status, 200);
    assert_eq!(
        code(&free.ask(&request(), &["x-throng-regions: a b"]).await),
        (400, "invalid_value".to_owned())
    );
    assert_eq!(
        code(&second.ask(&request(), &["x-throng-regions: mars"]).await),
        (403, "region_not_permitted".to_owned())
    );
    stop(of_eu).await;
    for _ in 0..10 {
        let reply = bound.ask(&request(), &[]).await;
        assert!(reply.status >= 502, "{}", reply.text());
    }
    assert_eq!(made(&of_us), before, "a bound request left its region behind the second gateway");
    assert_eq!(second.ask(&request(), &[]).await.status, 200);
    assert!(made(&of_us) > before);
}
