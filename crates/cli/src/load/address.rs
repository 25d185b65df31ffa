//! Addresses of OpenAI-compatible servers, and their lists of models.

use anyhow::{Context, Result};
use serde_json::Value;

/// A server's address without `/v1`; `http://` where it names no scheme.
pub fn server_root(url: &str) -> String {
    let address = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let address = address.trim_end_matches('/');
    address.strip_suffix("/v1").unwrap_or(address).to_owned()
}

/// The first model that a server lists.
///
/// # Errors
/// When the list is empty.
pub fn first_model(list: &Value) -> Result<String> {
    let id = list["data"][0]["id"].as_str();
    Ok(id.context("the server has no model")?.to_owned())
}
