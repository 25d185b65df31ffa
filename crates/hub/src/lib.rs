//! Finds a model named on the command line: a local path, or the Hugging Face hub and its cache on this
//! machine. Does not read the files.
#![forbid(unsafe_code)]

#[cfg(feature = "hub")]
mod download;
#[cfg_attr(
    not(any(feature = "hub", feature = "object-store")),
    allow(dead_code, reason = "only ids are read then")
)]
mod files;
pub mod objects;

#[cfg(feature = "object-store")]
pub(crate) use files::{
    COMPANIONS, INDEX_FILE, MODULES_FILE, SINGLE_FILE, Wanted, choose, is_plain_path, module_files,
};

use std::path::{Path, PathBuf};

/// A model on the hub: `org/name`, optionally with `@revision` and `:file.gguf` or `:FORMAT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`.
    pub repository: String,
    /// A branch, tag or commit; `main` unless given.
    pub revision: String,
    /// Name or format (`Q4_K_M`) of a GGUF file of the repository.
    pub file: Option<String>,
}

/// Address of the hub and folder of its cache.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// Address of the hub.
    pub endpoint: String,
    /// Folder of the cache, which other programs share.
    pub cache: PathBuf,
    /// Key for private and gated models.
    pub token: Option<String>,
    /// Whether to use the cache only.
    pub offline: bool,
    /// Whether to show a progress bar for each file; shown only if standard error is a terminal.
    pub progress: bool,
}

/// The reason why a model cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum HubError {
    #[error(
        "{model:?} is neither a file or folder here nor a hub id (org/name, org/name:Q4_K_M, org/name:file.gguf, \
         org/name@revision)"
    )]
    NotAModel { model: String },
    #[error(
        "{model:?} is not a file or folder here, and this build cannot download models (feature \"hub\")"
    )]
    WithoutHub { model: String },
    #[error(
        "cannot get {repository}: tried {endpoint} ({reason}) and the cache in {}, which does not have it.\n\
         Without a network, copy the model here and name its folder or .gguf file: throng serve /path/to/model",
        cache.display()
    )]
    Unreachable { repository: String, endpoint: String, reason: String, cache: PathBuf },
    #[error(
        "{file} of {repository} is not in the cache in {} ({reason}).\n\
         Without a network, copy the model here and name its folder or .gguf file: throng serve /path/to/model",
        cache.display()
    )]
    NotCached { repository: String, file: String, reason: String, cache: PathBuf },
    #[error("{endpoint} has no model {repository} at revision {revision}")]
    NotFound { repository: String, revision: String, endpoint: String },
    #[error(
        "{endpoint} does not show {repository}: it does not exist, or is private or gated; for those accept its \
         terms on its page and set HF_TOKEN to an access token"
    )]
    Forbidden { repository: String, endpoint: String },
    #[error("{repository} has several GGUF files; choose one as {repository}:FILE or by its format, as {repository}:Q4_K_M\n  {}", files.join("\n  "))]
    ChooseFile { repository: String, files: Vec<String> },
    #[error("{repository} has no file {file}{}", listed(files))]
    NoSuchFile { repository: String, file: String, files: Vec<String> },
    #[error("{repository} has neither safetensors nor GGUF weights")]
    NoWeights { repository: String },
    #[error("{repository} lists the file {file:?}, which is not a plain path inside it")]
    UnsafeName { repository: String, file: String },
    #[error("cannot download {file} of {repository}: {reason}")]
    Download { repository: String, file: String, reason: String },
    #[error(
        "{file} of {repository} has {found} bytes after the download, expected {expected}; it was removed"
    )]
    WrongSize { repository: String, file: String, found: u64, expected: u64 },
    #[error("{file} has {n_bytes} bytes, and {left_bytes} may be brought")]
    NoRoom { file: String, n_bytes: u64, left_bytes: u64 },
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

fn listed(files: &[String]) -> String {
    if files.is_empty() { String::new() } else { format!("; its GGUF files are\n  {}", files.join("\n  ")) }
}

