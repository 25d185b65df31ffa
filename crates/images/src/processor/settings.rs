//! Settings of a processor from the JSON files beside a model. A setting that a file leaves out, or sets to
//! null, has the default of its class in transformers.

use serde_json::Value;

use super::values::Normalization;
use crate::error::ProcessorError;
use crate::resize::Filter;

/// Maximum side in pixels and maximum number of tiles in a configuration.
pub(super) const MAX_SETTING: u64 = 1 << 16;

/// The members of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    processor: &'a Value,
    model: &'a Value,
}

impl<'a> Settings<'a> {
    /// Settings from `preprocessor_config.json` (or `processor_config.json`, which holds it as
    /// `image_processor`) and `config.json`.
    pub fn new(processor: &'a Value, model: &'a Value) -> Self {
        Self { processor: processor.get("image_processor").unwrap_or(processor), model }
    }

    /// The class of the processor, without the suffix of its faster form.
    pub fn class(&self) -> &'a str {
        let class = self.processor.get("image_processor_type").and_then(Value::as_str).unwrap_or_default();
        class.strip_suffix("Fast").or(class.strip_suffix("Pil")).unwrap_or(class)
    }

    /// The model's `model_type`.
    pub fn model_type(&self) -> &'a str {
        self.model.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// A member of the processor; `None` if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.processor.get(name).filter(|value| !value.is_null())
    }

    /// A member of the model's configuration, by a path such as `/vision_config/patch_size`.
    pub fn of_model(&self, path: &str) -> Option<&'a Value> {
        self.model.pointer(path).filter(|value| !value.is_null())
    }

    /// A positive number of the processor.
    pub fn number(&self, name: &'static str, default: Option<u32>) -> Result<u32, ProcessorError> {
        self.get(name).map_or(default, bounded).ok_or(ProcessorError::Setting(name))
    }

    /// A positive number of the model's configuration. Of a pair, such as `[14, 14]`, both must be equal.
    pub fn model_number(&self, path: &'static str, default: Option<u32>) -> Result<u32, ProcessorError> {
        let number = match self.of_model(path) {
            Some(Value::Array(sides)) => match sides.as_slice() {
                [first, second] if first == second => bounded(first),
                _ => None,
            },
            Some(value) => bounded(value),
            None => default,
        };
        number.ok_or(ProcessorError::Setting(path))
    }

    /// A flag of the processor.
    pub fn flag(&self, name: &'static str, default: bool) -> Result<bool, ProcessorError> {
        self.get(name).map_or(Some(default), Value::as_bool).ok_or(ProcessorError::Setting(name))
    }

    /// The interpolation filter.
    pub fn filter(&self, default: Filter) -> Result<Filter, ProcessorError> {
        let Some(resample) = self.get("resample") else { return Ok(default) };
        resample.as_u64().and_then(Filter::from_resample).ok_or(ProcessorError::Setting("resample"))
    }

    /// A member of `size` or another object of numbers.
    pub fn size(&self, object: &str, name: &str) -> Option<u32> {
        self.get(object)?.get(name).and_then(bounded)
    }

    /// Height and width from `size` or another object: `{"height": …, "width": …}` or one number.
    pub fn sides(&self, object: &'static str, default: Option<[u32; 2]>) -> Result<[u32; 2], ProcessorError> {
        let Some(value) = self.get(object) else { return default.ok_or(ProcessorError::Setting(object)) };
        let side = |name: &str| value.get(name).and_then(bounded);
        let both = bounded(value).map(|side| [side; 2]);
        let sides = both.or_else(|| Some([side("height")?, side("width")?]));
        sides.ok_or(ProcessorError::Setting(object))
    }

    /// Mean, deviation and scale of the values.
    pub fn normalization(&self, default: [[f32; 3]; 2]) -> Result<Normalization, ProcessorError> {
        if !self.flag("do_rescale", true)? {
            return Err(ProcessorError::Setting("do_rescale"));
        }
        let factor = self.get("rescale_factor").map_or(Some(1.0 / 255.0), Value::as_f64);
        let factor = factor.filter(|factor| factor.is_finite() && *factor > 0.0);
        let factor = factor.ok_or(ProcessorError::Setting("rescale_factor"))?;
        if !self.flag("do_normalize", true)? {
            return Ok(Normalization::scaled(factor));
        }
        let [mean, std] = [("image_mean", default[0]), ("image_std", default[1])].map(|(name, default)| {
            let Some(given) = self.get(name) else { return Ok(default) };
            three(given).ok_or(ProcessorError::Setting(name))
        });
        let std = std?;
        if std.iter().any(|std| *std <= 0.0) {
            return Err(ProcessorError::Setting("image_std"));
        }
        Ok(Normalization::new(factor, mean?, std))
    }
}

/// A list of three finite numbers.
fn three(value: &Value) -> Option<[f32; 3]> {
    let number =
        |value: &Value| value.as_f64().filter(|number| number.is_finite()).map(|number| number as f32);
    let numbers: Vec<f32> = value.as_array()?.iter().filter_map(number).collect();
    numbers.try_into().ok()
}

/// A positive number within [`MAX_SETTING`].
pub(super) fn bounded(value: &Value) -> Option<u32> {
    value.as_u64().filter(|number| (1..=MAX_SETTING).contains(number)).map(|number| number as u32)
}

/// CLIP's mean and standard deviation.
pub(super) const CLIP: [[f32; 3]; 2] =
    [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]];
/// Mean and deviation that map values to -1 to 1.
pub(super) const HALVES: [[f32; 3]; 2] = [[0.5; 3]; 2];
/// ImageNet's mean and standard deviation.
pub(super) const IMAGENET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
