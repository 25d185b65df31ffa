//! `tokenizer_config.json`: the special tokens and the chat templates. Does not know the vocabulary.

use serde_json::Value;
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use super::added_tokens::AddedEntry;
use crate::error::TokenizerError;

/// The parts of a `tokenizer_config.json` that Throng reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Text of the BOS token.
    pub bos_token: Option<String>,
    /// Text of the EOS token.
    pub eos_token: Option<String>,
    /// Whether a sequence starts with BOS, if the file says so and its tokenizer class applies it.
    pub add_bos_token: Option<bool>,
    /// Whether a sequence ends with EOS, if the file says so and its tokenizer class applies it.
    pub add_eos_token: Option<bool>,
    /// Pairs `(name, source)`; a single template has the name `default`.
    pub chat_templates: Vec<(String, String)>,
    /// `bos_token`, `eos_token`, `unk_token`, … as template variables.
    pub(crate) named: Vec<(String, String)>,
    pub(crate) added: Vec<AddedEntryConfig>,
}

/// Keys whose values are special tokens.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// One entry of `added_tokens_decoder`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedEntryConfig {
    id: u32,
    token: AddedToken,
}

impl TokenizerConfig {
    /// Parses the file.
    ///
    /// # Errors
    /// When it is not a JSON object.
    pub fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        let value: Value = serde_json::from_slice(json)
            .map_err(|error| TokenizerError::Malformed(format!("tokenizer_config.json: {error}")))?;
        if !value.is_object() {
            return Err(TokenizerError::Malformed("tokenizer_config.json is not an object".to_owned()));
        }
        let heeds_switches = value["tokenizer_class"].as_str().is_none_or(heeds_switches);
        let switch = |name: &str| value[name].as_bool().filter(|_| heeds_switches);
        let added = value["added_tokens_decoder"].as_object().into_iter().flatten();
        Ok(Self {
            bos_token: token_text(&value["bos_token"]),
            eos_token: token_text(&value["eos_token"]),
            add_bos_token: switch("add_bos_token"),
            add_eos_token: switch("add_eos_token"),
            chat_templates: chat_templates(&value["chat_template"]),
            named: NAMED
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), token_text(&value[*name])?)))
                .collect(),
            added: added.filter_map(|(id, token)| added_entry(id, token)).collect(),
        })
    }

    pub(crate) fn added_entries(&self) -> impl Iterator<Item = AddedEntry> + '_ {
        self.added.iter().map(|entry| AddedEntry { id: entry.id, token: entry.token.clone() })
    }
}

/// Whether `add_bos_token` and `add_eos_token` override the post-processor of `tokenizer.json` in this
/// tokenizer class of transformers. In other classes `tokenizer.json` decides.
fn heeds_switches(class: &str) -> bool {
    const CLASSES: [&str; 5] = ["Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX"];
    let name = class.strip_suffix("Fast").unwrap_or(class);
    name.strip_suffix("Tokenizer").is_some_and(|family| CLASSES.contains(&family))
}

/// A token, written as its text or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

fn chat_templates(value: &Value) -> Vec<(String, String)> {
    if let Some(source) = value.as_str() {
        return vec![("default".to_owned(), source.to_owned())];
    }
    let named = value.as_array().into_iter().flatten();
    named
        .filter_map(|entry| {
            Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()))
        })
        .collect()
}

fn added_entry(id: &str, token: &Value) -> Option<AddedEntryConfig> {
    let flag = |name: &str, default| token[name].as_bool().unwrap_or(default);
    let special = flag("special", false);
    let token = AddedToken::from(token["content"].as_str()?, special)
        .single_word(flag("single_word", false))
        .lstrip(flag("lstrip", false))
        .rstrip(flag("rstrip", false))
        .normalized(flag("normalized", !special));
    Some(AddedEntryConfig { id: id.parse().ok()?, token })
}
