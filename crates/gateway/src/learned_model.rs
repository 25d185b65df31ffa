//! Creates a served model from a worker's description, vocabulary and chat templates. Does not know the
//! workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use serde_json::Value;
use throng_core::request::{Adapter, AdapterId};
use throng_fleet::adapters::{AdapterFault, AdapterLoader, AdapterModule, AdapterSettings, LoadedAdapter};
use throng_text::{AnswerFormat, ChatTemplate, Tokenizer};
use throng_wire::{ArtifactKind, Description, Vocabulary};

use crate::image_input::ImageInput;
use crate::served_model::ServedModel;
use throng_metering::HeldBytes;

/// Creates a model from a worker's description and artifacts.
///
/// # Errors
/// A description of the unusable setting.
pub(crate) async fn learn(
    description: Description,
    artifacts: Vec<(ArtifactKind, Bytes)>,
) -> Result<ServedModel, String> {
    // A large vocabulary takes a second.
    let made = tokio::task::spawn_blocking(move || model(description, &artifacts)).await;
    made.unwrap_or_else(|_| Err("its vocabulary cannot be read".to_owned()))
}

fn model(description: Description, artifacts: &[(ArtifactKind, Bytes)]) -> Result<ServedModel, String> {
    let find = |kind| artifacts.iter().find(|(of, _)| *of == kind).map(|(_, bytes)| bytes);
    let tokenizer = match (find(ArtifactKind::TokenizerJson), find(ArtifactKind::GgufVocabulary)) {
        (Some(json), _) => {
            let config = find(ArtifactKind::TokenizerConfig).map(|bytes| &bytes[..]);
            Some(Tokenizer::from_tokenizer_json(json, config).map_err(|error| error.to_string())?)
        }
        (None, Some(json)) => {
            let vocabulary: Vocabulary = serde_json::from_slice(json).map_err(|error| error.to_string())?;
            Some(Tokenizer::from_gguf(&vocabulary.into()).map_err(|error| error.to_string())?)
        }
        (None, None) => None,
    };
    let caller = usize::try_from(description.context_tokens).unwrap_or(usize::MAX);
    let tokenizer = tokenizer.map(|mut tokenizer| {
        tokenizer.limit_to_context(caller);
        Arc::new(tokenizer)
    });
    let templates = find(ArtifactKind::ChatTemplates).map(|json| {
        let named: Vec<(String, String)> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        ChatTemplate::from_named(named).map(Arc::new).map_err(|error| error.to_string())
    });
    let chat_template = templates.transpose()?;
    let images = match (find(ArtifactKind::ImageProcessor), &tokenizer) {
        (Some(json), Some(tokenizer)) if description.takes_media => {
            Some(Arc::new(image_input(json, tokenizer)?))
        }
        _ => None,
    };
    let (calls, reasoning) =
        (description.tool_call_parser.as_deref(), description.reasoning_parser.as_deref());
    let answer_format = tokenizer
        .as_ref()
        .map(|tokenizer| AnswerFormat::of_model(chat_template.as_deref(), tokenizer, calls, reasoning));
    Ok(ServedModel {
        fingerprint: None,
        root: description.names.last().cloned().unwrap_or_default(),
        names: description.names,
        engines: Vec::new(),
        tokenizer,
        tokenizer_config: None,
        chat_template,
        chat_template_defaults: description.chat_template_defaults,
        images,
        answer_format: Arc::new(answer_format.unwrap_or_default()),
        generation_defaults: description.defaults,
        eos_token_ids: description.eos_token_ids,
        max_model_len: description.max_model_len,
        vocabulary_size: description.vocabulary_size,
        pooling: description.pooling.map(Into::into),
        adapters: (!description.adapters.is_empty()).then(|| remote_adapters(&description.adapters)),
        notice: description.notice,
        held: HeldBytes::default(),
    })
}

fn image_input(json: &[u8], tokenizer: &Tokenizer) -> Result<ImageInput, String> {
    let [preprocessor, config]: [Value; 2] =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    ImageInput::new(&preprocessor, &config, tokenizer)
}

/// Adapters of the workers, which take no memory here.
#[derive(Debug, Default)]
struct RemoteAdapters {
    n_named: AtomicU32,
}

impl AdapterLoader for RemoteAdapters {
    fn load(&self, _path: &str) -> Result<LoadedAdapter, AdapterFault> {
        let adapter = Adapter::numbered(AdapterId(self.n_named.fetch_add(1, Ordering::Relaxed)));
        Ok(LoadedAdapter { adapter, held: Arc::new(()) })
    }
}

fn remote_adapters(names: &[String]) -> AdapterSettings {
    let module = |name: &String| AdapterModule { name: name.clone(), path: name.clone(), loaded: None };
    AdapterSettings {
        loader: Arc::new(RemoteAdapters::default()),
        modules: names.iter().map(module).collect(),
        allow_runtime_updates: false,
    }
}
