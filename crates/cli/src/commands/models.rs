//! `throng list`, `throng rm` and `throng models`: lists the models of the cache with their sizes, and
//! removes them. Does not open models.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};

use crate::args::{CacheArgs, ModelsArgs, ModelsCommand, RemoveArgs};
use crate::model_cache::{CachedModel, models_in};
use crate::process::output;
use crate::source::BUILT_IN;
use throng_hub::HubSettings;

/// Runs the command.
///
/// # Errors
/// When the cache cannot be read, or has no model of a given name.
pub fn run(arguments: &ModelsArgs) -> Result<()> {
    match &arguments.command {
        None => list(&arguments.cache),
        Some(ModelsCommand::List(cache)) => list(cache),
        Some(ModelsCommand::Remove(arguments)) => remove(arguments),
    }
}

/// Lists the models of the cache.
///
/// # Errors
/// When the cache cannot be read.
pub fn list(arguments: &CacheArgs) -> Result<()> {
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
    } else {
        output::note(
            "throng run NAME chats with one, throng serve NAME serves it, throng rm NAME removes it.",
        );
    }
    Ok(())
}

/// Removes models from the cache.
///
/// # Errors
/// When the cache cannot be read, or has no model of a given name.
pub fn remove(arguments: &RemoveArgs) -> Result<()> {
    let RemoveArgs { names, cache: arguments } = arguments;
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
    // All names are checked first, so that a wrong one removes nothing.
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
}
