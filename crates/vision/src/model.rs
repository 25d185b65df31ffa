//! The part of an open model that encodes pictures: its configuration, and its weights after their first use.
//! Does not know the forward pass.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::{Gguf, GgufValue};
use throng_core::prompt_media::MediaContent;
use throng_core::scheduling::batch::WorkShare;
use throng_kernels::quant::Format;
use throng_kernels::threads::ThreadPool;
use throng_model::VocabularySource;
use throng_model::arch::ConfigError;
use throng_model::backend::{Backend, BackendError};
use throng_model::cpu_backend::CpuBackend;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{BackendKind, LoadError, LoadedModel, MediaModel};
use throng_model::media::{EncodeError, Features, MediaEncoder, MediaEncoding};
use throng_model::reference_backend::ReferenceBackend;

use crate::config::VisionConfig;
use crate::encoder::Encoding;
use crate::families::{VisionFamily, from_gguf, processor_of};
use crate::json::VisionJson;
use crate::names::EncoderNames;
use crate::weights::{EncoderTensors, EncoderWeights};

/// Maximum number of files beside a model that are examined.
const MAX_CANDIDATES: usize = 64;

/// An encoder of pictures, whose weights are read when the first picture arrives.
pub struct VisionModel {
    config: Arc<VisionConfig>,
    processor: Option<[Value; 2]>,
    parts: Arc<Parts>,
}

/// Parts that all encoders share.
struct Parts {
    config: Arc<VisionConfig>,
    names: &'static EncoderNames,
    tensors: Arc<dyn TensorSource>,
    /// Beginning of the names of the encoder's tensors, and of the projector's.
    prefixes: (&'static str, &'static str),
    cpu: Mutex<Option<Arc<EncoderWeights<CpuBackend>>>>,
    reference: Mutex<Option<Arc<EncoderWeights<ReferenceBackend>>>>,
}

/// Whether the encoder of models with this `model_type`, and with that of their `vision_config`, is
/// supported.
pub fn is_known(model_type: &str, encoder_type: Option<&str>) -> bool {
    VisionFamily::of(model_type, encoder_type).is_some()
}

/// Adds to a model the encoder that its files have, if its family's is supported, or that of the GGUF file
/// `mmproj`. A GGUF model without one takes the one beside it, if there is one. A model whose encoder is not
/// supported reads text only.
///
/// # Errors
/// When the configuration of a known encoder is invalid, or `mmproj` is not an encoder for the model.
pub fn with_vision(model: LoadedModel, mmproj: Option<&Path>) -> Result<LoadedModel, LoadError> {
    let vision = match mmproj {
        Some(path) => Some(VisionModel::of_gguf(&model, path)?),
        None => match VisionModel::of(&model)? {
            None => beside(&model),
            vision => vision,
        },
    };
    Ok(match vision {
        None => model,
        Some(vision) => model.with_media(Arc::new(vision)),
    })
}

/// The encoder in the only GGUF file beside a GGUF model that has one. A file that is not understood is
/// skipped, since the user did not name it.
fn beside(model: &LoadedModel) -> Option<VisionModel> {
    if !matches!(model.vocabulary, VocabularySource::Gguf(_)) {
        return None;
    }
    let folder = if model.path.is_dir() { model.path.as_path() } else { model.path.parent()? };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_candidate = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.ends_with(".gguf") && name.contains("mmproj")
    };
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(is_candidate).take(MAX_CANDIDATES).collect();
    files.sort_unstable();
    let named_alike =
        |path: &PathBuf| path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(&model.name));
    if let Some(alike) = files.iter().position(named_alike) {
        files = vec![files.swap_remove(alike)];
    }
    let read = |path: &PathBuf| match VisionModel::of_gguf(model, path) {
        Ok(vision) => Some(vision),
        Err(error) => {
            tracing::warn!("{} is not read: {error}", path.display());
            None
        }
    };
    files.first().and_then(read)
}

