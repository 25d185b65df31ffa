//! KEDA's external scaler: how many workers a model should have, over gRPC on a listener of its own. Does not decide it.

mod grpc;
mod messages;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::stream;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use throng_http::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::grpc::{Answer, Status, read, streaming, unary};
use self::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use crate::app::App;

/// The only metric: the number of replicas itself, so that its target for each replica is 1.
const METRIC: &str = "throng_desired_replicas";
/// Open connections.
const MAX_CONNECTIONS: usize = 64;
/// Calls at a time on one of them.
const MAX_STREAMS: u32 = 64;
/// How often a stream looks whether there should be replicas.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts to listen: a process that hands over listens until it ends.
const BIND_INTERVAL: Duration = Duration::from_millis(250);
/// A client that does not answer a ping within this time is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// For a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The models, once there are some.
type Models = Arc<OnceLock<Arc<App>>>;

/// Answers on `address`, where there is one, encrypted where there is a certificate, until what this returns is dropped.
pub(crate) fn start(address: Option<SocketAddr>, tls: Option<Arc<Tls>>, models: Models) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(address) = address {
        tls.iter().for_each(|tls| drop(tasks.spawn(tls.clone().follow_changes())));
        tasks.spawn(serve(address, tls, models));
    }
    tasks
}

async fn serve(address: SocketAddr, tls: Option<Arc<Tls>>, models: Models) {
    let listener = listen(address).await;
    tracing::info!("KEDA's external scaler is on {address}");
    let (connections, mut tasks) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), JoinSet::new());
    loop {
        let Ok(place) = connections.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, models) = (tls.clone(), models.clone());
                tasks.spawn(async move {
                    let _place = place;
                    match tls {
                        None => answer_on(stream, models).await,
                        Some(tls) => {
                            let greeting = tls.acceptor().accept(stream);
                            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, greeting).await {
                                answer_on(stream, models).await;
                            }
                        }
                    }
                });
            }
            Err(_) => tokio::time::sleep(BIND_INTERVAL).await,
        }
        while tasks.try_join_next().is_some() {}
    }
}

async fn listen(address: SocketAddr) -> TcpListener {
    let mut is_told = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !is_told => {
                tracing::warn!("gateway.autoscale.keda_listen: cannot listen on {address} yet: {error}");
                is_told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_INTERVAL).await;
    }
}

async fn answer_on(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, models: Models) {
    let service = service_fn(move |request| {
        let models = models.clone();
        async move { Ok::<_, Infallible>(answer(request, models).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks the protocol has been told so.
    let _ = connection.await;
}

async fn answer(request: Request<Incoming>, models: Models) -> Answer {
    let (head, body) = request.into_parts();
    match head.uri.path().strip_prefix("/externalscaler.ExternalScaler/") {
        Some("IsActive") => unary(read(body).await.and_then(|of| is_active(&of, &models))),
        Some("StreamIsActive") => match read::<ScaledObjectRef>(body).await {
            Ok(of) => streaming(changes(of, models)),
            Err(status) => unary(Err::<IsActiveResponse, _>(status)),
        },
        Some("GetMetricSpec") => unary(read::<ScaledObjectRef>(body).await.map(|_| metric_spec())),
        Some("GetMetrics") => unary(read(body).await.and_then(|of| metrics(of, &models))),
        _ => unary(Err::<IsActiveResponse, _>(Status::unimplemented("there is no such method"))),
    }
}

fn metric_spec() -> GetMetricSpecResponse {
    let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}

fn is_active(of: &ScaledObjectRef, models: &Models) -> Result<IsActiveResponse, Status> {
    Ok(IsActiveResponse { result: desired(of, models)? > 0 })
}

fn metrics(request: GetMetricsRequest, models: &Models) -> Result<GetMetricsResponse, Status> {
    let of = request.scaled_object_ref.unwrap_or_default();
    let n = desired(&of, models)?;
    let metric_name = if request.metric_name.is_empty() { METRIC.to_owned() } else { request.metric_name };
    let value = MetricValue { metric_name, metric_value: i64::from(n), metric_value_float: f64::from(n) };
    Ok(GetMetricsResponse { metric_values: vec![value] })
}

/// The number of workers that the model of a trigger should have: the one that its metadata names as `model`, or the only one.
fn desired(of: &ScaledObjectRef, models: &Models) -> Result<u32, Status> {
    let decided = models.get().map(|app| app.desired_replicas()).unwrap_or_default();
    match (of.scaler_metadata.get("model"), decided.as_slice()) {
        (_, []) => Err(Status::unavailable("no worker has told its model yet")),
        (None, [(_, n)]) => Ok(*n),
        (None, _) => {
            Err(Status::invalid_argument("there are several models: name one as model in the metadata"))
        }
        (Some(name), all) => {
            let found = all.iter().find(|(model, _)| model == name).map(|(_, n)| *n);
            found.ok_or(Status::not_found("no worker has this model"))
        }
    }
}

/// Whether there should be replicas: now, and whenever that changes.
fn changes(of: ScaledObjectRef, models: Models) -> impl futures_util::Stream<Item = IsActiveResponse> {
    stream::unfold((of, models, None), |(of, models, told)| async move {
        loop {
            match is_active(&of, &models) {
                Ok(now) if told != Some(now) => return Some((now, (of, models, Some(now)))),
                Ok(_) | Err(_) => tokio::time::sleep(WATCH_INTERVAL).await,
            }
        }
    })
}
