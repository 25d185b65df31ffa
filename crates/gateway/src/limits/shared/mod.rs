//! Limits over several gateways: requests shares of them from Redis, outside of requests. The decisions are
//! those of `throng_core::fleet::limits::shared`.

mod script;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, TlsCertificates};
use throng_core::fleet::limits::shared::{LeaseReply, LeaseRequest};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use self::script::PoolScript;
use super::RateLimits;
use throng_fleet::Secret;

pub(crate) use self::watch::RedisWatch;

/// Longest time for an answer of Redis, after which the gateway proceeds without it.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// Longest time for a connection to Redis.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Longest interval of reports to Redis.
const INTERVAL: Duration = Duration::from_millis(50);
/// Shortest interval of questions to Redis.
const PAUSE: Duration = Duration::from_millis(2);
/// Time from a failure to the next attempt.
const RETRY: Duration = Duration::from_millis(100);

/// Keeps a gateway's shares of the limits while it runs.
#[derive(Debug)]
pub struct SharedLimits {
    limits: Arc<RateLimits>,
    pool: Arc<tokio::sync::Mutex<RedisPool>>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct RedisPool {
    client: Client,
    connection: Option<MultiplexedConnection>,
    script: PoolScript,
    /// Name of this gateway in the pool of those that share the limits.
    me: String,
}

impl SharedLimits {
    /// Starts sharing the limits. `ca` is a file of certificate authorities for Redis, instead of the
    /// system's. The error does not contain the URL, which may have a password.
    pub(crate) fn start(url: &Secret, ca: Option<&Path>, limits: Arc<RateLimits>) -> Result<Self, String> {
        let client = client(url, ca)?;
        let me = uuid::Uuid::new_v4().simple().to_string();
        let pool = RedisPool { client, connection: None, script: PoolScript::new(), me };
        let pool = Arc::new(tokio::sync::Mutex::new(pool));
        let task = tokio::spawn(follow(limits.clone(), pool.clone()));
        Ok(Self { limits, pool, task })
    }

    /// Returns unused shares. Usage counts until its minute is over.
    pub async fn finish(self) {
        self.task.abort();
        let Ok(mut pool) = timeout(ANSWER_LIMIT, self.pool.lock()).await else { return };
        if let Some(ask) = self.limits.last_question() {
            let _ = pool.exchange(&ask).await;
        }
    }
}

fn client(url: &Secret, ca: Option<&Path>) -> Result<Client, String> {
    // Another part of the process may have chosen the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = match ca {
        None => Client::open(url.reveal()),
        Some(ca) => {
            let pem = std::fs::read(ca).map_err(|error| format!("{}: {error}", ca.display()))?;
            Client::build_with_tls(url.reveal(), TlsCertificates { client_tls: None, root_cert: Some(pem) })
        }
    };
    made.map_err(|error| match error.detail() {
        Some(detail) if !detail.contains("://") => format!("{}: {detail}", error.category()),
        _ => error.category().to_owned(),
    })
}

async fn follow(limits: Arc<RateLimits>, pool: Arc<tokio::sync::Mutex<RedisPool>>) {
    let mut was_answered = None;
    loop {
        let asked_at = Instant::now();
        let Some(ask) = limits.question() else { return };
        let answer = pool.lock().await.exchange(&ask).await;
        let is_answered = answer.is_ok();
        if was_answered != Some(is_answered) {
            match &answer {
                Ok(_) => tracing::info!("Redis answers: limits are shared with the other gateways"),
                Err(fault) => {
                    tracing::warn!(
                        "Redis does not answer ({fault}): this gateway uses its part of the limits"
                    );
                }
            }
            was_answered = Some(is_answered);
        }
        limits.redis.heard(is_answered);
        limits.answered(&ask, answer.ok().flatten().as_ref());
        if is_answered {
            let next = asked_at + INTERVAL;
            tokio::select! {
                () = limits.wanted(), if !limits.has_more_to_say() => {}
                () = std::future::ready(()), if limits.has_more_to_say() => {}
                () = sleep_until(next) => {}
            }
            sleep_until(asked_at + PAUSE).await;
        } else {
            sleep_until(asked_at.max(Instant::now()) + RETRY).await;
        }
    }
}

impl RedisPool {
    /// Sends a question on the open connection, or on a new one.
    async fn exchange(&mut self, ask: &LeaseRequest) -> Result<Option<LeaseReply>, String> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            connection => connection.insert(connect(&self.client).await?),
        };
        let asked = self.script.exchange(connection, &self.me, ask, None);
        let answer = match timeout(ANSWER_LIMIT, asked).await {
            Ok(Ok(told)) => return Ok(told),
            Ok(Err(error)) => without_detail(&error),
            Err(_) => format!("no answer within {} ms", ANSWER_LIMIT.as_millis()),
        };
        // The answer to this question may still come.
        self.connection = None;
        Err(answer)
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        .set_response_timeout(Some(CONNECT_LIMIT));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match timeout(CONNECT_LIMIT, connecting).await {
        Ok(connected) => connected.map_err(|error| without_detail(&error)),
        Err(_) => Err("no connection in time".to_owned()),
    }
}

/// Kind of a failure, without the message of Redis, which may quote secrets.
fn without_detail(error: &RedisError) -> String {
    error.category().to_owned()
}
