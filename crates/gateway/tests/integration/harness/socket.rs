//! A client of a WebSocket connection.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::PATIENCE;

/// An open connection to `/v1/responses`.
pub struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Opens a connection with these headers; the status of the refusal, if it is refused.
    pub async fn open(address: SocketAddr, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let mut request = format!("ws://{address}/v1/responses").into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).expect("a value"));
        }
        let stream = TcpStream::connect(address).await.expect("the server accepts");
        let opening = tokio::time::timeout(PATIENCE, client_async(request, stream));
        match opening.await.expect("an answer") {
            Ok((stream, _)) => Ok(Self(stream)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.expect("sent");
    }

    /// Waits for the next message; the code of the close in place of one.
    pub async fn next(&mut self) -> Result<Value, u16> {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a message");
            match next {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map_or(1005, |frame| frame.code.into()));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(1006),
            }
        }
    }

    /// The events of a response up to its end, or an error.
    pub async fn events(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("an event");
            let kind = event["type"].as_str().expect("a type").to_owned();
            events.push(event);
            let ends = ["response.completed", "response.incomplete", "response.failed", "error"];
            if ends.contains(&kind.as_str()) {
                return events;
            }
        }
    }

    /// Asks for a response, and waits for its last event.
    pub async fn ask(&mut self, message: &Value) -> Value {
        self.send(message).await;
        self.events().await.pop().expect("an event")
    }
}
