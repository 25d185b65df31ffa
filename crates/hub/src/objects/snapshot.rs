//! One version of a model's files in the cache: chosen, downloaded, compared with their digests. Each
//! version has a folder of its own, so that files of two are never mixed. Does not transfer objects.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::download::{download, small};
use super::store::{Place, Version};
use super::sums::{self, SUMS_FILE};
use super::{FOLDER, ModelUrl, ObjectsError, URL_FILE, causes};
use crate::{HubError, HubSettings, INDEX_FILE, MODULES_FILE, Wanted, choose, module_files};

/// Maximum bytes of a safetensors index or of a list of digests.
const MAX_SMALL_BYTES: u64 = 64 << 20;
/// Maximum number of files of a model.
const MAX_FILES: usize = 2_000;

/// Downloads the missing files of the newest version and returns the folder or first .gguf file.
pub(super) async fn fetch(url: &ModelUrl, settings: &HubSettings) -> Result<PathBuf, ObjectsError> {
    let home = settings.cache.join(FOLDER).join(folder_name(&url.url));
    if settings.offline {
        return cached(url, &home, "HF_HUB_OFFLINE is set".to_owned());
    }
    let place = Place::of(url)?;
    let objects = match place.objects().await {
        Ok(objects) if objects.is_empty() => return cached(url, &home, "nothing is there".to_owned()),
        Ok(objects) => objects,
        Err(error) => return cached(url, &home, causes(&error)),
    };
    let model = Model { url, place, objects };
    let (files, first) = model.wanted().await?;
    let digests = model.digests().await?;
    let version = version_of(&files);
    let folder = home.join(&version);
    let io = |source| ObjectsError::Io { path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(io)?;
    // Two processes that start together download each file once.
    let lock = File::create(home.join("lock")).map_err(io)?;
    fs::write(home.join(URL_FILE), format!("{}\n", url.url)).map_err(io)?;
    let waiting = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock));
    let _lock = waiting.await.map_err(std::io::Error::other).and_then(|locked| locked).map_err(io)?;
    for (name, version) in &files {
        model.bring(name, version, digests.get(name), &folder, settings).await?;
    }
    let pinned = url.sha256.as_deref().unwrap_or_default();
    let new = home.join("newest.new");
    fs::write(&new, format!("{version}\n{first}\n{pinned}\n")).map_err(io)?;
    fs::rename(&new, home.join("newest")).map_err(io)?;
    Ok(folder.join(first))
}

/// The newest complete version in the cache, used because of `reason`.
fn cached(url: &ModelUrl, home: &Path, reason: String) -> Result<PathBuf, ObjectsError> {
    let cache = home.parent().unwrap_or(home).to_owned();
    let none = ObjectsError::Unreachable { url: url.url.clone(), reason: reason.clone(), cache };
    let Ok(newest) = fs::read_to_string(home.join("newest")) else { return Err(none) };
    let mut lines = newest.lines();
    let (Some(version), Some(first)) = (lines.next(), lines.next()) else { return Err(none) };
    // The cached version counts only if it was checked against the same digest.
    if url.sha256.is_some() && lines.next() != url.sha256.as_deref() {
        return Err(none);
    }
    tracing::warn!(url = url.url, reason, "the version in the cache is used");
    Ok(home.join(version).join(first))
}

struct Model<'a> {
    url: &'a ModelUrl,
    place: Place,
    objects: BTreeMap<String, Version>,
}

