//! Finds the chat templates in a model's files; a model may have several, by name. Does not know their
//! contents and which one a request uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::json_file::{malformed, object, read, read_object};
use super::{ChatTemplates, LoadError};
use throng_checkpoint::gguf::{GgufError, GgufMetadata};

/// The name of the template that is used by default.
const DEFAULT: &str = "default";
/// Maximum number of files of a folder that are read as further templates.
const MAX_TEMPLATES: usize = 64;

/// The templates of a folder, as transformers finds them: `chat_template.jinja`, else that of
/// `tokenizer_config.json`, else that of `chat_template.json`; and the files of `additional_chat_templates`,
/// named by their stems.
pub(super) fn of_folder(folder: &Path, tokenizer_config: Option<&[u8]>) -> Result<ChatTemplates, LoadError> {
    let mut templates = match text(&folder.join("chat_template.jinja"))? {
        Some(template) => BTreeMap::from([(DEFAULT.to_owned(), template)]),
        None => {
            let path = folder.join("tokenizer_config.json");
            let of_config = of_object(&object(&path, tokenizer_config.map(<[u8]>::to_vec))?);
            if of_config.is_empty() {
                of_object(&read_object(folder, "chat_template.json")?)
            } else {
                of_config
            }
        }
    };
    for path in additional(folder)? {
        if let (Some(name), Some(template)) = (path.file_stem().and_then(|stem| stem.to_str()), text(&path)?)
        {
            templates.insert(name.to_owned(), template);
        }
    }
    Ok(templates)
}

/// The templates in the metadata of a GGUF file: `tokenizer.chat_template` and
/// `tokenizer.chat_template.NAME`.
pub(super) fn of_gguf(metadata: &GgufMetadata) -> Result<ChatTemplates, GgufError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = ChatTemplates::new();
    for (key, _) in metadata.iter() {
        let Some(suffix) = key.strip_prefix(KEY) else { continue };
        let name = if suffix.is_empty() { Some(DEFAULT) } else { suffix.strip_prefix('.') };
        if let (Some(name), Some(template)) = (name, metadata.str(key)?) {
            templates.insert(name.to_owned(), template.to_owned());
        }
    }
    Ok(templates)
}

/// One template or a list of `{"name", "template"}` under `chat_template`.
fn of_object(object: &Map<String, Value>) -> ChatTemplates {
    let string = |value: &Value| value.as_str().map(str::to_owned);
    match object.get("chat_template") {
        Some(Value::String(template)) => BTreeMap::from([(DEFAULT.to_owned(), template.clone())]),
        Some(Value::Array(named)) => {
            let pair = |entry: &Value| Some((string(&entry["name"])?, string(&entry["template"])?));
            named.iter().filter_map(pair).collect()
        }
        Some(Value::Object(named)) => {
            named.iter().filter_map(|(name, template)| Some((name.clone(), string(template)?))).collect()
        }
        _ => ChatTemplates::new(),
    }
}

/// The files of `additional_chat_templates`, sorted; empty without such a folder.
fn additional(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let path = folder.join("additional_chat_templates");
    let io_error = |source| LoadError::Io { path: path.clone(), source };
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(io_error)?.path();
        if file.extension().is_some_and(|extension| extension == "jinja") {
            files.push(file);
        }
        if files.len() > MAX_TEMPLATES {
            return Err(malformed(&path, format!("has more than {MAX_TEMPLATES} templates")));
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn text(path: &Path) -> Result<Option<String>, LoadError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|error| malformed(path, error.to_string()))
}
