//! A server that answers every request at once with the same JSON: the baseline of a request's time without a
//! gateway, and the server behind other routers. Does not know the content of requests.

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::load::find;
use crate::paper::MODEL;
use throng_cli::process::output;

/// Maximum bytes of a head and its body together.
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Serves until it is ended; prints its port first.
///
/// # Errors
/// When there is no socket.
pub async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    output::line(listener.local_addr()?.port())?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream));
    }
}

/// Answers all requests of a connection.
async fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let (chat, other) = (response(&chat_completion()), response(&other()));
    let mut received = Vec::with_capacity(8192);
    loop {
        if let Some(n_bytes) = whole_request(&received) {
            stream.write_all(if received.starts_with(b"POST") { &chat } else { &other }).await?;
            received.drain(..n_bytes);
        } else if stream.read_buf(&mut received).await? == 0 || received.len() > MAX_REQUEST_BYTES {
            return Ok(());
        }
    }
}

/// The bytes of the first request, if it has arrived as a whole.
fn whole_request(received: &[u8]) -> Option<usize> {
    let head_end = find(received, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&received[..head_end]).ok()?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).map(str::trim);
    let n_bytes = match length {
        Some(length) => head_end + 4 + length.parse::<usize>().ok()?,
        None if head.contains("transfer-encoding:") => {
            head_end + 4 + find(&received[head_end + 4..], b"0\r\n\r\n")? + 5
        }
        None => head_end + 4,
    };
    (received.len() >= n_bytes).then_some(n_bytes)
}

fn response(body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn chat_completion() -> serde_json::Value {
    serde_json::json!({
        "id": "chatcmpl-00000000000000000000000000000000",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": "a"},
            "logprobs": null,
            "finish_reason": "length",
        }],
        "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
    })
}

/// Answers questions of routers about their servers: their models and whether they are well.
fn other() -> serde_json::Value {
    serde_json::json!({
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "paper"}],
        "status": "ok",
        "model_path": MODEL,
    })
}

#[cfg(test)]
mod tests {
    use super::whole_request;

    #[test]
    fn requests_are_whole_at_their_end_only() {
        for request in [
            &b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ] {
            for n in 0..request.len() {
                assert_eq!(whole_request(&request[..n]), None, "{n}");
            }
            let two = [request, request].concat();
            assert_eq!(whole_request(&two), Some(request.len()));
        }
    }
}
