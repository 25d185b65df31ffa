//! Images at URLs of the operator's hosts, within bounds of time, bytes and memory.

mod download;
mod fault;
mod resolver;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryFutureExt, TryStreamExt, stream};
use throng_api::spec::{Conversation, ImageSource};
use throng_api::{ApiError, ImageHosts};
use throng_http::awake::within;
use throng_http::memory::{MemoryBudget, Reservation};
use throng_http::retry_after::retry_after_s;
use throng_http::tls_roots::{trusting, trusting_nobody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;

use self::download::{Downloader, File};
use self::fault::DownloadFault;
pub use self::fault::memory_full;
use self::resolver::SystemResolver;

/// Maximum number of downloads of images at a time.
const MAX_DOWNLOADS: usize = 64;
/// Maximum number of downloads of one request at a time.
const DOWNLOADS_OF_A_REQUEST: usize = 4;
/// Maximum number of different URLs of images in one request.
const MAX_URLS: usize = 16;
/// Maximum time from the resolution of an image's host to its last byte, redirects included. An image also
/// waits for at most this time until fewer are downloaded.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of an image's file.
const MAX_IMAGE_BYTES: usize = 20 << 20;

/// Fetches images from the hosts of the operator's list.
#[derive(Debug)]
pub struct RemoteImages {
    downloader: Downloader,
    slots: Arc<Semaphore>,
    memory: Arc<MemoryBudget>,
    timeout: Duration,
}

/// Memory of the files that were fetched for a request.
#[derive(Debug)]
pub struct FetchedImages {
    /// Bytes of the files.
    pub n_bytes: usize,
    _memory: Vec<Reservation>,
}

impl RemoteImages {
    /// Creates a fetcher; `None` for an empty list.
    pub fn of(hosts: &Arc<ImageHosts>, memory: &Arc<MemoryBudget>) -> Option<Self> {
        if hosts.is_empty() {
            return None;
        }
        let tls = trusting(None).unwrap_or_else(|reason| {
            tracing::warn!(reason, "images cannot be fetched by https");
            trusting_nobody()
        });
        Some(Self::with(Downloader::new(hosts.clone(), Arc::new(SystemResolver), tls), memory))
    }

    fn with(downloader: Downloader, memory: &Arc<MemoryBudget>) -> Self {
        let slots = Arc::new(Semaphore::new(MAX_DOWNLOADS));
        Self { downloader, slots, memory: memory.clone(), timeout: TIMEOUT }
    }

    /// Fetches the images of a conversation that are at URLs, and puts their files in the place of the URLs.
    /// Nothing is fetched if one of the hosts is not permitted. Dropping the future ends the downloads.
    ///
    /// # Errors
    /// 400 with the path of an image that cannot be downloaded; 503 without memory, and if too many are being
    /// downloaded.
    pub async fn fetch(&self, conversation: &mut Conversation) -> Result<FetchedImages, ApiError> {
        let wanted = self.wanted(conversation)?;
        let downloads: Vec<_> = wanted.iter().map(|wanted| self.fetch_one(wanted)).collect();
        let files: Vec<File> = stream::iter(downloads).buffered(DOWNLOADS_OF_A_REQUEST).try_collect().await?;
        for part in conversation.images_mut() {
            let ImageSource::Url(text) = &part.source else { continue };
            let Some(idx) = wanted.iter().position(|wanted| wanted.text == *text) else { continue };
            let bytes = files[idx].bytes.clone();
            part.source = ImageSource::Bytes { media_type: "application/octet-stream".to_owned(), bytes };
        }
        let n_bytes = files.iter().map(|file| file.bytes.len()).sum();
        Ok(FetchedImages { n_bytes, _memory: files.into_iter().map(|file| file.memory).collect() })
    }

    /// The URLs of a conversation, each once.
    fn wanted(&self, conversation: &Conversation) -> Result<Vec<Wanted>, ApiError> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for part in conversation.images() {
            let ImageSource::Url(text) = &part.source else { continue };
            if wanted.iter().any(|known| known.text == *text) {
                continue;
            }
            let url = Url::parse(text).ok().filter(|url| self.downloader.hosts.permitted(url).is_some());
            let Some(url) = url else { return Err(ApiError::image_host_not_allowed(part.param.clone())) };
            if wanted.len() == MAX_URLS {
                return Err(ApiError::array_above_max_length(part.param.clone(), MAX_URLS));
            }
            wanted.push(Wanted { text: text.clone(), url, param: part.param.clone() });
        }
        Ok(wanted)
    }

    fn fetch_one<'a>(&'a self, wanted: &'a Wanted) -> BoxFuture<'a, Result<File, ApiError>> {
        let download = async {
            let slot = Arc::new(self.slot().await?);
            let download = self.downloader.download(wanted.url.clone(), &self.memory, &slot);
            within(self.timeout, download).await.unwrap_or(Err(DownloadFault::TooSlow))
        };
        download.map_err(|fault| fault.of_image(&wanted.param, self.timeout)).boxed()
    }

    async fn slot(&self) -> Result<OwnedSemaphorePermit, DownloadFault> {
        let waiting = within(self.timeout, self.slots.clone().acquire_owned()).await;
        waiting.ok().and_then(Result::ok).ok_or(DownloadFault::Busy)
    }
}

/// Whether a conversation has images at URLs.
pub fn has_urls(conversation: &Conversation) -> bool {
    conversation.images().any(|part| matches!(part.source, ImageSource::Url(_)))
}

/// A file to fetch.
#[derive(Debug)]
struct Wanted {
    /// The URL as the client wrote it.
    text: String,
    url: Url,
    /// Path of the first image with this URL.
    param: String,
}

/// Error for a request that waited too long for a place among the downloads.
fn too_many_downloads() -> ApiError {
    ApiError::overloaded("Too many images are being downloaded.", retry_after_s())
}
