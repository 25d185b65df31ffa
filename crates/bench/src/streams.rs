//! Many streams that are open at a time, and the memory of the serving process. Does not know the server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::load::{self, Target, find};

/// A stream whose first token takes longer has failed.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// Number of streams that are waiting for their first token at a time.
const MAX_OPENING: usize = 512;
/// More tokens than any stream gets while the streams are opened.
const MAX_TOKENS: u32 = 900;
/// Time for which all streams are open before the memory is read.
const OPEN_TIME: Duration = Duration::from_secs(5);

/// Memory that the streams took.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct OpenStreams {
    /// Number of streams that were open at the same time.
    pub n_open: usize,
    /// Memory of the process (RSS) before the first stream.
    pub bytes_before: u64,
    /// Bytes of memory while all streams were open.
    pub bytes_open: u64,
}

/// Opens `n` streams at a server with this process id, and reads them while its memory is measured.
///
/// # Errors
/// When a stream is refused or ends before its first token, and when the memory cannot be read from `/proc`
/// (Linux only).
pub async fn measure(n: usize, target: &Target, process_id: u32) -> Result<OpenStreams> {
    let bytes_before = resident_bytes(process_id)?;
    let request: Arc<[u8]> = load::stream_request(target, MAX_TOKENS).into();
    let (slots, mut streams, mut opened) =
        (Arc::new(Semaphore::new(MAX_OPENING)), JoinSet::new(), Vec::with_capacity(n));
    for _ in 0..n {
        let (slots, request, port) = (slots.clone(), request.clone(), target.port);
        let (first_token, waiting) = oneshot::channel();
        opened.push(waiting);
        streams.spawn(async move {
            let slot = slots.acquire_owned().await?;
            let mut stream = tokio::time::timeout(OPEN_LIMIT, open(port, &request)).await??;
            drop(slot);
            let _ = first_token.send(());
            let mut bytes = [0; 1024];
            while stream.read(&mut bytes).await? > 0 {}
            anyhow::Ok(())
        });
    }
    for waiting in opened {
        if waiting.await.is_err() {
            let ended = streams.join_next().await.context("no stream")?;
            return Err(ended?.err().unwrap_or_else(|| anyhow::anyhow!("a stream ended too early")));
        }
    }
    tokio::time::sleep(OPEN_TIME).await;
    let bytes_open = resident_bytes(process_id)?;
    if let Some(ended) = streams.try_join_next() {
        ended??;
        bail!("a stream ended before all were open");
    }
    Ok(OpenStreams { n_open: n, bytes_before, bytes_open })
}

/// Asks for a stream and reads it to its first event.
async fn open(port: u16, request: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request).await?;
    let mut answer = Vec::with_capacity(1024);
    while find(&answer, b"\ndata: ").is_none() {
        if stream.read_buf(&mut answer).await? == 0 {
            bail!("the stream ended before its first token: {}", String::from_utf8_lossy(&answer));
        }
        let is_good = answer.len() < 12 || answer.starts_with(b"HTTP/1.1 200");
        if !is_good {
            bail!("the stream was refused: {}", String::from_utf8_lossy(&answer));
        }
    }
    Ok(stream)
}

fn resident_bytes(process_id: u32) -> Result<u64> {
    let path = format!("/proc/{process_id}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no VmRSS"))? * 1024)
}
