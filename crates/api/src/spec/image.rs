//! Images of a conversation, as the client sent them. Does not know the formats of files.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Maximum number of images of a request.
pub const MAX_IMAGES: usize = 128;

/// An image among the parts of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// Source of the image's file.
    pub source: ImageSource,
    /// Resolution at which the client wants the image read (OpenAI's `detail`), for engines that distinguish
    /// it.
    pub detail: Option<&'static str>,
    /// Path of the parameter, for errors.
    pub param: String,
}

/// Source of an image's file.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// A file in the request.
    Bytes {
        /// Media type that the client names; the actual type is found from the content.
        media_type: String,
        /// Bytes of the file.
        bytes: Arc<[u8]>,
    },
    /// A file at a public `http` or `https` URL.
    Url(String),
}

impl ImageSource {
    /// The source as a URL: a `data:` URL for a file in the request.
    pub fn to_url(&self) -> String {
        match self {
            Self::Bytes { media_type, bytes } => {
                format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
            }
            Self::Url(url) => url.clone(),
        }
    }
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes { media_type, bytes } => write!(f, "{} bytes of {media_type}", bytes.len()),
            Self::Url(url) => f.debug_tuple("Url").field(url).finish(),
        }
    }
}
