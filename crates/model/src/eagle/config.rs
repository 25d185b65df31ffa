//! The configuration of an EAGLE-3 head, in the two spellings of published ones: a Llama's `config.json` with
//! a few more keys (`LlamaForCausalLMEagle3`), and that of the speculators library (`Eagle3Speculator`). Does
//! not know tensors.

use serde_json::{Map, Value};

use crate::arch::{ConfigError, HfConfig};
use crate::config::{AttentionConfig, DecoderConfig, FeedForward, LayerConfig, Mixer};

/// Number of the model's layers that a head reads.
pub(crate) const N_FEATURES: usize = 3;

/// Configuration of a head.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeadConfig {
    /// The head's one layer, as a decoder of the model's vocabulary.
    pub(crate) decoder: DecoderConfig,
    /// The attention of that layer.
    pub(crate) attention: AttentionConfig,
    /// The width of its feed-forward network.
    pub(crate) feed_forward_width: usize,
    /// Number of tokens that it can propose.
    pub(crate) draft_vocabulary_size: usize,
    /// The layers of the model whose inputs it reads, where the file names them.
    pub(crate) layers: Option<[usize; N_FEATURES]>,
    /// Width of the model's residual stream.
    pub(crate) target_hidden_size: usize,
    /// Whether the residual that the layer adds to is normed.
    pub(crate) has_normed_residual: bool,
}

impl HeadConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// When it is not the configuration of an EAGLE-3 head or its sizes are invalid.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let outer: Map<String, Value> = throng_arch::python_json::from_slice(json)
            .map_err(|error| ConfigError::Json(error.to_string()))?;
        let of_layer = outer.get("transformer_layer_config").map(|layer| layer.to_string().into_bytes());
        let hf = HfConfig::parse(of_layer.as_deref().unwrap_or(json))?;
        if hf.model_type() != "llama" {
            return Err(refused(
                "model_type",
                hf.model_type(),
                "llama, the only layer of EAGLE-3 heads that is known",
            ));
        }
        let decoder = hf.llama("llama")?;
        let [LayerConfig { mixer: Mixer::Attention(attention), feed_forward: FeedForward::Dense { width } }] =
            decoder.layers[..]
        else {
            return Err(refused("num_hidden_layers", decoder.layers.len(), "1 layer in an EAGLE-3 head"));
        };
        let size = |key: &str| -> Result<Option<usize>, ConfigError> {
            let Some(value) = outer.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
            let size = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            size.map(Some).ok_or_else(|| refused(key, value, "a size"))
        };
        let eagle = outer.get("eagle_config").and_then(Value::as_object);
        if eagle.and_then(|eagle| eagle.get("use_aux_hidden_state")) == Some(&Value::Bool(false)) {
            return Err(refused(
                "use_aux_hidden_state",
                false,
                "true: a head that reads three layers of the model",
            ));
        }
        let is_of_speculators = of_layer.is_some();
        let normed = outer.get("norm_before_residual").and_then(Value::as_bool);
        Ok(Self {
            draft_vocabulary_size: size("draft_vocab_size")?.unwrap_or(decoder.vocabulary_size),
            layers: layers(&outer, eagle)?,
            target_hidden_size: size("target_hidden_size")?.unwrap_or(decoder.hidden_size),
            attention,
            feed_forward_width: width,
            has_normed_residual: normed.unwrap_or(is_of_speculators),
            decoder,
        })
    }

    /// The layers of a model with `n_layers` whose inputs the head reads; by default those of the published
    /// training code.
    ///
    /// # Errors
    /// When the model has no such layer.
    pub(crate) fn layers_of(&self, n_layers: usize) -> Result<[usize; N_FEATURES], ConfigError> {
        let usual = [2, n_layers / 2, n_layers.saturating_sub(3)];
        let layers = self.layers.unwrap_or(usual);
        match layers.iter().find(|&&layer| layer >= n_layers) {
            None => Ok(layers),
            Some(layer) => Err(refused(
                "the layers of the EAGLE-3 head",
                layer,
                format!("layers of the model, which has {n_layers}"),
            )),
        }
    }
}

/// Layer `i` at the top of the file means the input of layer `i` (vLLM, speculators); within `eagle_config`
/// its output (NVIDIA's and SGLang's heads).
fn layers(
    outer: &Map<String, Value>,
    eagle: Option<&Map<String, Value>>,
) -> Result<Option<[usize; N_FEATURES]>, ConfigError> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let found = [Some(outer), eagle].into_iter().zip([0, 1]);
    let found =
        found.filter_map(|(map, shift)| Some((map?.get(KEY).filter(|value| !value.is_null())?, shift)));
    let Some((value, shift)) = found.into_iter().next() else { return Ok(None) };
    let ids = value.as_array().filter(|ids| ids.len() == N_FEATURES);
    let ids = ids.and_then(|ids| ids.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    let layers = ids.and_then(|ids| {
        let layers = ids.into_iter().map(|id| usize::try_from(id).ok()?.checked_add(shift));
        <[usize; N_FEATURES]>::try_from(layers.collect::<Option<Vec<_>>>()?).ok()
    });
    layers.map(Some).ok_or_else(|| refused(KEY, value, "three layers"))
}

fn refused(key: &str, found: impl ToString, expected: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key: key.to_owned(), found: found.to_string(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = r#""model_type":"llama","hidden_size":8,"num_attention_heads":2,"num_key_value_heads":1,
        "num_hidden_layers":1,"intermediate_size":16,"vocab_size":32"#;

    fn parse(more: &str) -> Result<HeadConfig, String> {
        HeadConfig::parse(format!("{{{LAYER}{more}}}").as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn both_spellings() {
        let plain = parse(r#","draft_vocab_size":12"#).expect("valid");
        assert_eq!((plain.draft_vocabulary_size, plain.target_hidden_size), (12, 8));
        assert_eq!((plain.has_normed_residual, plain.layers_of(32)), (false, Ok([2, 16, 29])));
        let speculators = format!(
            r#"{{"speculators_model_type":"eagle3","transformer_layer_config":{{{LAYER}}},"target_hidden_size":24,
                "eagle_aux_hidden_state_layer_ids":[1,5,9]}}"#
        );
        let speculators = HeadConfig::parse(speculators.as_bytes()).expect("valid");
        assert_eq!((speculators.draft_vocabulary_size, speculators.target_hidden_size), (32, 24));
        assert_eq!((speculators.has_normed_residual, speculators.layers_of(12)), (true, Ok([1, 5, 9])));
        let nested =
            parse(r#","eagle_config":{"eagle_aux_hidden_state_layer_ids":[1,15,28]}"#).expect("valid");
        assert_eq!(nested.layers_of(32), Ok([2, 16, 29]), "outputs of layers");
        assert!(nested.layers_of(29).expect_err("too few").to_string().contains("which has 29"));
    }

    #[test]
    fn what_is_no_head_is_refused() {
        for (more, words) in [
            (r#","num_hidden_layers":2"#, "num_hidden_layers"),
            (r#","draft_vocab_size":0"#, "draft_vocab_size"),
            (r#","eagle_aux_hidden_state_layer_ids":[1,2]"#, "three layers"),
            (r#","eagle_config":{"use_aux_hidden_state":false}"#, "use_aux_hidden_state"),
            (r#","model_type":"qwen3""#, "model_type"),
        ] {
            // A later key replaces an earlier one.
            assert!(parse(more).expect_err(more).contains(words), "{more}");
        }
    }
}
