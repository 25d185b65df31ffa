//! A server with a database.

use std::sync::Arc;

use tempfile::TempDir;
use throng_store::{CreatedKey, Journal, NewKey, Store, open};

use super::{Server, Setup};

/// A server with a database and keys.
pub struct Stored {
    pub server: Server,
    pub store: Arc<dyn Store>,
    pub keys: Vec<CreatedKey>,
    _folder: TempDir,
}

impl Stored {
    /// Starts a server with a key for each organisation and project of `projects`.
    pub async fn start(mut setup: Setup, projects: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("throng.db").display());
        setup.config.access.database = Some(url.clone());
        let (server, loading, model) = Server::without_model(setup).await;
        let store = open(&url).await.expect("a database");
        let mut keys = Vec::new();
        for (organisation, project) in projects {
            let (organisation, project) = (organisation.to_string(), project.to_string());
            let new = NewKey { organisation, project, ..NewKey::default() };
            keys.push(store.create_key(new).await.expect("made"));
        }
        let (stored_keys, ledger) =
            (loading.stored_keys().expect("keys"), loading.ledger().expect("a ledger"));
        let journal = Journal::open(&folder.path().join("journal")).expect("a journal");
        ledger.open(journal, open(&url).await.expect("a database")).await.expect("opened");
        stored_keys.refresh(&*store).await.expect("read");
        tokio::spawn(stored_keys.follow(open(&url).await.expect("a database")));
        loading.finish(vec![model]).expect("a valid model");
        Self { server, store, keys, _folder: folder }
    }
}
