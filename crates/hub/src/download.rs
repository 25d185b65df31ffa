//! Fetches a model's files from the hub into the cache that other programs share, or finds them there. All
//! files of a model are of one commit. Does not choose the files.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use indicatif::ProgressBar;

use super::files::{INDEX_FILE, MODULES_FILE, Wanted, choose, is_plain_path, module_files};
use super::{HubError, HubId, HubSettings, Watch};

/// Maximum number of resumed transfers of a file; the delay before each is `RESUME_DELAY` times its number.
const MAX_RESUMES: u32 = 4;
const RESUME_DELAY: Duration = Duration::from_millis(250);

/// Fetches missing files and returns the folder or (first) .gguf file of the model.
pub(super) fn fetch<'a>(
    id: &'a HubId,
    settings: &'a HubSettings,
    watch: Option<Watch<'a>>,
) -> Result<PathBuf, HubError> {
    let mut snapshot = Snapshot::find(id, settings)?;
    snapshot.watch = watch.map(RefCell::new);
    let found = match choose(&id.repository, id.file.as_deref(), &snapshot.files)? {
        Wanted::Gguf(parts) => {
            for part in &parts {
                snapshot.get(part)?;
            }
            snapshot.folder.join(&parts[0])
        }
        Wanted::Folder(files) => {
            for file in &files {
                let path = snapshot.get(file)?;
                let further = match file.as_str() {
                    INDEX_FILE => shards(&id.repository, &path)?,
                    MODULES_FILE => snapshot.modules(&path)?,
                    _ => Vec::new(),
                };
                for file in further {
                    snapshot.get(&file)?;
                }
            }
            snapshot.folder.clone()
        }
    };
    snapshot.remember()?;
    Ok(found)
}

/// The folder of the newest commit in the cache.
pub(super) fn cached_folder(id: &HubId, settings: &HubSettings) -> Result<PathBuf, HubError> {
    Snapshot::cached(id, settings, "no model is downloaded for this".to_owned()).map(|found| found.folder)
}

/// The files that a safetensors index names.
fn shards(repository: &str, index: &Path) -> Result<Vec<String>, HubError> {
    let json = fs::read(index).map_err(|source| HubError::Io { path: index.to_owned(), source })?;
    let places = throng_checkpoint::safetensors::parse_index(&json).map_err(|error| HubError::Download {
        repository: repository.to_owned(),
        file: INDEX_FILE.to_owned(),
        reason: error.to_string(),
    })?;
    let mut shards: Vec<String> = places.into_iter().map(|(_, shard)| shard).collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(shards)
}

/// One commit of a repository: its files, and their folder in the cache.
struct Snapshot<'a> {
    id: &'a HubId,
    settings: &'a HubSettings,
    folder: PathBuf,
    files: Vec<String>,
    source: Source,
    watch: Option<RefCell<Watch<'a>>>,
}

enum Source {
    /// The hub answers; missing files are fetched.
    Hub(Box<HubSource>),
    /// Only the cache is available, with the reason.
    Cache { reason: String },
}

struct HubSource {
    api: Api,
    repository: ApiRepo,
    cache: CacheRepo,
    commit: String,
}

impl<'a> Snapshot<'a> {
    /// Queries the hub. If the hub does not answer, uses the cache.
    fn find(id: &'a HubId, settings: &'a HubSettings) -> Result<Self, HubError> {
        if settings.offline {
            return Self::cached(id, settings, "HF_HUB_OFFLINE is set".to_owned());
        }
        let api = ApiBuilder::from_cache(Cache::new(settings.cache.clone()))
            .with_endpoint(settings.endpoint.trim_end_matches('/').to_owned())
            .with_token(settings.token.clone())
            .with_user_agent("throng", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| unreachable(id, settings, &error))?;
        let info = match api.repo(repository(id, &id.revision)).info() {
            Ok(info) => info,
            Err(error) => return Self::without_answer(id, settings, &error),
        };
        let name =
            |file: &str| HubError::UnsafeName { repository: id.repository.clone(), file: file.to_owned() };
        if !is_plain_name(&info.sha) {
            return Err(name(&info.sha));
        }
        let files: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        if let Some(file) = files.iter().find(|file| !is_plain_path(file)) {
            return Err(name(file));
        }
        let at_commit = repository(id, &info.sha);
        let cache = Cache::new(settings.cache.clone()).repo(at_commit.clone());
        let folder = cache.pointer_path(&info.sha);
        let hub = HubSource { repository: api.repo(at_commit), api, cache, commit: info.sha };
        Ok(Self { id, settings, folder, files, source: Source::Hub(Box::new(hub)), watch: None })
    }

