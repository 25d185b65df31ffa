//! `throng inspect`: prints a model's architecture and sizes, how many tokens fit into memory, and the
//! compute path of each tensor.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use throng_checkpoint::quantized::Encoding;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_kernels::Isa;
use throng_kernels::quant::{ComputePath, Format};
use throng_model::LoadedModel;
use throng_model::arch::known::{KnownModel, Support, collected, known_models};
use throng_model::config::{AttentionConfig, DecoderConfig, FeedForward, HybridConfig, LatentConfig, Mixer};
use throng_model::state_cache::StateLayout;
use throng_model::tensor_check::groups;
use throng_model::tensor_role::TensorRole;

use crate::args::InspectArgs;
use crate::config::{EngineSection, ModelSection};
use crate::kv_budget::show;
use crate::process::{memory, output};
use crate::running;

/// Sizes of images whose tokens are shown, width and height in pixels.
const IMAGE_SIZES: [(u32, u32); 3] = [(512, 512), (1024, 1024), (1920, 1080)];

/// Runs the command.
///
/// # Errors
/// When the model cannot be opened or `throng serve` would refuse it.
pub fn run(arguments: &InspectArgs) -> Result<()> {
    if arguments.known {
        output::line(known())?;
        return Ok(());
    }
    let section = ModelSection::of(&arguments.model);
    let (_, model) = running::open(&section)?;
    output::line(summary(&section, &model)?)?;
    if arguments.tensors {
        output::line(tensors(&model, isa(&section)))?;
    }
    running::check(&section, &EngineSection::of(&arguments.model), &model)
        .context("throng serve would not start")
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
    if let Some(window) = sliding_window(config) {
        row("sliding window", window);
    }
    about_images(model).into_iter().for_each(|(name, value)| row(name, value));
    row("chat template", chat_templates(model));
    if !model.unread_keys().is_empty() {
        row("keys not read", model.unread_keys().join(", "));
    }
    if !model.unread_tensors().is_empty() {
        row("tensors not read", model.unread_tensors().len().to_string());
        for (names, n) in groups(model.unread_tensors()) {
            row(&format!("  {n}"), names);
        }
    }
    let stored_bytes = model.stored_summary().n_bytes;
    row(
        "weights",
        match section.quantize {
            None => show(weights.n_bytes),
            Some(_) => {
                format!("{} when quantized, {} in the file", show(weights.n_bytes), show(stored_bytes))
            }
        },
    );
    for (format, n_bytes) in &weights.formats {
        row(&format!("  {}", format.name()), show(*n_bytes));
    }
    for Encoding { name, held, n_stored_bytes, .. } in model.tensors().encodings() {
        let held = match held {
            Format::F32 => "computed exactly, as BF16 or F32".to_owned(),
            Format::FP8 => "held as FP8 or MXFP8 where that is exact, else as BF16 or F32".to_owned(),
            held => format!("held as {} where that is exact, else as F32", held.name()),
        };
        row("stored as", format!("{name}, {}: {held}", show(n_stored_bytes)));
    }
    for (path, n_bytes) in paths(model, isa(section)) {
        row(&format!("  {path}"), show(n_bytes));
    }
    row("instructions", instructions(isa(section)));
    let per_token = block_bytes as f64 / BLOCK_TOKENS as f64;
    row("keys and values", format!("{} per token ({})", show(per_token as u64), dtype.name()));
    if config.is_recurrent() {
        let states = StateLayout::new(config, 1);
        let n_layers = states.layers.iter().flatten().count();
        let n_bytes = states.bytes().context("the recurrent state is too large")? as u64;
        row("recurrent state", format!("{} per sequence, in {n_layers} layers", show(n_bytes)));
    }
    if let Some(free) = memory::available_bytes() {
        let left = free.saturating_sub(weights.n_bytes);
        let n_tokens = left / block_bytes.max(1) * BLOCK_TOKENS as u64;
        row("free memory", show(free));
        row("fits beside it", format!("{n_tokens} tokens of keys and values"));
    }
    Ok(table)
}

/// The window of the layers that have one.
fn sliding_window(config: &DecoderConfig) -> Option<String> {
    let mut windows = config.attentions().filter_map(|attention| attention.sliding_window);
    let window = windows.next()?;
    Some(format!("{window} tokens in {} layers", 1 + windows.count()))
}

/// The names of the instruction sets that are used.
fn instructions(isa: Isa) -> String {
    match isa {
        Isa::SCALAR => "scalar: correct and slow".to_owned(),
        isa => isa.name().to_owned(),
    }
}

