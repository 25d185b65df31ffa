//! The source of a model: the built-in starter model, a local path, the hub, a bucket or a web server. Does
//! not read the model.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::process::credentials;
use throng_hub::objects;
use throng_hub::{HubId, HubSettings, id_of_page, locate};

/// A built-in model.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltInModel {
    /// Name of the model.
    pub name: &'static str,
    /// GGUF file.
    pub gguf: &'static [u8],
}

/// Built-in models; the first is served when no model is named.
pub const BUILT_IN: [BuiltInModel; 2] = [
    BuiltInModel {
        name: "throng-starter",
        gguf: include_bytes!("../../../starter/models/throng-starter.gguf"),
    },
    BuiltInModel {
        name: "throng-starter-draft",
        gguf: include_bytes!("../../../starter/models/throng-starter-draft.gguf"),
    },
];

/// Notice about the starter model, shown once in each user interface.
pub const STARTER_NOTICE: &str = "throng-starter is a toy: a small model trained from scratch so that the first \
    command talks. To load a real model: throng serve /path/to/model.gguf, a folder with safetensors files, or \
    a hub id such as Qwen/Qwen3-0.6B.";

/// Source of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A built-in model.
    BuiltIn(&'static BuiltInModel),
    /// A folder or a file.
    Path {
        /// Path or hub id as given.
        given: String,
        /// Path of the file or folder.
        path: PathBuf,
    },
}

/// Name of a model, and the settings for fetching it from the hub.
#[derive(Debug, Clone, Copy, Default)]
pub struct HubPlace<'a> {
    /// Path, hub id, URL or name of a built-in model.
    pub model: Option<&'a str>,
    /// Revision for a hub id without one.
    pub revision: Option<&'a str>,
    /// Folder for files from the hub, instead of the shared cache.
    pub folder: Option<&'a Path>,
}

impl HubPlace<'_> {
    /// The model's name with the revision appended.
    fn with_revision(&self, given: &str) -> Result<String> {
        let Some(revision) = self.revision else { return Ok(given.to_owned()) };
        if Path::new(given).exists() || BUILT_IN.iter().any(|model| model.name == given) {
            bail!("--revision {revision} needs a hub id, and {given} is on this machine");
        }
        if objects::is_url(given) {
            bail!("--revision {revision} needs a hub id; a URL is pinned with #sha256=DIGEST");
        }
        if given.contains('@') {
            bail!("{given} has a revision of its own: leave out --revision {revision}");
        }
        let (repository, file) = given.split_once(':').map_or((given, None), |(id, file)| (id, Some(file)));
        let file = file.map(|file| format!(":{file}")).unwrap_or_default();
        Ok(format!("{repository}@{revision}{file}"))
    }
}

impl ModelSource {
    /// Finds a model; fetches it if it is a hub id or a URL.
    ///
    /// # Errors
    /// When there is no such path, or the hub cannot be reached.
    pub fn find(place: &HubPlace<'_>) -> Result<Self> {
        let given = place.model.unwrap_or(BUILT_IN[0].name);
        let of_page = id_of_page(given);
        let given = of_page.as_deref().unwrap_or(given);
        let named = place.with_revision(given)?;
        if let Some(model) = BUILT_IN.iter().find(|model| model.name == given) {
            return Ok(Self::BuiltIn(model));
        }
        let mut settings = HubSettings::from_env(|name| std::env::var(name).ok());
        if let Some(folder) = place.folder {
            settings.cache = folder.to_owned();
        }
        if settings.token.is_none() {
            settings.token = credentials::text("hf-token")?;
        }
        let path = if objects::is_url(given) {
            objects::locate(given, &settings)?
        } else {
            locate(&named, &settings)?
        };
        Ok(Self::Path { given: given.to_owned(), path })
    }

    /// The names of the model in requests, its id first. `own_name` is the file's stem or the folder's
    /// name; it is not used if the folder belongs to the hub's cache.
    pub fn names(&self, own_name: &str) -> Vec<String> {
        let (given, path) = match self {
            Self::BuiltIn(model) => return vec![model.name.to_owned()],
            Self::Path { given, path } => (given, path),
        };
        if objects::is_url(given) {
            let url = given.split_once('#').map_or(given.as_str(), |(url, _)| url);
            return vec![objects::name(given).to_owned(), url.to_owned()];
        }
        let hub_id = HubId::parse(given).filter(|_| path.is_dir() && !PathBuf::from(given).exists());
        let name = hub_id.as_ref().and_then(|id| id.repository.rsplit('/').next()).unwrap_or(own_name);
        let mut names = vec![name.to_owned(), given.clone()];
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_that_of_a_hub_id_without_one() {
        let named = |model| HubPlace { revision: Some("v1"), ..HubPlace::default() }.with_revision(model);
        assert_eq!(named("org/name").ok().as_deref(), Some("org/name@v1"));
        assert_eq!(named("org/name:q4.gguf").ok().as_deref(), Some("org/name@v1:q4.gguf"));
        for (model, words) in [
            ("src", "needs a hub id, and src is on this machine"),
            ("throng-starter", "needs a hub id"),
            ("org/name@v2", "leave out --revision v1"),
        ] {
            let error = named(model).expect_err(model).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
