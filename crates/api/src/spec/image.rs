//! Images of a conversation, as the client sent them. Does not know formats of files.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Maximum number of images of a request.
pub const MAX_IMAGES: usize = 128;

/// An image among the parts of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePart {
    /// Where its file is.
    pub source: ImageSource,
    /// How closely the client wants it looked at (OpenAI's `detail`), for engines that distinguish it.
    pub detail: Option<&'static str>,
    /// Path of the parameter, for errors.
    pub param: String,
}

/// Where the file of an image is.
#[derive(Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// In the request.
    Bytes {
        /// Media type that the client says; the content decides.
        media_type: String,
        /// The file.
        bytes: Arc<[u8]>,
    },
    /// At a public `http` or `https` URL.
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