/// The vision part, if there is one, with the tokens of images of usual sizes, or the reason why images are
/// refused.
fn about_images(model: &LoadedModel) -> Vec<(&'static str, String)> {
    let Some(media) = model.media() else { return Vec::new() };
    let told =
        |(n_tokens, (width, height)): (u32, &(u32, u32))| format!("{n_tokens} for {width} × {height} pixels");
    let tokens = match running::images::tokens_of(model, &IMAGE_SIZES) {
        Ok(tokens) => tokens.into_iter().zip(&IMAGE_SIZES).map(told).collect::<Vec<_>>().join(", "),
        Err(reason) => format!("images are refused: {reason:#}"),
    };
    vec![("images", media.describe()), ("tokens of an image", tokens)]
}

/// The ISA of the matrix products.
fn isa(section: &ModelSection) -> Isa {
    section.isa.unwrap_or_else(Isa::best)
}

/// `yes`, with the names of the templates for requests with tools or documents.
fn chat_templates(model: &LoadedModel) -> String {
    let others = model.chat_templates.keys().filter(|name| *name != "default").cloned().collect::<Vec<_>>();
    match (model.chat_templates.is_empty(), others.is_empty()) {
        (true, _) => "no".to_owned(),
        (false, true) => "yes".to_owned(),
        (false, false) => format!("yes, and {}", others.join(", ")),
    }
}