    /// Records in the cache which commit the revision's name refers to, for when the hub is unreachable.
    /// Only called once all files are there, so that an older commit stays in use until then.
    fn remember(&self) -> Result<(), HubError> {
        let Source::Hub(hub) = &self.source else { return Ok(()) };
        Cache::new(self.settings.cache.clone())
            .repo(repository(self.id, &self.id.revision))
            .create_ref(&hub.commit)
            .map_err(|source| HubError::Io { path: self.settings.cache.clone(), source })
    }

    /// A snapshot from the cache after a failed query to the hub, or the error of that query.
    fn without_answer(id: &'a HubId, settings: &'a HubSettings, error: &ApiError) -> Result<Self, HubError> {
        let (repository, endpoint) = (id.repository.clone(), settings.endpoint.clone());
        match status(error) {
            Some(404) => Err(HubError::NotFound { repository, revision: id.revision.clone(), endpoint }),
            Some(401 | 403) => Err(HubError::Forbidden { repository, endpoint }),
            _ => Self::cached(id, settings, format!("{endpoint}: {error}"))
                .map_err(|_| unreachable(id, settings, error)),
        }
    }

    /// The newest commit of the revision in the cache.
    fn cached(id: &'a HubId, settings: &'a HubSettings, reason: String) -> Result<Self, HubError> {
        let home = settings.cache.join(repository(id, &id.revision).folder_name());
        let commit = fs::read_to_string(home.join("refs").join(&id.revision))
            .map(|commit| commit.trim().to_owned())
            .unwrap_or_else(|_| id.revision.clone());
        let folder = home.join("snapshots").join(&commit);
        if !is_plain_name(&commit) || !folder.is_dir() {
            let endpoint = settings.endpoint.clone();
            let repository = id.repository.clone();
            return Err(HubError::Unreachable {
                repository,
                endpoint,
                reason,
                cache: settings.cache.clone(),
            });
        }
        let mut files = Vec::new();
        list(&folder, "", &mut files).map_err(|source| HubError::Io { path: folder.clone(), source })?;
        Ok(Self { id, settings, folder, files, source: Source::Cache { reason }, watch: None })
    }

    /// The files in the folders that a list of modules names.
    fn modules(&self, list: &Path) -> Result<Vec<String>, HubError> {
        let json = fs::read(list).map_err(|source| HubError::Io { path: list.to_owned(), source })?;
        Ok(module_files(&json).into_iter().filter(|file| self.files.contains(file)).collect())
    }

    /// The path of `file` in the cache; fetches the file if it is missing.
    fn get(&self, file: &str) -> Result<PathBuf, HubError> {
        let path = self.folder.join(file);
        if path.exists() {
            return Ok(path);
        }
        match &self.source {
            Source::Cache { reason } => Err(HubError::NotCached {
                repository: self.id.repository.clone(),
                file: file.to_owned(),
                reason: reason.clone(),
                cache: self.settings.cache.clone(),
            }),
            Source::Hub(hub) => self.download(file, hub),
        }
    }

    fn download(&self, file: &str, hub: &HubSource) -> Result<PathBuf, HubError> {
        let metadata =
            hub.api.metadata(&hub.repository.url(file)).map_err(|error| self.failed(file, &error))?;
        // Both become parts of paths in the cache.
        if !is_plain_name(metadata.etag()) || !is_plain_name(metadata.commit_hash()) {
            return Err(self.failed(file, &"the hub's answer has a malformed etag or commit"));
        }
        let (blob, expected) = (hub.cache.blob_path(metadata.etag()), metadata.size() as u64);
        if length(&blob) == Some(expected) && link(&blob, &self.folder.join(file)) {
            return Ok(self.folder.join(file));
        }
        self.take_room(file, expected)?;
        let part = blob.with_extension("part");
        let mut n_resumes = 0;
        loop {
            // If the partial file is already complete, the range would be empty, which servers refuse.
            if length(&part).is_some_and(|length| length >= expected) {
                fs::remove_file(&part).map_err(|source| HubError::Io { path: part.clone(), source })?;
            }
            match self.transfer(file, hub, expected) {
                Ok(path) => return self.checked(file, path, &blob, expected),
                Err(error) if n_resumes == MAX_RESUMES || status(&error).is_some() => {
                    return Err(self.failed(file, &error));
                }
                Err(error) => tracing::info!(file, %error, "the transfer was interrupted and is resumed"),
            }
            n_resumes += 1;
            thread::sleep(RESUME_DELAY * n_resumes);
        }
    }

