//! Downloads an object into a file: parts in parallel, each written and synchronized before it counts, so
//! that an interrupted download is resumed. Every part must be of the requested version. Does not know
//! models.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use object_store::{Error, GetOptions, GetRange, GetResult};

use super::store::{Place, Version};

/// Bytes of a part.
const PART_BYTES: u64 = 8 << 20;
/// Number of parts that are downloaded at a time.
const PARTS_AT_A_TIME: usize = 8;
/// Maximum number of retries of a part; the delay grows with each.
const MAX_RETRIES: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The reason why a file cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    #[error(transparent)]
    Store(#[from] Error),
    #[error("it was changed while it was being read; try again")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Downloads the object `name` to `to`.
pub(super) async fn download(
    place: &Place,
    name: &str,
    version: &Version,
    to: &Path,
    bar: &ProgressBar,
) -> Result<(), DownloadError> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let partial = Partial::open(to, version.size)?;
    bar.set_length(version.size);
    bar.inc(partial.n_done_bytes());
    let file = Arc::new(partial.file);
    let (marks, missing) = (Arc::new(partial.marks), partial.missing);
    let fetched = futures_util::stream::iter(missing)
        .map(|number| {
            let (file, marks) = (file.clone(), marks.clone());
            async move {
                let from = number * PART_BYTES;
                let range = from..(from + PART_BYTES).min(version.size);
                let bytes = part(place, name, version, range).await?;
                bar.inc(bytes.len() as u64);
                let write = move || {
                    write_at(&file, &bytes, from)?;
                    file.sync_data()?;
                    write_at(&marks, &[1], number)
                };
                tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
                Ok::<_, DownloadError>(())
            }
        })
        .buffer_unordered(PARTS_AT_A_TIME)
        .try_collect::<Vec<()>>()
        .await;
    match fetched {
        Err(DownloadError::Store(Error::NotSupported { .. })) => {
            whole(place, name, version, &file, bar).await?
        }
        fetched => drop(fetched?),
    }
    file.sync_all()?;
    fs::rename(&partial.path, to)?;
    fs::remove_file(&partial.marks_path)?;
    Ok(())
}

/// The bytes of a small object.
pub(super) async fn small(
    place: &Place,
    name: &str,
    version: &Version,
    max_bytes: u64,
) -> Result<Bytes, DownloadError> {
    if version.size > max_bytes {
        return Err(io::Error::other(format!("it has more than {max_bytes} bytes")).into());
    }
    let result = get(place, name, version, None).await?;
    Ok(result.bytes().await?)
}

async fn part(
    place: &Place,
    name: &str,
    version: &Version,
    range: std::ops::Range<u64>,
) -> Result<Bytes, DownloadError> {
    let mut n_retries = 0;
    loop {
        let got = async {
            let result = get(place, name, version, Some(range.clone())).await?;
            let bytes = result.bytes().await?;
            let is_whole = bytes.len() as u64 == range.end - range.start;
            if is_whole { Ok(bytes) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
        };
        match got.await {
            Err(DownloadError::Store(Error::Generic { .. }) | DownloadError::Io(_))
                if n_retries < MAX_RETRIES =>
            {
                n_retries += 1;
                tokio::time::sleep(RETRY_DELAY * n_retries).await;
            }
            got => return got,
        }
    }
}

/// Requests one version of an object, or a range of it.
async fn get(
    place: &Place,
    name: &str,
    version: &Version,
    range: Option<std::ops::Range<u64>>,
) -> Result<GetResult, DownloadError> {
    let range = range.map(GetRange::Bounded);
    // `If-Match` does not allow weak tags (RFC 9110, section 13.1.1). The response's tag is compared in any
    // case.
    let if_match = version.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
    let options = GetOptions { range, if_match, ..GetOptions::default() };
    match place.store.get_opts(&place.path(name), options).await {
        Ok(result) if Version::from(&result.meta) == *version => Ok(result),
        Ok(_) | Err(Error::Precondition { .. }) => Err(DownloadError::Changed),
        Err(error) => Err(error.into()),
    }
}

/// Downloads from start to end, for a server that does not support ranges.
async fn whole(
    place: &Place,
    name: &str,
    version: &Version,
    file: &Arc<File>,
    bar: &ProgressBar,
) -> Result<(), DownloadError> {
    bar.set_position(0);
    let (mut stream, mut at) = (get(place, name, version, None).await?.into_stream(), 0);
    while let Some(bytes) = stream.try_next().await? {
        let (file, n) = (file.clone(), bytes.len() as u64);
        if at + n > version.size {
            return Err(DownloadError::Changed);
        }
        tokio::task::spawn_blocking(move || write_at(&file, &bytes, at))
            .await
            .map_err(io::Error::other)??;
        bar.inc(n);
        at += n;
    }
    if at == version.size { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        (bytes, at) = (&bytes[n..], at + n as u64);
    }
    Ok(())
}

/// An incomplete file, and beside it a file with a byte for each complete part.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    file: File,
    marks_path: PathBuf,
    marks: File,
    /// Numbers of the missing parts.
    missing: Vec<u64>,
    size: u64,
}

impl Partial {
    fn open(to: &Path, size: u64) -> io::Result<Self> {
        let beside = |end: &str| {
            let mut name = to.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        let (path, marks_path) = (beside(".part"), beside(".parts"));
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let n_parts = size.div_ceil(PART_BYTES);
        let mut done = fs::read(&marks_path).unwrap_or_default();
        let is_continued =
            done.len() as u64 <= n_parts && fs::metadata(&path).is_ok_and(|metadata| metadata.len() == size);
        let (file, mut marks) = (open(&path)?, open(&marks_path)?);
        if !is_continued {
            done.clear();
            marks.set_len(0)?;
            marks.flush()?;
            file.set_len(size)?;
        }
        let is_missing = |number: &u64| done.get(*number as usize).is_none_or(|&mark| mark == 0);
        let missing = (0..n_parts).filter(is_missing).collect();
        Ok(Self { path, file, marks_path, marks, missing, size })
    }

    fn n_done_bytes(&self) -> u64 {
        self.size.saturating_sub(self.missing.len() as u64 * PART_BYTES)
    }
}