impl Model<'_> {
    /// The needed files with their versions, and the name of the file to open: the first .gguf file, or
    /// empty for the folder.
    async fn wanted(&self) -> Result<(BTreeMap<String, Version>, String), ObjectsError> {
        let names: Vec<String> = self.objects.keys().cloned().collect();
        let url = self.url.url.clone();
        let chosen = choose(&url, self.place.file.as_deref(), &names).map_err(|error| match error {
            HubError::ChooseFile { files, .. } => ObjectsError::ChooseFile { url, files },
            error => error.into(),
        })?;
        let (mut files, first) = match chosen {
            Wanted::Gguf(parts) => (parts.clone(), parts.into_iter().next().unwrap_or_default()),
            Wanted::Folder(files) => (files, String::new()),
        };
        let mut objects = self.objects.clone();
        if files.iter().any(|file| file == INDEX_FILE) {
            let index = self.small(INDEX_FILE).await?;
            let places = throng_checkpoint::safetensors::parse_index(&index)
                .map_err(|error| self.failed(INDEX_FILE, &error))?;
            let mut shards: Vec<String> = places.into_iter().map(|(_, shard)| shard).collect();
            shards.sort_unstable();
            shards.dedup();
            if let Some(shard) = shards.iter().find(|shard| !crate::is_plain_path(shard)) {
                return Err(
                    HubError::UnsafeName { repository: self.url.url.clone(), file: shard.clone() }.into()
                );
            }
            let unknown = shards.iter().filter(|shard| !objects.contains_key(*shard)).cloned().collect();
            let probed = self.place.probed(unknown).await;
            let probed = probed.map_err(|error| self.failed(INDEX_FILE, &causes(&error)))?;
            objects.extend(probed);
            files.extend(shards);
        }
        if files.iter().any(|file| file == MODULES_FILE) {
            let named = module_files(&self.small(MODULES_FILE).await?);
            let unknown = named.iter().filter(|file| !objects.contains_key(*file)).cloned().collect();
            let probed = self.place.probed(unknown).await;
            objects.extend(probed.map_err(|error| self.failed(MODULES_FILE, &causes(&error)))?);
            files.extend(named.into_iter().filter(|file| objects.contains_key(file)));
        }
        if files.len() > MAX_FILES {
            return Err(self.failed("all files", &format!("there are more than {MAX_FILES}")));
        }
        let versions = files.into_iter().map(|file| match objects.get(&file) {
            Some(version) => Ok((file, version.clone())),
            None => Err(self.failed(&file, &"it is not there")),
        });
        Ok((versions.collect::<Result<_, _>>()?, first))
    }

    /// The required digests of files: from `SHA256SUMS`, and the digest that pins the model.
    async fn digests(&self) -> Result<BTreeMap<String, String>, ObjectsError> {
        let has_list = self.objects.contains_key(SUMS_FILE);
        let list = if has_list { self.small(SUMS_FILE).await? } else { Default::default() };
        let mut digests = sums::parse(&String::from_utf8_lossy(&list));
        match (&self.url.sha256, &self.place.file) {
            (None, _) => {}
            (Some(pinned), Some(file)) => drop(digests.insert(file.clone(), pinned.clone())),
            (Some(pinned), None) => {
                let found = sums::of_bytes(&list);
                if !has_list || found != *pinned {
                    return Err(self.wrong_digest(SUMS_FILE, found, pinned));
                }
            }
        }
        Ok(digests)
    }

    /// Downloads a file unless it is in the cache, and checks its digest.
    async fn bring(
        &self,
        name: &str,
        version: &Version,
        digest: Option<&String>,
        folder: &Path,
        settings: &HubSettings,
    ) -> Result<(), ObjectsError> {
        // In a pinned folder every file must have a digest.
        if self.url.sha256.is_some() && self.place.file.is_none() && digest.is_none() {
            return Err(self.failed(name, &format!("{SUMS_FILE} does not list it")));
        }
        let path = folder.join(name);
        let is_there = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == version.size);
        if !is_there {
            let bar = if settings.progress { ProgressBar::new(0) } else { ProgressBar::hidden() };
            let style =
                ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(name.to_owned());
            let brought = download(&self.place, name, version, &path, &bar).await;
            brought.map_err(|error| self.failed(name, &causes(&error)))?;
            bar.finish();
        }
        let Some(expected) = digest else { return Ok(()) };
        let io = |source| ObjectsError::Io { path: path.clone(), source };
        let found = sums::of_file(&path).map_err(io)?;
        if found != *expected {
            fs::remove_file(&path).map_err(io)?;
            return Err(self.wrong_digest(name, found, expected));
        }
        Ok(())
    }

    async fn small(&self, name: &str) -> Result<bytes::Bytes, ObjectsError> {
        let version = &self.objects[name];
        let read = small(&self.place, name, version, MAX_SMALL_BYTES).await;
        read.map_err(|error| self.failed(name, &causes(&error)))
    }

    fn failed(&self, file: &str, error: &dyn std::fmt::Display) -> ObjectsError {
        ObjectsError::Download { url: self.url.url.clone(), file: file.to_owned(), reason: error.to_string() }
    }

    fn wrong_digest(&self, file: &str, found: String, expected: &str) -> ObjectsError {
        let (url, file, expected) = (self.url.url.clone(), file.to_owned(), expected.to_owned());
        ObjectsError::WrongDigest { url, file, found, expected }
    }
}

/// A name for a version of all files: a digest of their names, sizes and tags.
fn version_of(files: &BTreeMap<String, Version>) -> String {
    let line = |(name, version): (&String, &Version)| format!("{name}\n{}\n{}\n", version.size, version.tag);
    let text: String = files.iter().map(line).collect();
    sums::of_bytes(text.as_bytes())[..32].to_owned()
}

/// The folder name of a URL: its last part, for people, and a digest.
fn folder_name(url: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = super::name(url).chars().filter(is_plain).take(64).collect();
    format!("{name}--{}", &sums::of_bytes(url.as_bytes())[..16])
}