    /// Subtracts a file from the remaining bytes that may be downloaded.
    fn take_room(&self, file: &str, n_bytes: u64) -> Result<(), HubError> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let mut watch = watch.borrow_mut();
        match watch.max_bytes.checked_sub(n_bytes) {
            Some(left) => watch.max_bytes = left,
            None => {
                let (file, left_bytes) = (file.to_owned(), watch.max_bytes);
                return Err(HubError::NoRoom { file, n_bytes, left_bytes });
            }
        }
        Ok(())
    }

    fn transfer(&self, file: &str, hub: &HubSource, expected: u64) -> Result<PathBuf, ApiError> {
        match &self.watch {
            Some(watch) => {
                let report = FileReport { watch, file, done: 0, total: expected };
                hub.repository.download_with_progress(file, report)
            }
            None => {
                let bar = if self.settings.progress { ProgressBar::new(0) } else { ProgressBar::hidden() };
                hub.repository.download_with_progress(file, bar)
            }
        }
    }

    /// Checks the size of a file, and removes a file of the wrong size: a server without support for ranges
    /// sends the whole file again, which is appended to the partial one.
    fn checked(&self, file: &str, path: PathBuf, blob: &Path, expected: u64) -> Result<PathBuf, HubError> {
        let found = length(&path).unwrap_or(0);
        if found == expected {
            return Ok(path);
        }
        for path in [path.as_path(), blob] {
            fs::remove_file(path).map_err(|source| HubError::Io { path: path.to_owned(), source })?;
        }
        let repository = self.id.repository.clone();
        Err(HubError::WrongSize { repository, file: file.to_owned(), found, expected })
    }

    fn failed(&self, file: &str, error: &dyn std::fmt::Display) -> HubError {
        HubError::Download {
            repository: self.id.repository.clone(),
            file: file.to_owned(),
            reason: error.to_string(),
        }
    }
}

/// Reports the downloaded bytes of a file.
struct FileReport<'a, 'w> {
    watch: &'a RefCell<Watch<'w>>,
    file: &'a str,
    done: u64,
    total: u64,
}

impl Progress for FileReport<'_, '_> {
    fn init(&mut self, _: usize, _: &str) {
        self.update(0);
    }

    fn update(&mut self, n_bytes: usize) {
        self.done = self.total.min(self.done + n_bytes as u64);
        (self.watch.borrow_mut().report)(self.file, self.done, self.total);
    }

    fn finish(&mut self) {}
}

fn repository(id: &HubId, revision: &str) -> Repo {
    Repo::with_revision(id.repository.clone(), RepoType::Model, revision.to_owned())
}

fn unreachable(id: &HubId, settings: &HubSettings, error: &ApiError) -> HubError {
    HubError::Unreachable {
        repository: id.repository.clone(),
        endpoint: settings.endpoint.clone(),
        reason: error.to_string(),
        cache: settings.cache.clone(),
    }
}

/// The HTTP status of an error, if it has one.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}

/// Whether a name from the hub is safe as a component of a path in the cache.
fn is_plain_name(name: &str) -> bool {
    !name.contains('/') && is_plain_path(name)
}

fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Links `pointer` to `blob`, which another commit has already fetched; `false` if the system has no links.
fn link(blob: &Path, pointer: &Path) -> bool {
    #[cfg(unix)]
    {
        let made = pointer.parent().map(fs::create_dir_all);
        matches!(made, Some(Ok(())))
            && blob.canonicalize().is_ok_and(|blob| std::os::unix::fs::symlink(blob, pointer).is_ok())
    }
    #[cfg(not(unix))]
    {
        let _ = (blob, pointer);
        false
    }
}

/// The files under `folder`, recursively, by their names on the hub.
fn list(folder: &Path, prefix: &str, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{prefix}{name}/"), files)?;
        } else {
            files.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}