impl VisionModel {
    /// The encoder of a model folder; `None` if it has no supported one, or one with a part that is not
    /// supported, which the log names.
    ///
    /// # Errors
    /// When the configuration of a known encoder is invalid.
    pub fn of(model: &LoadedModel) -> Result<Option<Self>, LoadError> {
        let Some(json) = model.config_json()? else { return Ok(None) };
        let (config, family) = match read_config(&json, model.config.hidden_size) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            // Its text is understood all the same.
            Err(error @ ConfigError::Variant { .. }) => {
                tracing::warn!("the model reads text only: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let tensors = model.tensor_source();
        let Some(prefixes) = family.prefixes_in(&*tensors) else { return Ok(None) };
        Ok(Some(Self::new(config, family.names, tensors, prefixes)))
    }

    /// The encoder of a GGUF file.
    ///
    /// # Errors
    /// When it cannot be read, is no encoder, or not one for the model.
    pub fn of_gguf(model: &LoadedModel, path: &Path) -> Result<Self, LoadError> {
        let gguf = Gguf::open(path)?;
        let architecture = gguf.metadata().get("general.architecture").and_then(GgufValue::as_str);
        if architecture != Some("clip") {
            let reason = "is no encoder of pictures: its general.architecture is not clip".to_owned();
            return Err(LoadError::NotAModel { path: path.to_owned(), reason });
        }
        let (config, names) = from_gguf(gguf.metadata(), model.config.hidden_size)?;
        let tokens = match &model.vocabulary {
            VocabularySource::Gguf(text) => text.metadata().strings("tokenizer.ggml.tokens")?,
            _ => None,
        };
        let token_id = |text: &str| tokens?.iter().position(|token| token == text);
        let processor = processor_of(gguf.metadata(), &token_id);
        Ok(Self { processor, ..Self::new(config, names, Arc::new(gguf), ("v.", "")) })
    }

    fn new(
        config: VisionConfig,
        names: &'static EncoderNames,
        tensors: Arc<dyn TensorSource>,
        prefixes: (&'static str, &'static str),
    ) -> Self {
        let config = Arc::new(config);
        let (cpu, reference) = Default::default();
        let parts = Parts { config: Arc::clone(&config), names, tensors, prefixes, cpu, reference };
        Self { config, processor: None, parts: Arc::new(parts) }
    }

    /// The encoder as a value.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }
}

/// The encoder of a `config.json`; `None` if it has no supported one.
fn read_config(
    model: &Map<String, Value>,
    text_width: usize,
) -> Result<Option<(VisionConfig, &'static VisionFamily)>, ConfigError> {
    let vision = model.get("vision_config").and_then(Value::as_object);
    let model_type = model.get("model_type").and_then(Value::as_str);
    let Some((vision, model_type)) = vision.zip(model_type) else { return Ok(None) };
    let encoder_type = vision.get("model_type").and_then(Value::as_str);
    let Some(family) = VisionFamily::of(model_type, encoder_type) else { return Ok(None) };
    let json = VisionJson { vision, model, text_width };
    let config = (family.from_json)(&json, family.model_type)?;
    if config.feature_size != text_width {
        return Err(ConfigError::Invalid {
            key: "vision_config.out_hidden_size".to_owned(),
            found: config.feature_size.to_string(),
            expected: format!("{text_width}, the width of the text model"),
        });
    }
    Ok(Some((config, family)))
}

impl MediaModel for VisionModel {
    fn encoder(
        &self,
        backend: BackendKind,
        threads: &Arc<ThreadPool>,
    ) -> Result<Box<dyn MediaEncoder>, BackendError> {
        let parts = Arc::clone(&self.parts);
        Ok(match backend {
            BackendKind::Reference => {
                Box::new(LazyEncoder { parts, make: || ReferenceBackend, weights: |parts| &parts.reference })
            }
            BackendKind::Cpu | BackendKind::CpuIsa(_) => {
                let threads = Arc::clone(threads);
                Box::new(LazyEncoder {
                    parts,
                    make: move || CpuBackend::on(Arc::clone(&threads)),
                    weights: |parts| &parts.cpu,
                })
            }
        })
    }

    fn processor(&self) -> Option<[Value; 2]> {
        self.processor.clone()
    }

    fn describe(&self) -> String {
        let VisionConfig { n_layers, hidden_size, n_heads, patch_size, .. } = &*self.config;
        let n_parameters: usize = {
            let tensors = &self.parts.tensors;
            let names = tensors.names();
            let read =
                names.into_iter().filter(|name| self.reads(name)).filter_map(|name| tensors.tensor(name));
            read.map(|tensor| tensor.shape.iter().product::<usize>()).sum()
        };
        let millions = n_parameters as f64 / 1e6;
        format!(
            "{n_layers} layers of {hidden_size}, {n_heads} heads, patches of {patch_size} × {patch_size} pixels, \
             {millions:.2} M parameters, read when the first picture comes"
        )
    }

    fn reads(&self, tensor: &str) -> bool {
        let (of_encoder, of_projector) = self.parts.prefixes;
        let begins = |prefix: &str| !matches!(prefix, "" | "model.") && tensor.starts_with(prefix);
        begins(of_encoder)
            || begins(of_projector)
            || tensor.starts_with("mm.")
            || tensor.contains("multi_modal_projector.")
            || tensor.ends_with("image_newline")
    }
}

/// Weights on a backend, once they were read.
type Slot<B> = Mutex<Option<Arc<EncoderWeights<B>>>>;

/// An encoder that reads its weights when the first picture arrives.
struct LazyEncoder<B: Backend, M> {
    parts: Arc<Parts>,
    make: M,
    weights: fn(&Parts) -> &Slot<B>,
}

impl<B: Backend + 'static, M: Fn() -> B + Send> MediaEncoder for LazyEncoder<B, M> {
    fn begin(&mut self, content: &MediaContent) -> Result<Box<dyn MediaEncoding>, EncodeError> {
        let backend = (self.make)();
        let (weights, kv_dtype) = self.parts.weights_on(&backend, self.weights)?;
        Ok(Box::new(Encoding::new(backend, &self.parts.config, weights, kv_dtype, content)?))
    }
}

impl<B: Backend> MediaEncoding for Encoding<B> {
    fn advance(&mut self, share: WorkShare) -> Result<Option<Features>, EncodeError> {
        Encoding::advance(self, share)
    }
}

impl Parts {
    /// The weights on a backend, read once, and the type that holds keys and values.
    fn weights_on<B: Backend>(
        &self,
        backend: &B,
        slot: fn(&Self) -> &Slot<B>,
    ) -> Result<(Arc<EncoderWeights<B>>, KvDtype), EncodeError> {
        let mut slot = slot(self).lock().unwrap_or_else(PoisonError::into_inner);
        let kv_dtype = self.kv_dtype();
        if let Some(weights) = &*slot {
            return Ok((Arc::clone(weights), kv_dtype));
        }
        let (prefix, projector_prefix) = self.prefixes;
        let names = self.names;
        let tensors = EncoderTensors { source: &*self.tensors, prefix, projector_prefix, names };
        let weights = EncoderWeights::load(backend, &self.config, tensors);
        let checked = self.tensors.check_unchanged().map_err(LoadError::from);
        let weights = checked.and_then(|()| weights.map_err(LoadError::from));
        let weights = weights.map_err(|error| EncodeError::Weights(error.into()))?;
        let weights = Arc::new(weights);
        *slot = Some(Arc::clone(&weights));
        Ok((weights, kv_dtype))
    }

    /// F32 where the weights are, else a type of two bytes.
    fn kv_dtype(&self) -> KvDtype {
        let (prefix, _) = self.prefixes;
        let name = format!("{prefix}{}.weight", self.names.patch);
        match self.tensors.tensor(&name).map(|tensor| tensor.format) {
            Some(Format::F32) | None => KvDtype::F32,
            Some(_) => KvDtype::F16,
        }
    }
}
