//! Reasons why an image could not be downloaded, and the messages for clients. No message has an address or a
//! name that the client has not sent.

use std::time::Duration;

use http::StatusCode;
use throng_api::ApiError;
use throng_http::memory::MemoryFull;
use throng_http::retry_after::retry_after_s;

use super::{MAX_IMAGE_BYTES, too_many_downloads};

/// Reason why an image could not be downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DownloadFault {
    /// A redirect leads to another host than the listed ones, from https to http, or is one too many.
    Redirect,
    /// The host has no address, one that it may not have, or does not answer in HTTP.
    Unreachable,
    /// The host answered with another status than 200.
    Status(StatusCode),
    /// The host answered with encoded content, which was not requested.
    Encoded,
    /// The file did not arrive in time.
    TooSlow,
    /// The file has more than [`MAX_IMAGE_BYTES`].
    TooLarge,
    /// Too many images are being downloaded.
    Busy,
    /// The server's memory for requests is in use.
    Memory(MemoryFull),
}

impl DownloadFault {
    /// The error for the client; `param` is the path of the image.
    pub fn of_image(self, param: &str, timeout: Duration) -> ApiError {
        match self {
            Self::Redirect => ApiError::image_redirect_not_allowed(param),
            Self::Unreachable => ApiError::image_unreachable(param, None),
            Self::Status(status) => ApiError::image_unreachable(param, Some(status)),
            Self::Encoded => ApiError::unusable_image(param, "its host sent it with a content encoding"),
            Self::TooSlow => ApiError::image_too_slow(param, timeout.as_secs()),
            Self::TooLarge => ApiError::image_too_large(param, MAX_IMAGE_BYTES),
            Self::Busy => too_many_downloads(),
            Self::Memory(full) => memory_full(full),
        }
    }
}

/// Error for a request without memory.
pub fn memory_full(full: MemoryFull) -> ApiError {
    match full {
        MemoryFull::Now => {
            ApiError::overloaded("The server's memory for requests is in use.", retry_after_s())
        }
        MemoryFull::Never { limit } => ApiError::request_needs_too_much_memory(limit),
    }
}
