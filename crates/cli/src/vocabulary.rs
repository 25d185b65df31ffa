//! Builds the tokenizer from the vocabulary in a model's files: the only module that imports both
//! `throng_model` and `throng_text`.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use throng_checkpoint::gguf::{Gguf, GgufArray, GgufError, GgufMetadata, GgufStrings};
use throng_model::{LoadedModel, VocabularySource};
use throng_text::{
    ConvertedVocabulary, GgufEncoderKeys, GgufInfillKeys, GgufVocabulary, OriginalVocabulary, Tokenizer,
};

/// Converts a vocabulary file of the program that trained the model into a `tokenizer.json`. One that is not
/// supported leaves the model without a tokenizer, with a warning.
pub fn convert_original(model: &mut LoadedModel) {
    let VocabularySource::Original { name, bytes, tokenizer_config } = &model.vocabulary else { return };
    let kind = OriginalVocabulary::ALL.into_iter().find(|kind| kind.file_name() == *name);
    let converted = kind.map(|kind| kind.convert(bytes, tokenizer_config.as_deref()));
    model.vocabulary = match converted {
        Some(Ok(ConvertedVocabulary { tokenizer_json, tokenizer_config, chat_template })) => {
            if let Some(template) = chat_template.filter(|_| model.chat_templates.is_empty()) {
                model.chat_templates.insert("default".to_owned(), template);
            }
            VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config }
        }
        Some(Err(error)) => {
            tracing::warn!("{name} is not read, prompts and answers are token ids: {error}");
            VocabularySource::None
        }
        None => VocabularySource::None,
    };
}

/// The tokenizer of a model, if it has one.
///
/// # Errors
/// When its files are broken or of an unsupported kind.
pub fn tokenizer(model: &LoadedModel) -> Result<Option<Tokenizer>> {
    let mut tokenizer = match &model.vocabulary {
        VocabularySource::None | VocabularySource::Original { .. } => return Ok(None),
        VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config } => {
            Tokenizer::from_tokenizer_json(tokenizer_json, tokenizer_config.as_deref())
        }
        VocabularySource::Gguf(gguf) => Tokenizer::from_gguf(&gguf_vocabulary(gguf)?),
    }
    .with_context(|| format!("the tokenizer of {}", model.name))?;
    tokenizer.limit_to_context(model.config.max_sequence_tokens);
    Ok(Some(tokenizer))
}

/// The tokenizer's configuration as JSON: `tokenizer_config.json` if the model has one, with special tokens
/// as text, completed from the tokenizer and the chat template.
pub fn tokenizer_config(model: &LoadedModel, tokenizer: &Tokenizer, chat_template: Option<String>) -> String {
    let file = match &model.vocabulary {
        VocabularySource::TokenizerJson { tokenizer_config, .. } => tokenizer_config.as_deref(),
        _ => None,
    };
    let mut config: Map<String, Value> =
        file.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    for (name, value) in &mut config {
        if name.ends_with("_token")
            && let Some(content) = value.get_mut("content").map(Value::take)
        {
            *value = content;
        }
    }
    let mut add = |name: &str, value: Value| {
        if config.get(name).is_none_or(Value::is_null) {
            config.insert(name.to_owned(), value);
        }
    };
    add("tokenizer_class", "PreTrainedTokenizerFast".into());
    add("model_max_length", model.config.max_sequence_tokens.into());
    for (name, text) in &tokenizer.special_tokens().named {
        add(name, text.as_str().into());
    }
    if let Some(template) = chat_template.or_else(|| model.chat_templates.get("default").cloned()) {
        config.insert("chat_template".to_owned(), template.into());
    }
    Value::Object(config).to_string()
}

