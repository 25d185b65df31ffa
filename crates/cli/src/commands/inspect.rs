//! `throng inspect`: what a model is and what fits.

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use throng_core::batch::BLOCK_TOKENS;
use throng_model::LoadedModel;
use throng_model::config::{DecoderConfig, FeedForward};

use crate::args::InspectArgs;
use crate::config::ModelSection;
use crate::kv_budget::show;
use crate::{memory, running};

/// Runs the command.
///
/// # Errors
/// When the model cannot be opened.
pub fn run(arguments: &InspectArgs) -> Result<()> {
    let section = ModelSection::of(&arguments.model);
    let (_, model) = running::open(&section)?;
    println!("{}", summary(&section, &model)?);
    if arguments.tensors {
        println!("{}", tensors(&model));
    }
    Ok(())
}

fn summary(section: &ModelSection, model: &LoadedModel) -> Result<Table> {
    let config = &*model.config;
    let weights = model.weight_summary();
    let dtype = running::kv_dtype(section, model);
    let block_bytes = model.kv_layout(dtype, 1).bytes().context("the KV block is too large")? as u64;
    let mut table = table();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("model", model.name.clone());
    row("architecture", config.family.to_owned());
    row("parameters", format!("{:.2} M", weights.n_parameters as f64 / 1e6));
    row("layers", config.layers.len().to_string());
    row("hidden size", config.hidden_size.to_string());
    row("heads", heads(config));
    row("feed-forward", feed_forward(config));
    row("vocabulary", config.vocabulary_size.to_string());
    row("context", format!("{} tokens", config.max_sequence_tokens));
    if let Some(window) = config.layers.iter().find_map(|layer| layer.sliding_window) {
        let n = config.layers.iter().filter(|layer| layer.sliding_window.is_some()).count();
        row("sliding window", format!("{window} tokens in {n} layers"));
    }
    row("chat template", if model.chat_template.is_some() { "yes" } else { "no" }.to_owned());
    row("weights", show(weights.n_bytes));
    for (format, n_bytes) in &weights.formats {
        row(&format!("  {}", format.name()), show(*n_bytes));
    }
    let per_token = block_bytes as f64 / BLOCK_TOKENS as f64;
    row("keys and values", format!("{} per token ({})", show(per_token as u64), dtype.name()));
    if let Some(free) = memory::available_bytes() {
        let left = free.saturating_sub(weights.n_bytes);
        let n_tokens = left / block_bytes.max(1) * BLOCK_TOKENS as u64;
        row("free memory", show(free));
        row("fits beside it", format!("{n_tokens} tokens of keys and values"));
    }
    Ok(table)
}

fn heads(config: &DecoderConfig) -> String {
    let (n, n_kv, width) = (config.n_heads, config.n_kv_heads, config.head_dim);
    format!("{n} of {width}, {n_kv} for keys and values")
}

fn feed_forward(config: &DecoderConfig) -> String {
    match config.layers.first().map(|layer| layer.feed_forward) {
        Some(FeedForward::Dense { width }) => width.to_string(),
        Some(FeedForward::Experts { n_experts, width, routing, .. }) => {
            format!("{} of {n_experts} experts of {width}", routing.n_used)
        }
        None => "none".to_owned(),
    }
}

fn tensors(model: &LoadedModel) -> Table {
    let mut table = table();
    table.set_header(["tensor", "shape", "format", "size"]);
    let source = model.tensors();
    for tensor in source.names().into_iter().filter_map(|name| source.tensor(name)) {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let size = show(tensor.data.len() as u64);
        table.add_row([tensor.name, &shape.join(" × "), tensor.format.name(), &size]);
    }
    table
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}
