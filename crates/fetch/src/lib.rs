//! Images at URLs, fetched before their prompt is rendered. Does not know formats of files and models.
#![forbid(unsafe_code)]

mod remote_images;

pub use remote_images::{FetchedImages, RemoteImages, has_urls, memory_full};
