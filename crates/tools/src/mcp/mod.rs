//! MCP servers: one connection for all calls, made when it is needed and again when it was lost.

mod connection;
mod result;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use self::connection::Connection;
pub(crate) use self::connection::{HttpPlace, Place};
use crate::definition::ToolDefinition;
use crate::error::{CallError, ToolsError};

/// An MCP server.
#[derive(Debug)]
pub(crate) struct McpServer {
    label: String,
    place: Place,
    timeout: Duration,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl McpServer {
    pub fn new(label: &str, place: Place, timeout: Duration) -> Self {
        Self { label: label.to_owned(), place, timeout, connection: Mutex::default() }
    }

    /// Its tools as it describes them.
    ///
    /// # Errors
    /// [`ToolsError::Unreachable`].
    pub async fn tools(&self) -> Result<Vec<ToolDefinition>, ToolsError> {
        let listing = async {
            let connection = self.connected().await?;
            connection.tools().await.map_err(|fault| (Some(connection), fault))
        };
        let listed = match tokio::time::timeout(self.timeout, listing).await {
            Ok(Ok(tools)) => return Ok(tools),
            Ok(Err((connection, fault))) => {
                self.forget(connection.as_ref()).await;
                fault
            }
            Err(_) => format!("it did not list its tools within {} s", self.timeout.as_secs()),
        };
        Err(ToolsError::unreachable(&self.label, listed))
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
        let unreachable = |(_, fault): (_, String)| CallError::http(502, fault);
        let connection = self.connected().await.map_err(unreachable)?;
        let result = connection.call(tool, arguments).await;
        if connection.is_closed() {
            self.forget(Some(&connection)).await;
        }
        result
    }

    async fn connected(&self) -> Result<Arc<Connection>, (Option<Arc<Connection>>, String)> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let opened = Connection::open(&self.label, &self.place).await;
        let connection = Arc::new(opened.map_err(|fault| (None, fault))?);
        *held = Some(connection.clone());
        Ok(connection)
    }

    /// Drops a connection that failed, unless another one has taken its place.
    async fn forget(&self, failed: Option<&Arc<Connection>>) {
        let mut held = self.connection.lock().await;
        if held.as_ref().zip(failed).is_some_and(|(held, failed)| Arc::ptr_eq(held, failed)) {
            *held = None;
        }
    }
}
