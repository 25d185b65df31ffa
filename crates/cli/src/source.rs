//! Where a model comes from: the built-in starter model, a place on disk, or the hub. Does not know what is in it.

use std::path::PathBuf;

use anyhow::Result;

use crate::hub::{HubId, HubSettings, locate};

/// A built-in model.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltInModel {
    /// Its name.
    pub name: &'static str,
    /// Its GGUF file.
    pub gguf: &'static [u8],
}

/// The built-in models; the first is served when no model is named.
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

/// The notice about the starter model, shown once in each user interface.
pub const STARTER_NOTICE: &str = "throng-starter is a toy: a small model trained from scratch so that the first \
    command talks. To load a real model: throng serve /path/to/model.gguf, a folder with safetensors files, or \
    a hub id such as Qwen/Qwen3-0.6B.";

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// One of the built-in ones.
    BuiltIn(&'static BuiltInModel),
    /// A folder or a file.
    Path {
        /// The path or hub id as given.
        given: String,
        /// Its path on this machine.
        path: PathBuf,
    },
}

impl ModelSource {
    /// Finds `model`; fetches it when it is a hub id.
    ///
    /// # Errors
    /// When there is no such path, or the hub cannot be reached.
    pub fn find(model: Option<&str>) -> Result<Self> {
        let given = model.unwrap_or(BUILT_IN[0].name);
        if let Some(model) = BUILT_IN.iter().find(|model| model.name == given) {
            return Ok(Self::BuiltIn(model));
        }
        let path = locate(given, &HubSettings::from_env(|name| std::env::var(name).ok()))?;
        Ok(Self::Path { given: given.to_owned(), path })
    }

    /// The names that the model is served under, its id first. `own_name` is the file's stem or the folder's name,
    /// which is not used if the folder belongs to the hub's cache.
    pub fn names(&self, own_name: &str) -> Vec<String> {
        let (given, path) = match self {
            Self::BuiltIn(model) => return vec![model.name.to_owned()],
            Self::Path { given, path } => (given, path),
        };
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
    fn the_starter_model_is_the_default() {
        let found = |model| ModelSource::find(model).expect("built in");
        assert_eq!(found(None), ModelSource::BuiltIn(&BUILT_IN[0]));
        assert_eq!(found(Some("throng-starter")), found(None));
        assert_eq!(found(Some("throng-starter-draft")), ModelSource::BuiltIn(&BUILT_IN[1]));
        let error = ModelSource::find(Some("/nowhere/model.gguf")).expect_err("absent");
        assert!(error.to_string().contains("/nowhere/model.gguf"));
    }

    #[test]
    fn a_model_is_served_under_its_own_name_and_the_given_one() {
        let file = ModelSource::Path { given: "/a/x.gguf".into(), path: "/a/x.gguf".into() };
        assert_eq!(file.names("x"), ["x", "/a/x.gguf"]);
        let folder = std::env::temp_dir();
        let hub = ModelSource::Path { given: "org/name@main".into(), path: folder };
        assert_eq!(hub.names("0123abcd"), ["name", "org/name@main"]);
    }
}
