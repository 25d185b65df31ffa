//! Chat completions at a steady rate over kept connections, and the duration of each. Does not know the
//! server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// A request that takes longer has failed.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer that is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Load to send.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests per second, over all connections.
    pub rate: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Number of connections.
    pub n_connections: usize,
}

/// The server under load.
#[derive(Debug, Clone)]
pub struct Target {
    /// Port on this machine.
    pub port: u16,
    /// API key that the server requires, if any.
    pub key: Option<String>,
}

/// Durations of requests, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measured {
    /// Number of requests that were answered with 200.
    pub n_answered: usize,
    /// Number of requests without an answer.
    pub n_failed: u64,
    /// Reached rate of requests.
    pub requests_per_s: f64,
    /// Median of the times.
    pub p50_us: f64,
    /// 99th percentile of the times.
    pub p99_us: f64,
    /// Longest of the times.
    pub max_us: f64,
}

/// Sends requests when they are due. A request's time counts from when it was due if all connections were
/// busy then, else from when it was sent: the timer's own delay is not the server's.
///
/// # Errors
/// When nothing is answered.
pub async fn run(load: &Load, target: &Target) -> Result<Measured> {
    let request: Arc<[u8]> = request(target).into();
    let (next, n_failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    let due = {
        let load = *load;
        move |number: u64| {
            let after = number as f64 / load.rate;
            (after < load.seconds).then(|| begun + Duration::from_secs_f64(after))
        }
    };
    let mut tasks = Vec::new();
    for _ in 0..load.n_connections.max(1) {
        let (request, next, n_failed, port) = (request.clone(), next.clone(), n_failed.clone(), target.port);
        tasks.push(tokio::spawn(async move {
            let (mut connection, mut times) = (None, Vec::new());
            while let Some(due) = due(next.fetch_add(1, Ordering::Relaxed)) {
                let is_late = Instant::now() > due;
                tokio::time::sleep_until(due).await;
                let from = if is_late { due } else { Instant::now() };
                match tokio::time::timeout(REQUEST_LIMIT, ask(&mut connection, port, &request)).await {
                    Ok(Ok(200)) => times.push(from.elapsed()),
                    _ => {
                        connection = None;
                        n_failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            times
        }));
    }
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await?);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let n_failed = n_failed.load(Ordering::Relaxed);
    times.sort_unstable();
    let Some(longest) = times.last() else { bail!("no request was answered with 200") };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let percentile = |p: usize| us(times[(times.len() * p / 100).min(times.len() - 1)]);
    Ok(Measured {
        n_answered: times.len(),
        n_failed,
        requests_per_s: times.len() as f64 / seconds,
        p50_us: percentile(50),
        p99_us: percentile(99),
        max_us: us(*longest),
    })
}

/// Whether a request is answered with 200.
pub async fn answers(target: &Target) -> bool {
    let request = request(target);
    let asked = tokio::time::timeout(REQUEST_LIMIT, async { ask(&mut None, target.port, &request).await });
    matches!(asked.await, Ok(Ok(200)))
}

/// A request that is answered at once.
fn request(target: &Target) -> Vec<u8> {
    let question = "Which of the many people in this crowd asked first, and who of them has waited for the longest time? ".repeat(4);
    post(
        target,
        &serde_json::json!({
            "model": crate::paper::MODEL,
            "messages": [{"role": "system", "content": "You answer briefly."}, {"role": "user", "content": question}],
            "max_tokens": 1,
            "temperature": 0,
        }),
    )
}

/// A request for a stream.
pub fn stream_request(target: &Target, max_tokens: u32) -> Vec<u8> {
    post(
        target,
        &serde_json::json!({
            "model": crate::paper::MODEL,
            "messages": [{"role": "user", "content": "Who of this crowd has waited for the longest time?"}],
            "max_tokens": max_tokens,
            "ignore_eos": true,
            "stream": true,
        }),
    )
}

fn post(target: &Target, body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    let key = target.key.as_deref().unwrap_or("none");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n",
        target.port,
        body.len()
    );
    (head + &body).into_bytes()
}

/// Sends a request on the connection, or on a new one, and reads the answer. Returns its status.
async fn ask(connection: &mut Option<TcpStream>, port: u16, request: &[u8]) -> Result<u16> {
    let stream = match connection {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            connection.insert(stream)
        }
    };
    stream.write_all(request).await?;
    let mut answer = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut answer).await? == 0 || answer.len() > MAX_ANSWER_BYTES {
            bail!("the answer is broken off or too large");
        }
        if let Some(status) = whole_answer(&answer) {
            return Ok(status);
        }
    }
}

/// The status of an answer that has arrived as a whole.
fn whole_answer(answer: &[u8]) -> Option<u16> {
    let head_end = find(answer, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..head_end]).ok()?.to_ascii_lowercase();
    let body = &answer[head_end + 4..];
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_whole = match field("content-length:") {
        Some(length) => body.len() >= length.parse().ok()?,
        None => body.ends_with(b"0\r\n\r\n"),
    };
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    is_whole.then_some(status)
}

/// Position of the first `part` in `bytes`.
pub fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::whole_answer;

    #[test]
    fn answers_are_whole_at_their_end_only() {
        let counted = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        let chunked = b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        for (answer, status) in [(&counted[..], 200), (&chunked[..], 503)] {
            for n in 0..answer.len() {
                assert_eq!(whole_answer(&answer[..n]), None, "{n}");
            }
            assert_eq!(whole_answer(answer), Some(status));
        }
    }
}