/// Prefixes that a hub id may have.
const HUB_NAMES: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// Converts the URL of a hub page (of a model, a revision or a file) into a hub id.
pub fn id_of_page(url: &str) -> Option<String> {
    let page = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    let path = HUB_NAMES.iter().find_map(|name| page.strip_prefix(name))?;
    let parts: Vec<&str> = path.split(['?', '#']).next()?.trim_end_matches('/').split('/').collect();
    let id = match parts.as_slice() {
        [organization, name] => format!("{organization}/{name}"),
        [organization, name, "tree", revision] => format!("{organization}/{name}@{revision}"),
        [organization, name, "blob" | "resolve", revision, file @ ..] => {
            format!("{organization}/{name}@{revision}:{}", file.join("/"))
        }
        _ => return None,
    };
    HubId::parse(&id).map(|_| id)
}

impl HubId {
    /// Parses `org/name[@revision][:file.gguf]` or `org/name[@revision][:FORMAT]`, with or without a prefix
    /// such as `hf.co/`; `None` when `text` does not have that form.
    pub fn parse(text: &str) -> Option<Self> {
        let text = HUB_NAMES.iter().find_map(|name| text.strip_prefix(name)).unwrap_or(text);
        let (text, file) = match text.split_once(':') {
            Some((text, file)) => (text, Some(file)),
            None => (text, None),
        };
        let (repository, revision) = text.split_once('@').unwrap_or((text, "main"));
        let is_name = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        let (organization, name) = repository.split_once('/')?;
        (is_name(organization)
            && is_name(name)
            && revision.split('/').all(is_name)
            && file.is_none_or(files::is_plain_path))
        .then(|| Self {
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }
}

impl HubSettings {
    /// Reads environment variables, with the names and defaults of `huggingface_hub`: `HF_ENDPOINT`,
    /// `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`. `variable` reads one.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let caches = variable("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
                variable("HOME")
                    .or_else(|| variable("USERPROFILE"))
                    .map(PathBuf::from)
                    .unwrap_or_default()
                    .join(".cache")
            });
            caches.join("huggingface")
        });
        let cache = variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        let token = variable("HF_TOKEN").or_else(|| std::fs::read_to_string(home.join("token")).ok());
        let is_set =
            |name| variable(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
        Self {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            cache,
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: is_set("HF_HUB_OFFLINE"),
            progress: true,
        }
    }
}

/// The folder or .gguf file of `model`: a path on this machine, else the files from the hub or its cache.
///
/// # Errors
/// When there is no such path or hub model, or it cannot be fetched.
pub fn locate(model: &str, settings: &HubSettings) -> Result<PathBuf, HubError> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    // If a local folder lacks the file, the hub is not queried for it.
    let is_missing_file = path.extension().is_some_and(|extension| extension == "gguf")
        && !model.contains(':')
        && path.parent().is_some_and(Path::is_dir);
    let id = HubId::parse(model).filter(|_| !is_missing_file);
    let id = id.ok_or_else(|| HubError::NotAModel { model: model.to_owned() })?;
    fetch(&id, model, settings)
}

/// The folder of a hub model's newest commit in the cache, complete or not.
///
/// # Errors
/// When `model` is no hub id, or the cache does not have it.
pub fn cached_folder(model: &str, settings: &HubSettings) -> Result<PathBuf, HubError> {
    let id = HubId::parse(model).ok_or_else(|| HubError::NotAModel { model: model.to_owned() })?;
    #[cfg(feature = "hub")]
    return download::cached_folder(&id, settings);
    #[cfg(not(feature = "hub"))]
    {
        let _ = settings;
        Err(HubError::WithoutHub { model: id.repository })
    }
}

/// Limit and progress report of a download.
pub struct Watch<'a> {
    /// Maximum bytes to download.
    pub max_bytes: u64,
    /// Receives the name of a file, its downloaded bytes and its size in bytes.
    pub report: &'a mut dyn FnMut(&str, u64, u64),
}

