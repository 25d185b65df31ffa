//! Settings of speculative decoding, with vLLM's names: the same object as a flag's JSON and as a section
//! of the file. Does not make drafts.

use serde::Deserialize;
use throng_core::scheduling::scheduler::SpeculationMethod;

use crate::bounds;

/// Name of the method that takes drafts from earlier text of the sequence.
const NGRAM: &str = "ngram";
const DRAFT_MODEL: &str = "draft_model";
const EAGLE3: &str = "eagle3";

/// Methods of vLLM that Throng does not support.
const UNSUPPORTED: [&str; 6] = ["eagle", "medusa", "mlp_speculator", "mtp", "suffix", "ngram_gpu"];

/// `--speculative-config` and `[engine.speculation]`. Unknown keys are errors.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpeculationSection {
    /// `ngram` (prompt lookup), the default; `draft_model` or `eagle3` (the draft model or the EAGLE-3 head
    /// alone), or `none`. A draft model or a head without a method works beside prompt lookup.
    pub method: Option<String>,
    /// Maximum number of drafts of a sequence in a step.
    pub num_speculative_tokens: Option<u32>,
    /// Minimum number of tokens that must repeat.
    pub prompt_lookup_min: Option<u32>,
    /// Accepted and ignored: the longest match is always taken.
    pub prompt_lookup_max: Option<u32>,
    /// Draft model or EAGLE-3 head: a folder, a file or a hub id.
    pub model: Option<String>,
}

impl SpeculationSection {
    /// Disables drafts except those that constraints force.
    pub fn off() -> Self {
        Self { method: Some("none".into()), ..Self::default() }
    }

    /// Adds this draft model or head; removes a method that uses no model.
    pub fn with_draft_model(self, model: &str) -> Self {
        let method = self.method.filter(|method| [DRAFT_MODEL, EAGLE3].contains(&method.as_str()));
        Self { method, model: Some(model.to_owned()), ..self }
    }

    /// Checks the method and the numbers.
    ///
    /// # Errors
    /// When one is invalid; the message names it.
    pub fn check(&self) -> Result<(), String> {
        match (self.method.as_deref(), &self.model) {
            (None, _) | (Some(NGRAM | "none"), None) | (Some(DRAFT_MODEL | EAGLE3), Some(_)) => {}
            (Some(method @ (DRAFT_MODEL | EAGLE3)), None) => {
                return Err(format!("the method {method:?} needs \"model\": a folder, a file or a hub id"));
            }
            (Some(method @ (NGRAM | "none")), Some(_)) => {
                return Err(format!(
                    "the method {method:?} has no model; with a draft model leave the method out or set {DRAFT_MODEL:?}"
                ));
            }
            (Some(method), _) if UNSUPPORTED.contains(&method) => {
                return Err(format!(
                    "the method {method:?} is not supported yet; \"ngram\", \"draft_model\", \"eagle3\" and \"none\" are"
                ));
            }
            (Some(method), _) => {
                return Err(format!(
                    "the method {method:?} is not known; it must be \"ngram\", \"draft_model\", \"eagle3\" or \"none\""
                ));
            }
        }
        let numbers = [
            ("num_speculative_tokens", self.num_speculative_tokens, bounds::DRAFT_TOKENS),
            ("prompt_lookup_min", self.prompt_lookup_min, bounds::MATCH_TOKENS),
            ("prompt_lookup_max", self.prompt_lookup_max, bounds::MATCH_TOKENS),
        ];
        for (name, number, range) in numbers {
            if let Some(fault) = number.and_then(|number| bounds::fault(&number, &range)) {
                return Err(format!("{name} {fault}"));
            }
        }
        match (self.prompt_lookup_min, self.prompt_lookup_max) {
            (Some(min), Some(max)) if min > max => {
                Err("prompt_lookup_min must not be above prompt_lookup_max".into())
            }
            _ => Ok(()),
        }
    }

    /// Whether the model must be an EAGLE-3 head.
    pub fn asks_head(&self) -> bool {
        self.method.as_deref() == Some(EAGLE3)
    }

    /// The scheduler's equivalent of the method.
    pub fn scheduler_method(&self) -> SpeculationMethod {
        match self.method.as_deref() {
            Some("none") => SpeculationMethod::None,
            Some(DRAFT_MODEL | EAGLE3) => SpeculationMethod::DraftModel,
            None if self.model.is_some() => SpeculationMethod::DraftModelAndPromptLookup,
            _ => SpeculationMethod::PromptLookup,
        }
    }
}

/// Parses the JSON of `--speculative-config`.
///
/// # Errors
/// When it is not an object of known keys and values in their ranges.
pub fn parse(text: &str) -> Result<SpeculationSection, String> {
    let section: SpeculationSection = serde_json::from_str(text).map_err(|error| error.to_string())?;
    section.check()?;
    Ok(section)
}
