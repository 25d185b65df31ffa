//! Models in buckets and on web servers: `s3://`, `gs://`, `az://`, `https://` and `http://`, a folder or
//! one .gguf file. The model cache has a folder for each version, so that a model's files are always of one
//! version. Does not read the files.

#[cfg(feature = "object-store")]
mod download;
#[cfg(feature = "object-store")]
mod redirects;
#[cfg(feature = "object-store")]
mod snapshot;
#[cfg(feature = "object-store")]
mod store;
#[cfg(feature = "object-store")]
mod sums;

use std::path::PathBuf;

use crate::{HubError, HubSettings};

/// The folder of the model cache for models from URLs.
pub const FOLDER: &str = "throng-objects";
/// The file in a model's folder that contains its URL.
pub const URL_FILE: &str = "url";
/// Timeout of a request with its response; a part of a file is one request.
#[cfg(feature = "object-store")]
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(300);
const SCHEMES: [&str; 5] = ["s3", "gs", "az", "https", "http"];

/// The reason why a model cannot be fetched from its URL.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum ObjectsError {
    #[error("{url}: {reason}")]
    Url { url: String, reason: &'static str },
    #[error(
        "cannot get {url} ({reason}), and the cache in {} does not have it.\n\
         s3:// reads AWS_* variables, gs:// GOOGLE_*, az:// AZURE_* (docs/models.md)",
        cache.display()
    )]
    Unreachable { url: String, reason: String, cache: PathBuf },
    #[error(transparent)]
    Files(#[from] HubError),
    #[error("{url} has several GGUF files; name one of them\n  {}", files.join("\n  "))]
    ChooseFile { url: String, files: Vec<String> },
    #[error("cannot get {file} of {url}: {reason}")]
    Download { url: String, file: String, reason: String },
    #[error("{file} of {url} has the digest {found}, expected {expected}; it was removed")]
    WrongDigest { url: String, file: String, found: String, expected: String },
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// A model's URL, with the digest that pins it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "object-store"), allow(dead_code, reason = "only read then"))]
struct ModelUrl {
    /// URL without the pin and without a trailing slash.
    url: String,
    /// `#sha256=…`: digest of the .gguf file, or of a folder's `SHA256SUMS`. 64 lower-case hexadecimal
    /// digits.
    sha256: Option<String>,
}

/// Whether `model` is a URL of a bucket or web server.
pub fn is_url(model: &str) -> bool {
    model.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// The name of the model at a URL: the last part of its path, without `.gguf`.
pub fn name(url: &str) -> &str {
    let path = url.split_once('#').map_or(url, |(path, _)| path).trim_end_matches('/');
    let last = path.rsplit('/').next().unwrap_or(path);
    last.strip_suffix(".gguf").unwrap_or(last)
}

impl ModelUrl {
    fn parse(text: &str) -> Result<Self, ObjectsError> {
        let (url, pin) = text.split_once('#').map_or((text, None), |(url, pin)| (url, Some(pin)));
        let fault = |reason| ObjectsError::Url { url: url.to_owned(), reason };
        let (_, place) = url.split_once("://").ok_or_else(|| fault("it is no URL"))?;
        let host = place.split('/').next().unwrap_or_default();
        if host.is_empty() || host.contains('@') || url.contains('?') {
            return Err(ObjectsError::Url {
                url: "a model's URL".to_owned(),
                reason: "it must name a host or bucket, and no user, password or query: it is shown to clients",
            });
        }
        let sha256 = match pin.map(|pin| pin.strip_prefix("sha256=").unwrap_or_default()) {
            None => None,
            Some(digest) if digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Some(digest.to_ascii_lowercase())
            }
            Some(_) => return Err(fault("what follows # must be sha256= and 64 hexadecimal digits")),
        };
        Ok(Self { url: url.trim_end_matches('/').to_owned(), sha256 })
    }
}

/// The folder or (first) .gguf file of the model at a URL, fetched unless the cache has it.
///
/// # Errors
/// Any [`ObjectsError`].
#[cfg(feature = "object-store")]
pub fn locate(url: &str, settings: &HubSettings) -> Result<PathBuf, ObjectsError> {
    let url = ModelUrl::parse(url)?;
    let reason = |error: std::io::Error| ObjectsError::Io { path: settings.cache.clone(), source: error };
    // The object store client uses the process's crypto provider. Another thread may have installed it
    // meanwhile.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A caller inside of a runtime could not block on another one in its own thread.
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.map_err(reason)?.block_on(snapshot::fetch(&url, settings))
        });
        fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Fails: this build has no support for URLs.
///
/// # Errors
/// Always: this build has no object stores.
#[cfg(not(feature = "object-store"))]
pub fn locate(url: &str, _settings: &HubSettings) -> Result<PathBuf, ObjectsError> {
    let ModelUrl { url, .. } = ModelUrl::parse(url)?;
    Err(ObjectsError::Url {
        url,
        reason: "this build cannot fetch models from URLs (feature \"object-store\")",
    })
}

/// The messages of an error and its causes: clients print only the outermost.
#[cfg(feature = "object-store")]
fn causes(error: &dyn std::error::Error) -> String {
    let (mut told, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
        cause = error.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_model_and_may_pin_it() {
        assert!(
            is_url("s3://b/p/") && is_url("https://h/x.gguf") && !is_url("org/name") && !is_url("file:///x")
        );
        assert_eq!((name("s3://b/models/qwen/"), name("https://h/a/b.gguf#sha256=00")), ("qwen", "b"));
        let digest = "AB".repeat(32);
        let url = ModelUrl::parse(&format!("s3://b/p/#sha256={digest}")).expect("valid");
        assert_eq!((url.url.as_str(), url.sha256), ("s3://b/p", Some(digest.to_ascii_lowercase())));
        for bad in [
            "s3://",
            "https://u:secret@h/x",
            "https://h/x?signature=secret",
            "s3://b/p#sha256=00",
            "s3://b/p#x",
        ] {
            let error = ModelUrl::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
