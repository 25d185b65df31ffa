//! The part of an open model that encodes pictures: its configuration, and its weights once they were asked
//! for. Does not know the forward pass.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use throng_checkpoint::TensorSource;
use throng_core::prompt_media::MediaContent;
use throng_kernels::quant::Format;
use throng_kernels::threads::ThreadPool;
use throng_model::arch::ConfigError;
use throng_model::backend::{Backend, BackendError};
use throng_model::cpu_backend::CpuBackend;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{BackendKind, LoadError, LoadedModel};
use throng_model::media::{EncodeError, Features, MediaEncoder, MediaModel};
use throng_model::reference_backend::ReferenceBackend;

use crate::config::VisionConfig;
use crate::encoder::Encoder;
use crate::families::VisionFamily;
use crate::json::VisionJson;
use crate::weights::{EncoderTensors, EncoderWeights};

/// An encoder of pictures, whose weights are read when the first picture comes.
pub struct VisionModel {
    config: Arc<VisionConfig>,
    parts: Arc<Parts>,
}

/// All that encoders share.
struct Parts {
    config: Arc<VisionConfig>,
    family: &'static VisionFamily,
    tensors: Arc<dyn TensorSource>,
    /// Beginning of the names of the encoder's tensors, and of the projector's.
    prefixes: (&'static str, &'static str),
    cpu: Mutex<Option<Arc<EncoderWeights<CpuBackend>>>>,
    reference: Mutex<Option<Arc<EncoderWeights<ReferenceBackend>>>>,
}

/// Adds to a model the encoder that its files have, if its family's is known. A model whose encoder is not
/// known reads text only.
///
/// # Errors
/// When the configuration of a known encoder makes no sense.
pub fn with_vision(model: LoadedModel) -> Result<LoadedModel, LoadError> {
    let vision = VisionModel::of(&model)?;
    Ok(match vision {
        None => model,
        Some(vision) => model.with_media(Arc::new(vision)),
    })
}

impl VisionModel {
    /// The encoder of a model folder; `None` where it has none that is known.
    ///
    /// # Errors
    /// When the configuration of a known encoder makes no sense.
    pub fn of(model: &LoadedModel) -> Result<Option<Self>, LoadError> {
        let Some(json) = model.config_json()? else { return Ok(None) };
        let Some((config, family)) = read_config(&json, model.config.hidden_size)? else { return Ok(None) };
        let tensors = model.tensor_source();
        let Some(prefixes) = family.prefixes_in(&*tensors) else { return Ok(None) };
        let config = Arc::new(config);
        let (cpu, reference) = Default::default();
        let parts = Parts { config: Arc::clone(&config), family, tensors, prefixes, cpu, reference };
        Ok(Some(Self { config, parts: Arc::new(parts) }))
    }

    /// The encoder as a value.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }
}

/// The encoder of a `config.json`; `None` where there is none that is known.
fn read_config(
    model: &Map<String, Value>,
    text_width: usize,
) -> Result<Option<(VisionConfig, &'static VisionFamily)>, ConfigError> {
    let vision = model.get("vision_config").and_then(Value::as_object);
    let model_type = model.get("model_type").and_then(Value::as_str);
    let Some((vision, family)) = vision.zip(model_type.and_then(VisionFamily::of)) else { return Ok(None) };
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
            BackendKind::Reference => Box::new(LazyEncoder {
                parts,
                encoder: None,
                make: || ReferenceBackend,
                weights: |parts| &parts.reference,
            }),
            BackendKind::Cpu | BackendKind::CpuIsa(_) => {
                let threads = Arc::clone(threads);
                Box::new(LazyEncoder {
                    parts,
                    encoder: None,
                    make: move || CpuBackend::on(Arc::clone(&threads)),
                    weights: |parts| &parts.cpu,
                })
            }
        })
    }

    fn reads(&self, tensor: &str) -> bool {
        let (of_encoder, of_projector) = self.parts.prefixes;
        tensor.starts_with(of_encoder) || tensor.starts_with(of_projector)
    }
}

/// An encoder that reads its weights when the first picture comes.
struct LazyEncoder<B: Backend, M> {
    parts: Arc<Parts>,
    encoder: Option<Encoder<B>>,
    make: M,
    weights: fn(&Parts) -> &Mutex<Option<Arc<EncoderWeights<B>>>>,
}

impl<B: Backend, M: Fn() -> B + Send> MediaEncoder for LazyEncoder<B, M> {
    fn encode(&mut self, content: &MediaContent) -> Result<Features, EncodeError> {
        if self.encoder.is_none() {
            let backend = (self.make)();
            let (weights, kv_dtype) = self.parts.weights_on(&backend, self.weights)?;
            self.encoder = Some(Encoder::new(backend, Arc::clone(&self.parts.config), weights, kv_dtype));
        }
        self.encoder.as_mut().expect("it was just made").encode(content)
    }
}

impl Parts {
    /// The weights on a backend, read once, and the type that holds keys and values.
    fn weights_on<B: Backend>(
        &self,
        backend: &B,
        slot: fn(&Self) -> &Mutex<Option<Arc<EncoderWeights<B>>>>,
    ) -> Result<(Arc<EncoderWeights<B>>, KvDtype), EncodeError> {
        let mut slot = slot(self).lock().unwrap_or_else(PoisonError::into_inner);
        let kv_dtype = self.kv_dtype();
        if let Some(weights) = &*slot {
            return Ok((Arc::clone(weights), kv_dtype));
        }
        let (prefix, projector_prefix) = self.prefixes;
        let names = self.family.names;
        let tensors = EncoderTensors { source: &*self.tensors, prefix, projector_prefix, names };
        let weights = EncoderWeights::load(backend, &self.config, tensors);
        let checked = self.tensors.check_unchanged().map_err(LoadError::from);
        let weights = checked.and_then(|()| weights.map_err(LoadError::from)).map_err(Box::new)?;
        let weights = Arc::new(weights);
        *slot = Some(Arc::clone(&weights));
        Ok((weights, kv_dtype))
    }

    /// F32 where the weights are, else a type of two bytes.
    fn kv_dtype(&self) -> KvDtype {
        let (prefix, _) = self.prefixes;
        let name = format!("{prefix}{}.weight", self.family.names.patch);
        match self.tensors.tensor(&name).map(|tensor| tensor.format) {
            Some(Format::F32) | None => KvDtype::F32,
            Some(_) => KvDtype::F16,
        }
    }
}