/// The tokenizer that the operator chose instead of the model's own, if any.
///
/// # Errors
/// When its files are broken or of an unsupported kind, or it has tokens that the model does not have.
pub fn chosen_tokenizer(model: &LoadedModel) -> Result<Option<Tokenizer>> {
    let tokenizer = tokenizer(model)?;
    let (n, known) = (tokenizer.as_ref().map_or(0, Tokenizer::vocabulary_size), model.config.vocabulary_size);
    if n > known {
        bail!("--tokenizer names that of another model: it has {n} tokens, and {} knows {known}", model.name);
    }
    Ok(tokenizer)
}

/// The vocabulary from the metadata of a GGUF file.
///
/// # Errors
/// When a key has a value of the wrong type.
pub fn gguf_vocabulary(gguf: &Gguf) -> Result<GgufVocabulary, GgufError> {
    let metadata = gguf.metadata();
    let flag = |name: &str| metadata.bool(&key(name));
    Ok(GgufVocabulary {
        model: metadata.str(&key("model"))?.unwrap_or_default().to_owned(),
        pre: metadata.str(&key("pre"))?.map(str::to_owned),
        model_name: metadata.str("general.name")?.map(str::to_owned),
        tokens: strings(metadata.strings(&key("tokens"))?),
        scores: scores(metadata)?,
        token_types: token_types(metadata)?,
        merges: strings(metadata.strings(&key("merges"))?),
        bos_token_id: token_id(metadata, "bos_token_id")?,
        eos_token_id: token_id(metadata, "eos_token_id")?,
        eot_token_id: token_id(metadata, "eot_token_id")?,
        eom_token_id: token_id(metadata, "eom_token_id")?,
        unknown_token_id: token_id(metadata, "unknown_token_id")?,
        padding_token_id: token_id(metadata, "padding_token_id")?,
        add_bos_token: flag("add_bos_token")?,
        add_eos_token: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        infill: infill_keys(metadata)?,
        encoder: GgufEncoderKeys {
            separator_token_id: token_id(metadata, "seperator_token_id")?,
            cls_token_id: token_id(metadata, "cls_token_id")?,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            precompiled_charsmap: bytes(metadata.array(&key("precompiled_charsmap"))?),
        },
    })
}

/// Keys of the fill-in-the-middle tokens, by their current or older names.
fn infill_keys(metadata: &GgufMetadata) -> Result<GgufInfillKeys, GgufError> {
    let either = |name: &str, older: &str| -> Result<Option<u32>, GgufError> {
        Ok(token_id(metadata, name)?.or(token_id(metadata, older)?))
    };
    Ok(GgufInfillKeys {
        before: either("fim_pre_token_id", "prefix_token_id")?,
        behind: either("fim_suf_token_id", "suffix_token_id")?,
        middle: either("fim_mid_token_id", "middle_token_id")?,
        repository: token_id(metadata, "fim_rep_token_id")?,
        file: token_id(metadata, "fim_sep_token_id")?,
        end: token_id(metadata, "fim_pad_token_id")?,
    })
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn token_id(metadata: &GgufMetadata, name: &str) -> Result<Option<u32>, GgufError> {
    Ok(metadata.u64(&key(name))?.and_then(|id| u32::try_from(id).ok()))
}

fn strings(array: Option<&GgufStrings>) -> Vec<String> {
    array.into_iter().flat_map(GgufStrings::iter).map(str::to_owned).collect()
}

fn bytes(array: Option<&GgufArray>) -> Vec<u8> {
    match array {
        Some(GgufArray::U8(bytes)) => bytes.clone(),
        Some(GgufArray::I8(bytes)) => bytes.iter().map(|byte| byte.cast_unsigned()).collect(),
        _ => Vec::new(),
    }
}

fn scores(metadata: &GgufMetadata) -> Result<Vec<f32>, GgufError> {
    Ok(match metadata.array(&key("scores"))? {
        Some(GgufArray::F32(scores)) => scores.clone(),
        _ => Vec::new(),
    })
}

fn token_types(metadata: &GgufMetadata) -> Result<Vec<i32>, GgufError> {
    let types = metadata.array(&key("token_type"))?.and_then(GgufArray::to_u64s).unwrap_or_default();
    Ok(types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(0)).collect())
}