fn heads(config: &DecoderConfig) -> String {
    let mut shapes: Vec<String> = Vec::new();
    for layer in &config.layers {
        let shape = match &layer.mixer {
            Mixer::Attention(AttentionConfig { n_heads, n_kv_heads, head_dim, .. })
            | Mixer::Hybrid(HybridConfig {
                attention: AttentionConfig { n_heads, n_kv_heads, head_dim, .. },
                ..
            }) => {
                format!("{n_heads} of {head_dim}, {n_kv_heads} for keys and values")
            }
            Mixer::Latent(LatentConfig { n_heads, rank, rope_dim, .. }) => {
                format!("{n_heads} over one vector of {rank} and a key of {rope_dim}")
            }
            _ => continue,
        };
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes.join("; ")
}

fn feed_forward(config: &DecoderConfig) -> String {
    match config.layers.first().map(|layer| layer.feed_forward) {
        Some(FeedForward::Dense { width }) => width.to_string(),
        Some(FeedForward::Experts { n_experts, width, routing, .. }) => {
            format!("{} of {n_experts} experts of {width}", routing.n_used)
        }
        Some(FeedForward::None) | None => "none".to_owned(),
    }
}

/// A table of published models; for those that do not load, with the reason.
fn known() -> String {
    let mut table = table();
    for KnownModel { repository, source, support, vision } in known_models() {
        let sees = vision.is_some_and(|vision| {
            throng_vision::is_known(&vision.model_type, vision.encoder_type.as_deref())
        });
        let found = match support {
            Support::Whole => "supported".to_owned(),
            Support::TextOnly if sees => "text and images".to_owned(),
            Support::TextOnly => "text part only".to_owned(),
            // The list of supported features would make the cell too long.
            Support::None(error) => {
                error.to_string().split(" (supported: ").next().unwrap_or_default().to_owned()
            }
        };
        let taken_from = source.trim_start_matches("https://github.com/").to_owned();
        table.add_row([repository, found, taken_from]);
    }
    format!("by configurations as they were published, collected on {}:\n{table}", collected())
}

fn tensors(model: &LoadedModel, isa: Isa) -> Table {
    let mut table = table();
    table.set_header(["tensor", "shape", "format", "size", "path"]);
    let (source, uses) = (model.tensors(), model.tensor_roles());
    for tensor in source.names().into_iter().filter_map(|name| source.tensor(name)) {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let size = show(tensor.data.len() as u64);
        let held = model.held_format(&tensor).name();
        let format = match tensor.format.name() {
            stored if stored == held => stored.to_owned(),
            stored => format!("{stored} → {held}"),
        };
        let path = path(uses.get(tensor.name).copied(), model.held_format(&tensor), isa);
        table.add_row([tensor.name, &shape.join(" × "), &format, &size, &path]);
    }
    for name in source.encoded_names() {
        let Some(weight) = source.encoded_weight(&name) else { continue };
        let held = model.held_encoded(weight.held);
        let codes = source.encoded_parts(&name).into_iter().max_by_key(|(_, part)| part.data.len());
        let shape = codes.map(|(_, codes)| codes.shape.iter().map(usize::to_string).collect::<Vec<_>>());
        let format = match (weight.held, held) {
            (stored, held) if stored == held => held.name().to_owned(),
            (stored, held) => format!("{} → {}", stored.name(), held.name()),
        };
        let path = path(uses.get(&name).copied(), held, isa);
        let shape = shape.unwrap_or_default().join(" × ");
        table.add_row([&name, &shape, &format, &show(weight.n_stored_bytes), &path]);
    }
    table
}

/// The compute path on this machine for a tensor of this role and format.
fn path(role: Option<TensorRole>, format: Format, isa: Isa) -> String {
    match role {
        Some(TensorRole::Product | TensorRole::Output | TensorRole::Expert) => {
            format!("{}, {}", ComputePath::of(format), isa.name())
        }
        Some(TensorRole::Lookup) => "rows looked up".to_owned(),
        Some(TensorRole::Vector) => "vector in F32".to_owned(),
        None => "not used".to_owned(),
    }
}

/// The compute paths of all tensors with the bytes that use them, most bytes first.
fn paths(model: &LoadedModel, isa: Isa) -> Vec<(String, u64)> {
    let (source, uses) = (model.tensors(), model.tensor_roles());
    let mut paths: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in source.names().into_iter().filter_map(|name| source.tensor(name)) {
        let path = path(uses.get(tensor.name).copied(), model.held_format(&tensor), isa);
        *paths.entry(path).or_default() += model.held_bytes(&tensor);
    }
    for name in source.encoded_names() {
        let Some(weight) = source.encoded_weight(&name) else { continue };
        let held = model.held_encoded(weight.held);
        *paths.entry(path(uses.get(&name).copied(), held, isa)).or_default() += weight.n_bytes_in(held);
    }
    let mut paths: Vec<_> = paths.into_iter().collect();
    paths.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(*n_bytes));
    paths
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use throng_model::LoadOptions;
    use throng_model::load::load_bytes;
    use throng_testkit::shared_files::shared;
    use throng_testkit::tiny_model::TinyModel;

    use super::*;

    /// Describes the support for images of a model.
    fn images_of(model: &Path) -> String {
        let section = ModelSection { model: Some(model.display().to_string()), ..ModelSection::default() };
        let (_, model) = running::open(&section).expect("a model");
        let table = summary(&section, &model).expect("a summary").to_string();
        let about =
            |line: &&str| line.trim_start().starts_with("images") || line.contains("tokens of an image");
        table.lines().filter(about).map(str::trim).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_vision_part_is_described_with_the_tokens_of_images() {
        let tiny = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../vision/tests/fixtures/qwen3-vl"));
        let told = images_of(tiny);
        for part in ["layers of", "patches of 4 × 4 pixels", "16 for 1024 × 1024", "15 for 1920 × 1080"] {
            assert!(told.contains(part), "{told}");
        }
        if let Some(gguf) = shared("vision/gguf/qwen3-vl.gguf") {
            let told = images_of(&gguf);
            assert!(told.contains("layers of") && told.contains("for 1024 × 1024 pixels"), "{told}");
        }
    }

    #[test]
    fn a_missing_processor_is_named() {
        let tiny = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../vision/tests/fixtures/qwen3-vl"));
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tiny.join(name), folder.path().join(name)).expect("copied");
        }
        let told = images_of(folder.path());
        assert!(told.contains("images are refused: preprocessor_config.json is missing"), "{told}");
    }

    #[test]
    fn every_tensor_of_every_format_has_a_compute_path() {
        let best = Isa::best();
        let isa = best.name();
        for format in Format::ALL.into_iter().filter(|format| format.ggml_number().is_some()) {
            let tiny = TinyModel { architecture: "qwen3moe", experts: (4, 2), ..TinyModel::default() };
            let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
            let model = load_bytes("tiny", &tiny.gguf(format), &options, &mut |_| {}).expect("loads");
            let paths = paths(&model, best);
            assert_eq!(paths.iter().map(|(_, n)| n).sum::<u64>(), model.weight_summary().n_bytes);
            let of = |path: &str| paths.iter().find(|(found, _)| found == path).map(|(_, n)| *n);
            assert_eq!(of("not used"), None, "{paths:?}");
            assert_eq!(of("rows looked up"), Some(format.bytes_of(64 * 256).expect("whole blocks") as u64));
            assert!(of(&format!("{}, {isa}", ComputePath::of(format))).is_some(), "{paths:?}");
            let listed = tensors(&model, best).to_string();
            assert_eq!(listed.lines().count(), 1 + model.tensors().names().len());
            let has_path =
                |line: &str| [isa, "looked up", "vector in F32"].iter().any(|end| line.contains(end));
            assert!(listed.lines().skip(1).all(has_path), "{listed}");
        }
    }
}
