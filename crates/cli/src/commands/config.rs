//! `throng config check`: reads a configuration file as a server does, and checks that the files that it
//! names exist. Loads no model and listens on no port; it does try the sandboxes of tool servers.

use std::path::Path;

use anyhow::Result;
use throng_gateway::{Fleet, Gateway};

use super::serve::process_facts;
use crate::args::{ConfigArgs, ConfigCommand, ServeArgs, is_path};
use crate::config::{ModelSection, Settings, listed};
use crate::process::output;
use crate::source::BUILT_IN;
use crate::usage_error::UsageError;
use throng_hub::objects;

/// Runs the command.
///
/// # Errors
/// A [`UsageError`] with every mistake.
pub fn run(arguments: &ConfigArgs) -> Result<()> {
    let ConfigCommand::Check { file } = &arguments.command;
    let settings = Settings::of(&ServeArgs { config: Some(file.clone()), ..ServeArgs::default() })?;
    let mut faults = absent_files(&settings);
    let mut gateway = settings.gateway;
    // A server creates this directory itself.
    gateway.response_cache.directory = None;
    if let Err(fault) = Gateway::loading(gateway, process_facts("none".to_owned())) {
        faults.push(fault.to_string());
    }
    if let Err(fault) = Fleet::check(&settings.replicas, settings.worker.token.as_ref()) {
        faults.push(fault.to_string());
    }
    let place = file.display().to_string();
    match listed(&place, &faults) {
        None => Ok(output::line(format!("{place}: no mistakes"))?),
        Some(told) => Err(UsageError(told).into()),
    }
}

/// Files that the settings name and that do not exist.
fn absent_files(settings: &Settings) -> Vec<String> {
    let mut faults = Vec::new();
    let mut look = |setting: &str, path: Option<&Path>| {
        if let Some(path) = path
            && let Err(error) = std::fs::metadata(path)
        {
            faults.push(format!("{setting} = {path:?}: {error}"));
        }
    };
    let ModelSection { model, tokenizer, chat_template, .. } = &settings.model;
    look("model.model", model.as_deref().and_then(local));
    look("model.tokenizer", tokenizer.as_deref());
    look("model.chat_template", chat_template.as_deref());
    look("engine.speculation.model", settings.engine.speculation.model.as_deref().and_then(local));
    for module in &settings.adapters.modules {
        look("adapters.modules", local(&module.path));
    }
    for model in &settings.on_demand {
        look("on_demand.model", local(&model.model));
    }
    for replica in &settings.replicas {
        look("replica.ca", replica.ca.as_deref());
        look("replica.certificate", replica.certificate.as_deref());
        look("replica.key", replica.key.as_deref());
    }
    faults
}

/// The path of a model on this machine; `None` for a hub id or URL.
fn local(model: &str) -> Option<&Path> {
    let is_built_in = BUILT_IN.iter().any(|built_in| built_in.name == model);
    (is_path(model) && !is_built_in && !objects::is_url(model)).then(|| Path::new(model))
}
