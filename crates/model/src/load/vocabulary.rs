//! The files of a model's tokenizer, as they are. Does not interpret them.

use std::path::Path;
use std::sync::Arc;

use throng_checkpoint::gguf::Gguf;

use super::LoadError;
use super::json_file::read;

/// Source of a model's vocabulary.
#[derive(Debug, Clone)]
pub enum VocabularySource {
    /// Nowhere: prompts and answers are token ids.
    None,
    /// Files of a tokenizer, as they are.
    TokenizerJson {
        /// `tokenizer.json`.
        tokenizer_json: Vec<u8>,
        /// `tokenizer_config.json`.
        tokenizer_config: Option<Vec<u8>>,
    },
    /// The vocabulary file of the program that trained the model, of a folder without a `tokenizer.json`.
    Original {
        /// Name of the file: `tekken.json`, `tiktoken.model` or `tokenizer.model`.
        name: &'static str,
        /// The file.
        bytes: Vec<u8>,
        /// `tokenizer_config.json`.
        tokenizer_config: Option<Vec<u8>>,
    },
    /// Metadata of a GGUF file.
    Gguf(Arc<Gguf>),
}

/// Names of the vocabulary files that a folder may have in place of a `tokenizer.json`, in the order in which
/// they are looked for.
const ORIGINAL_VOCABULARIES: [&str; 3] = ["tekken.json", "tiktoken.model", "tokenizer.model"];

/// The first of [`ORIGINAL_VOCABULARIES`] that a folder has.
pub(super) fn original_vocabulary(
    folder: &Path,
    tokenizer_config: Option<Vec<u8>>,
) -> Result<Option<VocabularySource>, LoadError> {
    for name in ORIGINAL_VOCABULARIES {
        if let Some(bytes) = read(&folder.join(name))? {
            return Ok(Some(VocabularySource::Original { name, bytes, tokenizer_config }));
        }
    }
    Ok(None)
}

/// The tokenizer at `path`: a folder with a `tokenizer.json` or the vocabulary file of the program that
/// trained the model, or such a file itself, with the `tokenizer_config.json` beside it.
///
/// # Errors
/// When there is none or it cannot be read.
pub fn tokenizer_files(path: &Path) -> Result<VocabularySource, LoadError> {
    let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let tokenizer_config = read(&file.with_file_name("tokenizer_config.json"))?;
    let is_original = |name: &&str| file.file_name().is_some_and(|own| own == *name);
    let original = ORIGINAL_VOCABULARIES.into_iter().find(is_original);
    match (read(&file)?, original) {
        (Some(bytes), Some(name)) => Ok(VocabularySource::Original { name, bytes, tokenizer_config }),
        (Some(tokenizer_json), None) => {
            Ok(VocabularySource::TokenizerJson { tokenizer_json, tokenizer_config })
        }
        (None, _) => original_vocabulary(path, tokenizer_config)?.ok_or_else(|| {
            let reason =
                "there is no such tokenizer: name a folder with a tokenizer.json, or the file".to_owned();
            LoadError::NotAModel { path: path.to_owned(), reason }
        }),
    }
}
