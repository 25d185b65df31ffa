//! A gateway whose only upstream engine is a test server.

use std::net::SocketAddr;
use std::time::Duration;

use throng_gateway::{Fleet, Gateway, GatewayConfig, ReplicaConfig};
use tokio::net::TcpListener;

use super::{Client, PATIENCE, Server};

/// A gateway that forwards requests for the model `paper`.
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    _fleet: Fleet,
}

impl Front {
    /// Starts one over a server, and waits until that has answered a probe.
    pub async fn of(server: &Server) -> Self {
        let config = GatewayConfig::default();
        let (gateway, loading) = Gateway::loading(config, Default::default()).expect("valid");
        let engine = ReplicaConfig {
            model: Some("paper".to_owned()),
            names: vec!["paper".to_owned()],
            ..ReplicaConfig::of_url(format!("http://{}/v1", server.address))
        };
        let fleet = loading.start_fleet(&[engine], None).expect("valid addresses");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        tokio::spawn(gateway.serve(listener, std::future::pending::<()>()));
        let front = Self { address, _fleet: fleet };
        let mut client = front.connect().await;
        let ready = async {
            while client.get("/fleet").await.json()["workers"][0]["state"] != "ready" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("the engine answers");
        front
    }

    /// A client of it.
    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }
}

impl Server {
    /// A client of it, and one of a gateway whose engine it is, which lives as long as that.
    pub async fn directly_and_through_a_gateway(&self) -> [(Client, Option<Front>); 2] {
        let front = Front::of(self).await;
        [(self.connect().await, None), (front.connect().await, Some(front))]
    }
}
