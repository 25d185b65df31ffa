//! `throng tools`: lists the tools of servers, calls one, and approves them as they are described now.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use throng_tools::{ListedServer, PinState, Pins, ToolDefinition, Toolbox, ToolsConfig};

use crate::args::{ServeArgs, ToolArgs, ToolServersArgs, ToolsArgs, ToolsCommand};
use crate::config::Settings;
use crate::process::line_queue::escaped;
use crate::process::output;
use crate::usage_error::UsageError;

/// Indent of a description below the name of its tool.
const INDENT: &str = "            ";

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
        let note = if server.is_pinned { "" } else { " (described by the operator, needs no approval)" };
        output::line(format!("{}{note}", server.name))?;
        for (tool, state) in &server.tools {
            show(tool, *state)?;
        }
        for name in &server.gone {
            output::line(format!("  {:<9} {}", "gone", escaped(name)))?;
        }
    }
    Ok(())
}

/// Prints everything of a tool that an approval covers. Servers choose these texts, so none of their
/// characters can change how the terminal shows them.
fn show(tool: &ToolDefinition, state: PinState) -> Result<()> {
    let state = match state {
        PinState::Approved => "approved",
        PinState::Changed => "CHANGED",
        PinState::New => "new",
    };
    output::line(format!("  {state:<9} {}", escaped(&tool.name)))?;
    for line in tool.description.iter().flat_map(|text| text.lines()) {
        output::line(format!("{INDENT}{}", escaped(line)))?;
    }
    output::line(format!("{INDENT}arguments: {}", escaped(&tool.input_schema.to_string())))?;
    if let Some(annotations) = &tool.annotations {
        output::line(format!("{INDENT}annotations: {}", escaped(&annotations.to_string())))?;
    }
    Ok(())
}

async fn approve(arguments: &ToolServersArgs) -> Result<()> {
    let settings = settings(arguments.config.clone(), arguments.tools.clone())?;
    let path =
        settings.pins.clone().context("name the file of approvals: --tool-pins, or gateway.tools.pins")?;
    let mut servers = listed(arguments, &settings).await?;
    servers.retain(|server| server.is_pinned);
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
