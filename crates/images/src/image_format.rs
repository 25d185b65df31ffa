//! Formats of files, recognized by their first bytes. Does not know the rest of their content.

use std::fmt;

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Portable Network Graphics.
    Png,
    /// A JPEG file.
    Jpeg,
    /// A WebP file.
    Webp,
    /// Graphics Interchange Format.
    Gif,
    /// A Windows bitmap.
    Bmp,
}

impl ImageFormat {
    /// All supported formats.
    pub const ALL: [Self; 5] = [Self::Png, Self::Jpeg, Self::Webp, Self::Gif, Self::Bmp];

    /// The format of a file that begins with `bytes`; `None` for any other content.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            _ => None,
        }
    }

    /// The media type, as in `Content-Type`.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Webp => "image/webp",
            Self::Gif => "image/gif",
            Self::Bmp => "image/bmp",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Webp => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
        })
    }
}
