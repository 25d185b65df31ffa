//! Models as the planner's plain numbers: from the product's own reading of configurations and tensors, or
//! from sizes that are typed in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use throng_model::LoadedModel;
use throng_model::arch::Architecture;
use throng_model::config::{DecoderConfig, LayerConfig};
use throng_plan::ModelShape;
use throng_plan::model_shape::{LayerShape, TransformerSizes, WeightType, kv_element_bytes};

use super::layers::layer_shape;
use super::weights;
use crate::args::PlanArgs;
use crate::config::ModelSection;
use crate::running;
use crate::source::BUILT_IN;
use throng_hub::{HubSettings, cached_folder, locate};

/// A model to plan for.
pub struct PlannedModel {
    /// Shape of the model.
    pub shape: ModelShape,
    /// The type in which `throng serve` holds the weights, where it is not that of the shape.
    pub held_weights: Option<WeightType>,
    /// The model itself, where its weights are on this machine.
    pub loaded: Option<LoadedModel>,
    /// A remark about an assumption.
    pub note: Option<String>,
}

/// The model of the arguments.
///
/// # Errors
/// When it cannot be read, or sizes are invalid.
pub fn planned(arguments: &PlanArgs) -> Result<PlannedModel> {
    let mut planned = match &arguments.shape {
        Some(sizes) => PlannedModel { shape: typed(sizes)?, held_weights: None, loaded: None, note: None },
        None => named(arguments.model.as_deref())?,
    };
    if let Some(name) = &arguments.weights {
        planned.shape.weights = WeightType::named(name).context("--weights")?;
        planned.held_weights = None;
    }
    planned.shape.kv_element_bytes =
        kv_element_bytes(&arguments.kv_cache_dtype).context("--kv-cache-dtype")?;
    Ok(planned)
}

fn named(model: Option<&str>) -> Result<PlannedModel> {
    let hub = model.filter(|model| BUILT_IN.iter().all(|known| known.name != *model));
    let path = hub.map(place).transpose()?.unwrap_or_default();
    let config = if path.is_dir() { path.join("config.json") } else { path.clone() };
    let has_weights = path.is_dir() && has_tensors(&path);
    let mut planned = if config.extension().is_some_and(|ending| ending == "json") && !has_weights {
        of_config(&config, &path)?
    } else {
        // The files that were found: a hub id would be looked for on the hub again.
        let place = hub.map(|_| path.to_string_lossy().into_owned());
        let section = ModelSection { model: place, ..ModelSection::default() };
        let (_, loaded) = running::open(&section)?;
        let mut shape = of_decoder(&loaded.name, &loaded.config);
        shape.weights = weights::stored(&loaded, &shape);
        let held_weights = Some(weights::held(&loaded, &shape));
        PlannedModel { shape, held_weights, loaded: Some(loaded), note: None }
    };
    if let Some(id) = hub.filter(|model| !Path::new(model).exists()) {
        // Folders of the hub's cache have the names of commits.
        id.clone_into(&mut planned.shape.name);
    }
    Ok(planned)
}

/// The files of a model on this machine or in the hub's cache; without weights, the files of its
/// configuration.
fn place(model: &str) -> Result<PathBuf> {
    let mut settings = HubSettings::from_env(|name| std::env::var(name).ok());
    settings.offline = true;
    let found = locate(model, &settings).or_else(|error| {
        let folder = cached_folder(model, &settings).map_err(|_| ());
        folder.ok().filter(|folder| folder.join("config.json").is_file()).ok_or(error)
    });
    found.with_context(|| format!("{model} is not on this machine, and throng plan downloads nothing"))
}

/// The shape of a model whose weights are on this machine, in the types in which they are held.
pub fn shape_of(model: &LoadedModel) -> ModelShape {
    let mut shape = of_decoder(&model.name, &model.config);
    shape.weights = weights::held(model, &shape);
    shape
}

/// Whether a folder has weights beside its configuration.
fn has_tensors(folder: &Path) -> bool {
    let is_tensors =
        |name: &Path| name.extension().is_some_and(|ending| ending == "safetensors" || ending == "gguf");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.path()).any(|path| is_tensors(&path))
}

fn of_config(config: &Path, given: &Path) -> Result<PlannedModel> {
    let fields = throng_model::load::configuration(config)?;
    let json = serde_json::to_vec(&fields)?;
    let architecture =
        Architecture::from_config_json(&json).with_context(|| format!("{}", config.display()))?;
    let named = if given.is_dir() { given } else { config.parent().unwrap_or(given) };
    let name = named.file_name().map_or("model".into(), |name| name.to_string_lossy());
    let mut shape = of_decoder(&name, &architecture.config);
    let (weights, note) = weights::configured(&fields, &architecture.config, &shape);
    shape.weights = weights;
    Ok(PlannedModel { shape, held_weights: None, loaded: None, note })
}

/// The shape of a decoder, in 16-bit floats.
fn of_decoder(name: &str, config: &DecoderConfig) -> ModelShape {
    let mut layers: Vec<(LayerConfig, LayerShape)> = Vec::new();
    for layer in &config.layers {
        match layers.iter_mut().find(|(known, _)| known == layer) {
            Some((_, shape)) => shape.n_layers += 1.0,
            None => layers.push((*layer, layer_shape(layer, config))),
        }
    }
    ModelShape {
        name: name.to_owned(),
        layers: layers.into_iter().map(|(_, shape)| shape).collect(),
        hidden_size: config.hidden_size as f64,
        vocabulary_size: config.vocabulary_size as f64,
        tied_embeddings: config.tied_embeddings,
        max_sequence_tokens: u32::try_from(config.max_sequence_tokens).unwrap_or(u32::MAX),
        weights: WeightType::BF16,
        kv_element_bytes: 2.0,
    }
}

/// A model of sizes that are typed in.
fn typed(text: &str) -> Result<ModelShape> {
    let known = [
        "layers",
        "hidden",
        "heads",
        "kv-heads",
        "head-dim",
        "ffn",
        "vocabulary",
        "experts",
        "experts-used",
        "context",
    ];
    let mut sizes = std::collections::BTreeMap::new();
    let mut tied_embeddings = false;
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if part == "tied" {
            tied_embeddings = true;
            continue;
        }
        let (name, value) =
            part.split_once('=').with_context(|| format!("--shape: {part} is no NAME=SIZE"))?;
        if !known.contains(&name) {
            bail!("--shape: there is no size {name} (there are: {}, tied)", known.join(", "));
        }
        let value: f64 =
            value.parse().with_context(|| format!("--shape: {name} is {value}, not a number"))?;
        sizes.insert(name, value);
    }
    let need = |name: &str| sizes.get(name).copied().with_context(|| format!("--shape: {name} is missing"));
    let experts = match (sizes.get("experts"), sizes.get("experts-used")) {
        (None, None) => None,
        (Some(n), Some(used)) => Some((*n, *used)),
        _ => bail!("--shape: experts and experts-used need each other"),
    };
    let heads = need("heads")?;
    let hidden_size = need("hidden")?;
    let sizes = TransformerSizes {
        n_layers: need("layers")?,
        hidden_size,
        n_heads: heads,
        n_kv_heads: sizes.get("kv-heads").copied().unwrap_or(heads),
        head_dim: sizes.get("head-dim").copied().unwrap_or(hidden_size / heads),
        feed_forward: need("ffn")?,
        vocabulary_size: need("vocabulary")?,
        experts,
        tied_embeddings,
        max_sequence_tokens: sizes.get("context").map_or(u32::MAX, |context| *context as u32),
    };
    ModelShape::transformer("model", &sizes).context("--shape")
}
