//! `throng models`: the models of the cache, their sizes, and how they are removed. Does not open models.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::args::{CacheArgs, ModelsArgs, ModelsCommand};
use crate::hub::HubSettings;
use crate::objects;
use crate::process::output;
use crate::source::BUILT_IN;

/// The beginning of the hub's folders for models.
const HUB_PREFIX: &str = "models--";
/// Folders inside of each other that are looked into: far more than a cache has.
const MAX_DEPTH: usize = 16;

/// A model of the cache.
#[derive(Debug, PartialEq, Eq)]
struct CachedModel {
    /// Its hub id or URL.
    name: String,
    n_bytes: u64,
    /// Whether a file of it was not brought to its end.
    is_partial: bool,
    folder: PathBuf,
}

impl CachedModel {
    fn to_json(&self) -> Value {
        let Self { name, n_bytes, is_partial, folder } = self;
        json!({"name": name, "bytes": n_bytes, "partial": is_partial, "folder": folder})
    }
}

/// Runs the command.
///
/// # Errors
/// When the cache cannot be read, or a model that is to be removed is not there.
pub fn run(arguments: &ModelsArgs) -> Result<()> {
    match &arguments.command {
        None => list(&arguments.cache),
        Some(ModelsCommand::List(cache)) => list(cache),
        Some(ModelsCommand::Remove { names, cache }) => remove(names, cache),
    }
}

fn list(arguments: &CacheArgs) -> Result<()> {
    let cache = cache_folder(arguments);
    let models = models_in(&cache)?;
    if arguments.json {
        for model in &models {
            output::line(model.to_json())?;
        }
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["MODEL", "SIZE", "FOLDER"]);
    for model in BUILT_IN {
        table.add_row([model.name.to_owned(), size(model.gguf.len() as u64), "in the binary".to_owned()]);
    }
    for CachedModel { name, n_bytes, is_partial, folder } in &models {
        let mark = if *is_partial { " (partial)" } else { "" };
        table.add_row([name.clone(), size(*n_bytes) + mark, folder.display().to_string()]);
    }
    output::line(table)?;
    if models.is_empty() {
        output::note(format_args!(
            "Nothing else is in the cache {}. throng pull ORG/NAME brings a model.",
            cache.display()
        ));
    }
    Ok(())
}

fn remove(names: &[String], arguments: &CacheArgs) -> Result<()> {
    let cache = cache_folder(arguments);
    let models = models_in(&cache)?;
    let found = |name: &String| {
        let plain = name.split(['@', ':']).next().unwrap_or(name);
        let model = models.iter().find(|model| model.name == *name || model.name == plain);
        model.with_context(|| {
            let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
            format!("{name} is not in the cache {}, which has {known}", cache.display())
        })
    };
    // Nothing is removed if one name is wrong.
    let chosen: Vec<&CachedModel> = names.iter().map(found).collect::<Result<_>>()?;
    for model in chosen {
        fs::remove_dir_all(&model.folder)
            .with_context(|| format!("cannot remove {}", model.folder.display()))?;
        if arguments.json {
            output::line(model.to_json())?;
        } else {
            output::line(format!("removed {} ({})", model.name, size(model.n_bytes)))?;
        }
    }
    Ok(())
}

fn cache_folder(arguments: &CacheArgs) -> PathBuf {
    let settings = HubSettings::from_env(|name| std::env::var(name).ok());
    arguments.download_dir.clone().unwrap_or(settings.cache)
}

/// The models of a cache by name. A cache that does not exist has none.
fn models_in(cache: &Path) -> Result<Vec<CachedModel>> {
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

/// Adds the bytes of the files below a folder. Links are not followed: several commits share a file.
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

/// Formats a number of bytes: `1.5 GiB`.
fn size(n_bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut number, mut unit) = (n_bytes as f64, 0);
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        (number, unit) = (number / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{number} B") } else { format!("{number:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!((size(0), size(1023), size(1536)), ("0 B".into(), "1023 B".into(), "1.5 KiB".into()));
        assert_eq!(size(5 << 40), "5.0 TiB");
    }

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
