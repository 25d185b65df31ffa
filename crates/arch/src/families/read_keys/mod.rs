//! The keys of a `config.json` that the modelling and configuration code of transformers reads for text, by
//! `model_type`, with their defaults: `keys.jsonl`, which `generate.py` writes from a
//! version of transformers that its first line names.

use serde::Deserialize;
use serde_json::{Map, Value};

const KEYS: &str = include_str!("keys.jsonl");

/// The keys of one `model_type`.
#[derive(Debug, Deserialize)]
pub(super) struct ReadKeys {
    model_type: String,
    keys: Map<String, Value>,
    without_default: Vec<String>,
    aliases: Map<String, Value>,
}

impl ReadKeys {
    /// The list of the first of these names that has one.
    pub(super) fn of(model_types: &[&str]) -> Option<Self> {
        let lists = || KEYS.lines().filter_map(|line| serde_json::from_str::<Self>(line).ok());
        model_types.iter().find_map(|name| lists().find(|list| list.model_type == *name))
    }

    /// Whether transformers reads the key, by this name or another.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
            || self.aliases.contains_key(key)
            || self.without_default.iter().any(|other| other == key)
    }

    /// Default value of a key that a file leaves out; `None` if it is not known.
    pub(super) fn default_of(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).or_else(|| self.keys.get(self.aliases.get(key)?.as_str()?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::FAMILIES;
    use super::*;

    #[test]
    fn every_name_of_every_family_has_a_list() {
        for family in FAMILIES {
            for name in std::iter::once(&family.model_type).chain(family.aliases) {
                let found = ReadKeys::of(&[*name, family.model_type]);
                assert!(
                    found.is_some_and(|list| list.has("hidden_size") && list.has("vocab_size")),
                    "{name}"
                );
            }
        }
        let first: Value = serde_json::from_str(KEYS.lines().next().unwrap()).unwrap();
        assert!(first["transformers"].as_str().is_some_and(|version| version.starts_with("5.")), "{first}");
    }

    #[test]
    fn a_list_has_defaults_and_other_names() {
        let list = ReadKeys::of(&["nothing", "gemma2"]).unwrap();
        assert_eq!(list.default_of("final_logit_softcapping"), Some(&Value::from(30.0)));
        assert_eq!((list.has("vision_soft_tokens_per_image"), list.default_of("is_causal")), (false, None));
        let list = ReadKeys::of(&["nemotron_h"]).unwrap();
        assert!(list.has("layer_types") && list.has("layers_block_type"));
    }
}
