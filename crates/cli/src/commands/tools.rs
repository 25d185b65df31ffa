//! `throng tools`: lists the tools of servers, calls one, and approves them as they are described now.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use throng_tools::{ListedServer, PinState, Pins, Toolbox, ToolsConfig};

use crate::args::{ServeArgs, ToolArgs, ToolServersArgs, ToolsArgs, ToolsCommand};
use crate::config::Settings;
use crate::process::output;
use crate::usage_error::UsageError;

/// Characters of a description that the list shows.
const MAX_SHOWN_CHARS: usize = 100;

/// Runs the command.
///
/// # Errors
/// When the settings are invalid, a server does not answer or the file of approvals cannot be written.
pub async fn run(arguments: &ToolsArgs) -> Result<()> {
    match &arguments.command {
        ToolsCommand::List(servers) => list(servers).await,
        ToolsCommand::Approve(servers) => approve(servers).await,
        ToolsCommand::Call { server, tool, arguments, config, tools } => {
            let toolbox = Toolbox::open(&settings(config.clone(), tools.clone())?)?;
            match toolbox.call(server, tool, arguments).await {
                Ok(text) => Ok(output::line(text)?),
                Err(failure) => bail!("{server}: {tool}: {failure}"),
            }
        }
    }
}

fn settings(config: Option<PathBuf>, tools: ToolArgs) -> Result<ToolsConfig> {
    let settings = Settings::of(&ServeArgs { config, tools, ..ServeArgs::default() })?.gateway.tools;
    if !settings.is_on() {
        let fault = "no tools are configured: set [gateway.tools] in the file of --config, or --mcp-config";
        return Err(UsageError(fault.to_owned()).into());
    }
    Ok(settings)
}

/// The servers that the command names, with their tools.
async fn listed(arguments: &ToolServersArgs, settings: &ToolsConfig) -> Result<Vec<ListedServer>> {
    let toolbox = Toolbox::open(settings)?;
    let names: Vec<String> = match arguments.servers.is_empty() {
        true => toolbox.names().map(str::to_owned).collect(),
        false => arguments.servers.clone(),
    };
    let mut servers = Vec::new();
    for name in names {
        servers.push(toolbox.list(&name).await?);
    }
    Ok(servers)
}

async fn list(arguments: &ToolServersArgs) -> Result<()> {
    let settings = settings(arguments.config.clone(), arguments.tools.clone())?;
    for server in listed(arguments, &settings).await? {
        output::line(format!("{}", server.name))?;
        for (tool, state) in &server.tools {
            let state = match state {
                PinState::Approved => "approved",
                PinState::Changed => "CHANGED",
                PinState::New => "new",
            };
            let description = tool.description.as_deref().unwrap_or_default();
            let line: String = description.split_whitespace().collect::<Vec<_>>().join(" ");
            let shown: String = line.chars().take(MAX_SHOWN_CHARS).collect();
            output::line(format!("  {state:<9} {:<24} {shown}", tool.name))?;
        }
        for name in &server.gone {
            output::line(format!("  {:<9} {name}", "gone"))?;
        }
    }
    Ok(())
}

async fn approve(arguments: &ToolServersArgs) -> Result<()> {
    let settings = settings(arguments.config.clone(), arguments.tools.clone())?;
    let path =
        settings.pins.clone().context("name the file of approvals: --tool-pins, or gateway.tools.pins")?;
    let servers = listed(arguments, &settings).await?;
    let mut pins = Pins::read(&path)?;
    for server in &servers {
        pins.approve(&server.name, server.tools.iter().map(|(tool, _)| tool));
    }
    pins.write(&path)?;
    for server in &servers {
        let n_new = server.tools.iter().filter(|(_, state)| *state != PinState::Approved).count();
        let n = server.tools.len();
        output::line(format!("{}: {n} tools approved, {n_new} of them new or changed", server.name))?;
    }
    Ok(())
}
