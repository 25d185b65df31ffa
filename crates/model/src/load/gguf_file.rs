//! GGUF files, which have everything in their metadata.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use throng_core::request::GenerationDefaults;

use super::{LoadError, LoadedModel, VocabularySource, chat_templates, gguf_pooler};
use crate::arch::Architecture;
use throng_checkpoint::gguf::{Gguf, GgufMetadata};

pub(super) fn open(path: &Path) -> Result<LoadedModel, LoadError> {
    of(Gguf::open(path)?, path)
}

/// The model in a GGUF file that was read already; `path` is its file, or its name.
pub(super) fn of(gguf: Gguf, path: &Path) -> Result<LoadedModel, LoadError> {
    let gguf = Arc::new(gguf);
    let metadata = gguf.metadata();
    let architecture = Architecture::from_gguf(metadata, &*gguf)?;
    let pooler = gguf_pooler::of_file(path, &gguf, &architecture.config)?;
    let chat_templates = chat_templates::of_gguf(metadata)?;
    let vocabulary = match metadata.get("tokenizer.ggml.tokens") {
        Some(_) => VocabularySource::Gguf(Arc::clone(&gguf)),
        None => VocabularySource::None,
    };
    Ok(LoadedModel {
        path: path.to_owned(),
        name: stem(path),
        config: Arc::new(architecture.config.clone()),
        vocabulary,
        chat_templates,
        generation_defaults: generation_defaults(metadata),
        eos_token_ids: eos_token_ids(metadata),
        bos_token_id: token_id(metadata, "bos_token_id"),
        pooler,
        media: None,
        fingerprint: OnceLock::new(),
        architecture,
        own_part: None,
        tensors: gguf,
        unread_tensors: Vec::new(),
        quantize: None,
        cache: None,
        prepared: Default::default(),
    })
}

/// The file's name without the extension and without the number of a part.
fn stem(path: &Path) -> String {
    let stem = path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy());
    let is_count = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = stem.rsplit_once("-of-").filter(|(_, n)| is_count(n)).and_then(|(rest, _)| {
        rest.rsplit_once('-').filter(|(_, idx)| is_count(idx)).map(|(name, _)| name.to_owned())
    });
    whole.unwrap_or_else(|| stem.into_owned())
}

fn token_id(metadata: &GgufMetadata, name: &str) -> Option<u32> {
    let id = metadata.get(&format!("tokenizer.ggml.{name}"))?.as_u64()?;
    u32::try_from(id).ok()
}

/// Ids of end tokens in the metadata. Many files name only the end of a text; the tokenizer adds the tokens
/// of its vocabulary that are known to end an answer.
fn eos_token_ids(metadata: &GgufMetadata) -> Vec<u32> {
    let named = ["eos_token_id", "eot_token_id", "eom_token_id"];
    let mut ids: Vec<u32> = named.iter().filter_map(|name| token_id(metadata, name)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn generation_defaults(metadata: &GgufMetadata) -> GenerationDefaults {
    let value = |name: &str| metadata.get(&format!("general.sampling.{name}"));
    let number = |name: &str| value(name).and_then(|value| value.as_f64()).map(|number| number as f32);
    GenerationDefaults {
        temperature: number("temp"),
        top_p: number("top_p"),
        top_k: value("top_k").and_then(|value| value.as_u64()).and_then(|k| u32::try_from(k).ok()),
        min_p: number("min_p"),
        repetition_penalty: number("penalty_repeat"),
        max_tokens: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_split_model_answers_to_the_name_of_the_whole() {
        assert_eq!(stem(Path::new("/m/tiny-Q8_0.gguf")), "tiny-Q8_0");
        assert_eq!(stem(Path::new("/m/tiny-Q8_0-00002-of-00003.gguf")), "tiny-Q8_0");
        assert_eq!(stem(Path::new("/m/one-of-many.gguf")), "one-of-many");
    }
}
