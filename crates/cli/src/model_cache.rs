//! The models of the cache on this machine: their names and sizes. Does not open models.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use throng_hub::objects;

/// Prefix of the hub's folders for models.
const HUB_PREFIX: &str = "models--";
/// Maximum nesting of folders: far more than a cache has.
const MAX_DEPTH: usize = 16;

/// A model of the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Hub id or URL.
    pub name: String,
    /// Total bytes of the files.
    pub n_bytes: u64,
    /// Whether a file is incomplete.
    pub is_partial: bool,
    /// Folder of the files.
    pub folder: PathBuf,
}

impl CachedModel {
    /// The model as a JSON object.
    pub fn to_json(&self) -> Value {
        let Self { name, n_bytes, is_partial, folder } = self;
        json!({"name": name, "bytes": n_bytes, "partial": is_partial, "folder": folder})
    }
}

/// The models of a cache by name. A missing cache counts as empty.
///
/// # Errors
/// When a folder cannot be read.
pub fn models_in(cache: &Path) -> Result<Vec<CachedModel>> {
    let mut models = Vec::new();
    for folder in folders_of(cache)? {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(id) = name.strip_prefix(HUB_PREFIX) {
            models.push(measured(id.replacen("--", "/", 1), &folder)?);
        }
    }
    for folder in folders_of(&cache.join(objects::FOLDER))? {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let url = fs::read_to_string(folder.join(objects::URL_FILE)).map(|url| url.trim().to_owned());
        models.push(measured(url.unwrap_or(name), &folder)?);
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

fn folders_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.flatten().filter(is_folder).map(|entry| entry.path()).collect())
}

fn measured(name: String, folder: &Path) -> Result<CachedModel> {
    let (mut n_bytes, mut is_partial) = (0, false);
    measure(folder, MAX_DEPTH, &mut n_bytes, &mut is_partial)
        .with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(CachedModel { name, n_bytes, is_partial, folder: folder.to_owned() })
}

/// Adds the bytes of the files below a folder. Does not follow links: several commits share a file.
fn measure(folder: &Path, depth: usize, n_bytes: &mut u64, is_partial: &mut bool) -> Result<()> {
    if depth == 0 {
        bail!("it has folders inside of each other without end");
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            measure(&entry.path(), depth - 1, n_bytes, is_partial)?;
        } else if kind.is_file() {
            *n_bytes += entry.metadata()?.len();
            let is_unfinished = |ending: &std::ffi::OsStr| ending == "part" || ending == "incomplete";
            *is_partial |= entry.path().extension().is_some_and(is_unfinished);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_listed_with_what_each_model_takes() {
        let cache = tempfile::tempdir().expect("a folder");
        assert_eq!(models_in(&cache.path().join("absent")).expect("none"), []);
        let blobs = cache.path().join("models--org--na--me/blobs");
        fs::create_dir_all(&blobs).expect("made");
        fs::write(blobs.join("a"), [0; 100]).expect("written");
        fs::write(blobs.join("b.part"), [0; 11]).expect("written");
        let object = cache.path().join(objects::FOLDER).join("x--0123/v");
        fs::create_dir_all(&object).expect("made");
        fs::write(object.join("x.gguf"), [0; 7]).expect("written");
        fs::write(cache.path().join(objects::FOLDER).join("x--0123").join(objects::URL_FILE), "s3://b/x\n")
            .expect("written");
        fs::create_dir(cache.path().join("datasets--a--b")).expect("made");
        let models = models_in(cache.path()).expect("read");
        let told: Vec<_> = models.iter().map(|model| (model.name.as_str(), model.is_partial)).collect();
        assert_eq!(told, [("org/na--me", true), ("s3://b/x", false)]);
        assert_eq!((models[0].n_bytes, models[1].n_bytes), (111, 16));
    }
}