/// Fetches a model as by [`locate`], with a limit and progress reports.
///
/// # Errors
/// Errors of [`locate`], and [`HubError::NoRoom`] before a file that exceeds the limit.
pub fn fetch_watched<'a>(
    id: &'a HubId,
    settings: &'a HubSettings,
    watch: Watch<'a>,
) -> Result<PathBuf, HubError> {
    #[cfg(feature = "hub")]
    return download::fetch(id, settings, Some(watch));
    #[cfg(not(feature = "hub"))]
    {
        let _ = (settings, watch);
        Err(HubError::WithoutHub { model: id.repository.clone() })
    }
}

#[cfg(feature = "hub")]
fn fetch(id: &HubId, _model: &str, settings: &HubSettings) -> Result<PathBuf, HubError> {
    download::fetch(id, settings, None)
}

#[cfg(not(feature = "hub"))]
fn fetch(_id: &HubId, model: &str, _settings: &HubSettings) -> Result<PathBuf, HubError> {
    Err(HubError::WithoutHub { model: model.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_organization_and_a_name() {
        let id = HubId::parse("org/name").unwrap();
        assert_eq!((id.repository.as_str(), id.revision.as_str(), id.file), ("org/name", "main", None));
        let id = HubId::parse("org/na.me-7B@refs/pr/3:q4/model.gguf").unwrap();
        assert_eq!((id.repository.as_str(), id.revision.as_str()), ("org/na.me-7B", "refs/pr/3"));
        assert_eq!(id.file.as_deref(), Some("q4/model.gguf"));
        assert_eq!(HubId::parse("hf.co/org/name:Q4_K_M"), HubId::parse("org/name:Q4_K_M"));
        for bad in [
            "name",
            "/name",
            "org/",
            "a/b/c",
            "../b",
            "a/..",
            "org/name:",
            "org/name:../x",
            "org/name@",
            "o g/n",
            "a/b@../c",
        ] {
            assert_eq!(HubId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn pages_of_the_hub_are_ids() {
        for (url, id) in [
            ("https://huggingface.co/org/name", Some("org/name")),
            ("https://huggingface.co/org/name/tree/v1/", Some("org/name@v1")),
            ("https://hf.co/org/name/blob/main/q4/a.gguf?x=1", Some("org/name@main:q4/a.gguf")),
            ("https://huggingface.co/org/name/resolve/main/a.gguf", Some("org/name@main:a.gguf")),
            ("https://huggingface.co/datasets/org/name", None),
            ("https://example.org/org/name", None),
            ("https://huggingface.co/org/../name", None),
        ] {
            assert_eq!(id_of_page(url).as_deref(), id, "{url}");
        }
    }

    #[test]
    fn settings_follow_the_environment() {
        let from = |set: &'static [(&str, &str)]| {
            HubSettings::from_env(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
        };
        let plain = from(&[("HOME", "/home/u")]);
        assert_eq!(plain.cache, Path::new("/home/u/.cache/huggingface/hub"));
        assert_eq!((plain.endpoint.as_str(), plain.offline), ("https://huggingface.co", false));
        assert_eq!(from(&[("HF_HOME", "/x"), ("HOME", "/home/u")]).cache, Path::new("/x/hub"));
        assert_eq!(from(&[("XDG_CACHE_HOME", "/c")]).cache, Path::new("/c/huggingface/hub"));
        let all =
            from(&[("HF_HUB_CACHE", "/y"), ("HF_HOME", "/x"), ("HF_TOKEN", " t\n"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(
            (all.cache.as_path(), all.token.as_deref(), all.offline),
            (Path::new("/y"), Some("t"), true)
        );
    }

    #[test]
    fn an_existing_path_is_not_looked_up_on_the_hub() {
        let settings = HubSettings::from_env(|_| None);
        assert_eq!(locate("src", &settings).unwrap(), Path::new("src"));
        for missing in ["no-such-thing", "src/missing.gguf"] {
            assert!(matches!(locate(missing, &settings), Err(HubError::NotAModel { .. })), "{missing}");
        }
    }
}
