//! MCP servers from a file in the form of Cursor's `mcp.json`, which other clients read too.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use throng_core::secret::Secret;

use crate::config::{Secrets, ServerConfig};
use crate::error::ToolsError;

/// Maximum bytes of the file of servers.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct File {
    #[serde(rename = "mcpServers", default)]
    servers: BTreeMap<String, Entry>,
}

/// A server of the file; keys of other clients are ignored.
#[derive(Deserialize)]
struct Entry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    sandbox: Option<String>,
    #[serde(default)]
    disabled: bool,
}

/// Reads the servers of a file. `sandbox` is used for commands that name none.
///
/// # Errors
/// [`ToolsError::File`].
pub(crate) fn read(path: &Path, sandbox: Option<&str>) -> Result<Vec<ServerConfig>, ToolsError> {
    let fault = |fault: String| ToolsError::File { path: path.display().to_string(), fault };
    let metadata = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?;
    if metadata.len() > MAX_FILE_BYTES {
        return Err(fault(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    servers_of(&text, sandbox, &|name| std::env::var(name).ok()).map_err(fault)
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

fn servers_of(
    text: &str,
    sandbox: Option<&str>,
    variable: Variable<'_>,
) -> Result<Vec<ServerConfig>, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let entries = file.servers.into_iter().filter(|(_, entry)| !entry.disabled);
    entries
        .map(|(name, entry)| {
            server(&name, entry, sandbox, variable).map_err(|fault| format!("{name}: {fault}"))
        })
        .collect()
}

fn server(
    name: &str,
    entry: Entry,
    sandbox: Option<&str>,
    variable: Variable<'_>,
) -> Result<ServerConfig, String> {
    let filled = |text: String| fill(&text, variable);
    let secrets = |pairs: BTreeMap<String, String>| {
        let secret = |(name, value)| Ok((name, Secret::new(filled(value)?)));
        pairs.into_iter().map(secret).collect::<Result<Secrets, String>>()
    };
    let sandbox = entry.command.is_some().then(|| entry.sandbox.as_deref().or(sandbox)).flatten();
    Ok(ServerConfig {
        name: name.to_owned(),
        sandbox: sandbox.map(str::to_owned),
        command: entry.command.map(filled).transpose()?,
        args: entry.args.into_iter().map(filled).collect::<Result<_, _>>()?,
        env: secrets(entry.env)?,
        url: entry.url.map(filled).transpose()?,
        headers: secrets(entry.headers)?,
        ..ServerConfig::default()
    })
}

/// Puts environment variables in the places of `${env:NAME}`.
fn fill(text: &str, variable: Variable<'_>) -> Result<String, String> {
    let mut parts = text.split("${env:");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').ok_or("'${env:' without '}'")?;
        filled.push_str(&variable(name).ok_or_else(|| format!("the variable {name} is not set"))?);
        filled.push_str(rest);
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_other_clients_are_read() {
        let text = r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "server-files", "${env:HOME}/data"], "env": {"A": "1"}},
            "off": {"command": "x", "disabled": true},
            "search": {"type": "http", "url": "https://mcp.example.org", "headers": {"Authorization": "Bearer ${env:KEY}"}}
        }}"#;
        let variable = |name: &str| Some(format!("<{name}>"));
        let servers = servers_of(text, Some("bwrap"), &variable).expect("servers");
        assert_eq!(
            servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(),
            ["files", "search"]
        );
        assert_eq!(servers[0].args[2], "<HOME>/data");
        assert_eq!(servers[0].sandbox.as_deref(), Some("bwrap"));
        assert_eq!(servers[1].sandbox, None);
        assert_eq!(servers[1].headers["Authorization"].reveal(), "Bearer <KEY>");
        let shown = format!("{:?}{}", servers[1], serde_json::to_string(&servers[1]).expect("JSON"));
        assert!(!shown.contains("<KEY>"), "{shown}");
    }

    #[test]
    fn a_missing_variable_is_named() {
        let text = r#"{"mcpServers": {"a": {"url": "https://${env:NOWHERE}"}}}"#;
        assert_eq!(servers_of(text, None, &|_| None), Err("a: the variable NOWHERE is not set".to_owned()));
    }
}
