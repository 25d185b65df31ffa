//! An adapter's folder as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`. Every tensor
//! is checked against the model before anything is copied. Does not compute.

use std::collections::BTreeMap;
use std::path::Path;

use throng_kernels::quant::dequantize_row;

use super::peft_config::PeftConfig;
use super::targets::{self, Target};
use super::{AdapterError, AdapterSource, Pair};
use crate::config::DecoderConfig;
use throng_checkpoint::safetensors::SafetensorsFolder;
use throng_checkpoint::{FileChanged, TensorSource};

const FILE: &str = "adapter_model.safetensors";
/// Prefixes that the path of a module may have before `N.self_attn…`.
const LAYER_PREFIXES: [&str; 4] =
    ["model.layers.", "model.language_model.layers.", "language_model.model.layers.", "layers."];

/// An adapter's tensors, checked.
pub(crate) struct PeftAdapter {
    config: PeftConfig,
    tensors: SafetensorsFolder,
    /// Pairs by layer and module: the names of the tensors of A and B, and the module's path.
    pairs: BTreeMap<(usize, &'static str), PairNames>,
}

#[derive(Debug, Default)]
struct PairNames {
    module: String,
    a: Option<String>,
    b: Option<String>,
}

impl PeftAdapter {
    /// Opens a folder and checks its tensors against a model.
    pub(crate) fn open(folder: &Path, model: &DecoderConfig) -> Result<Self, AdapterError> {
        let config = PeftConfig::read(folder)?;
        let path = folder.join(FILE);
        if !path.exists() {
            let has_pickle = folder.join("adapter_model.bin").exists();
            let hint =
                if has_pickle { " (adapter_model.bin is a pickle: save it as safetensors)" } else { "" };
            return Err(AdapterError::NoFile { folder: folder.to_owned(), file: FILE, hint });
        }
        let tensors = SafetensorsFolder::open_one(&path)?;
        let mut adapter = Self { config, tensors, pairs: BTreeMap::new() };
        adapter.find_pairs(model)?;
        adapter.check(model)?;
        Ok(adapter)
    }

    /// Refuses the adapter when its file was written to while it was read.
    pub(crate) fn check_unchanged(&self) -> Result<(), FileChanged> {
        self.tensors.check_unchanged()
    }

    fn find_pairs(&mut self, model: &DecoderConfig) -> Result<(), AdapterError> {
        for tensor in self.tensors.names() {
            let (module, is_a) = split(tensor)?;
            let place = LAYER_PREFIXES.iter().find_map(|prefix| module.strip_prefix(prefix));
            let place = place.and_then(|rest| rest.split_once('.'));
            let numbered = place.and_then(|(layer, name)| Some((layer.parse::<usize>().ok()?, name)));
            let (layer_idx, name) = numbered.ok_or_else(|| not_supported(model, 0, tensor, module))?;
            if layer_idx >= model.layers.len() {
                let n_layers = model.layers.len();
                return Err(AdapterError::Layer {
                    tensor: tensor.to_owned(),
                    layer_idx,
                    n_layers,
                    base: self.base(),
                });
            }
            let targets = targets::of_layer(model, layer_idx);
            let target = targets.iter().find(|target| target.name == name);
            let target = target.ok_or_else(|| not_supported(model, layer_idx, tensor, module))?;
            let names = self.pairs.entry((layer_idx, target.name)).or_default();
            module.clone_into(&mut names.module);
            *(if is_a { &mut names.a } else { &mut names.b }) = Some(tensor.to_owned());
        }
        if self.pairs.is_empty() { Err(AdapterError::Empty) } else { Ok(()) }
    }

    fn check(&self, model: &DecoderConfig) -> Result<(), AdapterError> {
        for (&(layer_idx, name), names) in &self.pairs {
            let targets = targets::of_layer(model, layer_idx);
            let Some(target) = targets.iter().find(|target| target.name == name) else { continue };
            let rank = self.config.rank_of(&names.module);
            let halves =
                [("lora_A", &names.a, [rank, target.cols]), ("lora_B", &names.b, [target.n_cols, rank])];
            for (half, tensor, expected) in halves {
                let Some(tensor) = tensor.as_deref().and_then(|name| self.tensors.tensor(name)) else {
                    return Err(AdapterError::Half { tensor: format!("{}.{half}.weight", names.module) });
                };
                if tensor.shape != expected {
                    let is_rank = tensor.shape.len() == 2 && {
                        let side = usize::from(half == "lora_A");
                        tensor.shape[side] == expected[side]
                    };
                    let hint = match is_rank {
                        true => " (the rank is that of adapter_config.json)".to_owned(),
                        false => format!(": the adapter is of another model{}", self.base()),
                    };
                    let (expected, found) = (expected.to_vec(), tensor.shape.to_vec());
                    return Err(AdapterError::Shape {
                        tensor: tensor.name.to_owned(),
                        expected,
                        found,
                        hint,
                    });
                }
            }
        }
        Ok(())
    }

    /// Refuses numbers that would make every output NaN. Reads all of the file.
    pub(crate) fn check_finite(&self) -> Result<(), AdapterError> {
        for name in self.tensors.names() {
            if self.numbers(name).is_some_and(|numbers| !numbers.iter().all(|x| x.is_finite())) {
                return Err(AdapterError::NotFinite { tensor: name.to_owned() });
            }
        }
        Ok(())
    }

    fn base(&self) -> String {
        self.config
            .base
            .as_ref()
            .map_or_else(String::new, |base| format!(" ({})", base.chars().take(200).collect::<String>()))
    }

    fn numbers(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.tensors.tensor(name)?;
        let mut numbers = vec![0.0; tensor.shape.iter().product()];
        dequantize_row(tensor.format, tensor.data, &mut numbers);
        Some(numbers)
    }
}

impl AdapterSource for PeftAdapter {
    fn rank(&self, layer_idx: usize, target: &Target) -> Option<usize> {
        let names = self.pairs.get(&(layer_idx, target.name))?;
        Some(self.config.rank_of(&names.module))
    }

    fn pair(&self, layer_idx: usize, target: &Target) -> Option<Pair> {
        let names = self.pairs.get(&(layer_idx, target.name))?;
        let rank = self.config.rank_of(&names.module);
        let a = self.numbers(names.a.as_deref()?)?;
        let b = targets::reordered(target, self.numbers(names.b.as_deref()?)?, rank);
        Some(Pair { a, b, rank, scale: self.config.scale_of(&names.module) })
    }
}

/// The path of the module that a tensor belongs to, and whether it is the module's A.
fn split(tensor: &str) -> Result<(&str, bool), AdapterError> {
    let name = tensor.strip_prefix("base_model.model.").unwrap_or(tensor);
    let name = name.strip_suffix(".weight").unwrap_or("");
    // PEFT's own files lack the adapter's name, copies of a training state have it.
    let name = name.strip_suffix(".default").unwrap_or(name);
    let half = |suffix, is_a| name.strip_suffix(suffix).map(|module| (module, is_a));
    half(".lora_A", true)
        .or_else(|| half(".lora_B", false))
        .ok_or_else(|| AdapterError::Tensor { tensor: tensor.to_owned() })
}

fn not_supported(model: &DecoderConfig, layer_idx: usize, tensor: &str, module: &str) -> AdapterError {
    let names: Vec<_> = targets::of_layer(model, layer_idx).iter().map(|target| target.name).collect();
    AdapterError::Module {
        tensor: tensor.to_owned(),
        module: module.to_owned(),
        supported: format!("{} of every layer", names.join(", ")),
    }
}
