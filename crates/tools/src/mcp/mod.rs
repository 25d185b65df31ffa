//! MCP servers: one connection for all calls, made when it is needed and again when it was lost.

mod connection;
mod oauth;
mod result;

use std::sync::Arc;

use throng_api::answer::CallFailure;
use throng_api::responses::ToolDefinition;
use tokio::sync::Mutex;

use self::connection::{CallError, Connection};
pub(crate) use self::connection::{HttpPlace, Place};
pub(crate) use self::oauth::ClientCredentials;

/// Maximum characters of the reason why a call has no answer.
const MAX_FAULT_CHARS: usize = 400;

/// An MCP server.
#[derive(Debug)]
pub(crate) struct McpServer {
    label: String,
    place: Place,
    /// Status of calls that the server does not answer.
    fault_status: u16,
    connection: Mutex<Option<Arc<Connection>>>,
}

/// Drops the connection of a server that did not list its tools, so that the next request opens another one.
struct Listing<'a> {
    server: &'a McpServer,
    has_ended: bool,
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        if let (false, Ok(mut held)) = (self.has_ended, self.server.connection.try_lock()) {
            *held = None;
        }
    }
}

impl McpServer {
    /// Creates a server whose unanswered calls fail with `fault_status`.
    pub fn new(label: &str, place: Place, fault_status: u16) -> Self {
        Self { label: label.to_owned(), place, fault_status, connection: Mutex::default() }
    }

    /// Tools of the server with the server's descriptions.
    ///
    /// # Errors
    /// [`CallFailure::Unanswered`].
    pub async fn tools(&self) -> Result<Vec<ToolDefinition>, CallFailure> {
        let mut listing = Listing { server: self, has_ended: false };
        let tools = self.connected().await?.tools().await.map_err(|fault| self.unanswered(fault))?;
        listing.has_ended = true;
        Ok(tools)
    }

    /// Calls a tool. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`CallFailure`].
    pub async fn call(
        &self,
        tool: &str,
        arguments: serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, CallFailure> {
        let connection = self.connected().await?;
        connection.call(tool, arguments).await.map_err(|error| match error {
            CallError::Failed(failure) => failure,
            CallError::Unanswered(fault) => {
                connection.doubt();
                self.unanswered(fault)
            }
        })
    }

    /// The failure of a call without an answer. It does not name the URL, which may hold secrets of
    /// the operator.
    fn unanswered(&self, mut fault: String) -> CallFailure {
        if let Place::Http(place) = &self.place {
            fault = fault.replace(&place.url, "its address");
        }
        let bounded: String = fault.chars().take(MAX_FAULT_CHARS).collect();
        CallFailure::unanswered(self.fault_status, bounded.trim_end_matches([' ', ':', '.']))
    }

    /// The connection; a new one if there is none or it was lost.
    async fn connected(&self) -> Result<Arc<Connection>, CallFailure> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let opened = Connection::open(&self.label, &self.place).await;
        let connection = Arc::new(opened.map_err(|fault| self.unanswered(fault))?);
        *held = Some(connection.clone());
        Ok(connection)
    }
}
