//! Refusals of the HTTP server below, as errors of the API. Does not know when they happen.

use throng_http::memory::MemoryFull;

use crate::openai::ApiError;
use crate::retry_after::retry_after_s;

impl From<MemoryFull> for ApiError {
    fn from(full: MemoryFull) -> Self {
        match full {
            MemoryFull::Now => {
                Self::overloaded("The server's memory for requests is in use.", retry_after_s())
            }
            MemoryFull::Never { limit } => Self::request_needs_too_much_memory(limit),
        }
    }
}
