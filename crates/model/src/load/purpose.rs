//! Refuses folders of models that do not generate text although their decoders could be run, and finds the
//! GGUF files of a folder that has nothing else. Does not know shapes.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{LoadError, json_file};
use crate::arch::Architecture;
use crate::decoder::weights::has_weight;
use crate::pooling::Pooler;
use throng_checkpoint::TensorSource;
use throng_checkpoint::safetensors::{INDEX_FILE, SINGLE_FILE};

/// Endings of classes in `architectures` whose heads are not supported.
const OTHER_HEADS: [&str; 6] = [
    "RewardModel",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForAudioClassification",
];
/// Most GGUF files that an error names.
const MAX_NAMED: usize = 20;

/// Refuses a model without a pooler if its files show that it generates no text.
pub(super) fn check(
    folder: &Path,
    config_json: &Map<String, Value>,
    architecture: &Architecture,
    tensors: &dyn TensorSource,
    pooler: Option<&Pooler>,
) -> Result<(), LoadError> {
    let refused = |reason: String| Err(LoadError::NotAModel { path: folder.to_owned(), reason });
    let class = config_json.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let class = class.unwrap_or_default();
    if class.contains("Eagle3") {
        return refused(
            "is an EAGLE-3 head, which drafts tokens for its model: --draft-model takes it".to_owned(),
        );
    }
    if OTHER_HEADS.iter().any(|end| class.ends_with(end)) && !folder.join("modules.json").exists() {
        let class = json_file::shorten(class);
        return refused(format!("is a {class}, whose head is not supported (it does not generate text)"));
    }
    if pooler.is_some() {
        return Ok(());
    }
    if architecture.config.is_bidirectional() {
        return refused(
            "has attention in both directions, so that it generates no text, and no modules.json that says how \
             its outputs are pooled"
                .to_owned(),
        );
    }
    let [embedding, output] =
        [architecture.names.embedding, architecture.names.output].map(|name| format!("{name}.weight"));
    // A folder without embeddings is not whole, which the check of all tensors says.
    let lacks_output = has_weight(tensors, &embedding) && !has_weight(tensors, &output);
    if lacks_output && !is_tied(config_json, architecture) {
        return refused(format!(
            "lacks the tensor {output}, and tie_word_embeddings is not true: it is a reward, embedding or \
             headless model, which generates no text"
        ));
    }
    Ok(())
}

/// Whether the embeddings are the output projection; in a multimodal model the outer configuration may set
/// it.
fn is_tied(config_json: &Map<String, Value>, architecture: &Architecture) -> bool {
    architecture.config.tied_embeddings || config_json.get("tie_word_embeddings") == Some(&Value::Bool(true))
}

/// The GGUF file of a folder without other weights, of a split model the first part; `None` without such a
/// file.
///
/// # Errors
/// An error that names the files if they belong to several models.
pub(super) fn gguf_inside(folder: &Path) -> Result<Option<PathBuf>, LoadError> {
    let has_safetensors = [SINGLE_FILE, INDEX_FILE].iter().any(|name| folder.join(name).exists());
    let Some(entries) = std::fs::read_dir(folder).ok().filter(|_| !has_safetensors) else { return Ok(None) };
    let is_model = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        // A projector of images is no model.
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !is_later_part(&name)
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_model).collect();
    files.sort_unstable();
    match files.len() {
        0 => Ok(None),
        1 => Ok(files.pop()),
        n => {
            let names =
                files.iter().take(MAX_NAMED).filter_map(|path| Some(path.file_name()?.to_string_lossy()));
            let mut names = names.collect::<Vec<_>>().join(", ");
            if n > MAX_NAMED {
                names += ", …";
            }
            let reason = format!("has {n} GGUF files, of which one is to be named: {names}");
            Err(LoadError::NotAModel { path: folder.to_owned(), reason })
        }
    }
}

/// `name-00002-of-00003.gguf` and those after it.
fn is_later_part(name: &str) -> bool {
    let Some((rest, n)) = name.trim_end_matches(".gguf").rsplit_once("-of-") else { return false };
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = rest.rsplit_once('-').map(|(_, number)| number);
    is_number(n) && number.is_some_and(|number| is_number(number) && number != "00001")
}
