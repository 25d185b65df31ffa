//! MCP servers: one connection for all calls, made when it is needed and again when it was lost.

mod connection;
mod result;

use std::sync::Arc;

use tokio::sync::Mutex;

use self::connection::Connection;
pub(crate) use self::connection::{HttpPlace, Place};
use crate::definition::ToolDefinition;
use crate::error::CallError;

/// An MCP server.
#[derive(Debug)]
pub(crate) struct McpServer {
    label: String,
    place: Place,
    connection: Mutex<Option<Arc<Connection>>>,
}

/// Drops the connection of a server that did not list its tools, so that the next request makes another one.
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
    pub fn new(label: &str, place: Place) -> Self {
        Self { label: label.to_owned(), place, connection: Mutex::default() }
    }

    /// Its tools as it describes them.
    ///
    /// # Errors
    /// [`CallError::Http`].
    pub async fn tools(&self) -> Result<Vec<ToolDefinition>, CallError> {
        let mut listing = Listing { server: self, has_ended: false };
        let tools = self.connected().await?.tools().await.map_err(|fault| CallError::http(502, fault))?;
        listing.has_ended = true;
        Ok(tools)
    }

    /// Calls a tool. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(
        &self,
        tool: &str,
        arguments: serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, CallError> {
        let connection = self.connected().await?;
        connection.call(tool, arguments).await
    }

    /// The connection; a new one where there is none or it was lost.
    async fn connected(&self) -> Result<Arc<Connection>, CallError> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let opened = Connection::open(&self.label, &self.place).await;
        let connection = Arc::new(opened.map_err(|fault| CallError::http(502, fault))?);
        *held = Some(connection.clone());
        Ok(connection)
    }
}
