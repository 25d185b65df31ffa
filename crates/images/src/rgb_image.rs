//! Pixels of an image in memory.

/// An image of 8-bit RGB pixels, upright.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    width: u32,
    height: u32,
    /// Rows from the top, three bytes a pixel.
    pixels: Vec<u8>,
}

impl RgbImage {
    /// An image of `pixels`: rows from the top, three bytes a pixel. `None` if their number does not match
    /// the sides or is 0.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let n_bytes = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (n_bytes > 0 && pixels.len() == n_bytes).then_some(Self { width, height, pixels })
    }

    /// A black image. Both sides must be at least 1.
    pub(crate) fn black(width: u32, height: u32) -> Self {
        Self { width, height, pixels: vec![0; width as usize * height as usize * 3] }
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Rows from the top, three bytes a pixel.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// A row, three bytes a pixel.
    pub(crate) fn row(&self, y: u32) -> &[u8] {
        let n_bytes = self.width as usize * 3;
        &self.pixels[y as usize * n_bytes..][..n_bytes]
    }

    /// The part of `width` by `height` pixels whose top left is at `(left, top)`; black outside of the image.
    pub(crate) fn window(&self, left: i64, top: i64, width: u32, height: u32) -> Self {
        let mut part = Self::black(width, height);
        let from_x = left.clamp(0, i64::from(self.width));
        let until_x = (left + i64::from(width)).clamp(from_x, i64::from(self.width));
        let n_bytes = (until_x - from_x) as usize * 3;
        let offset = (from_x - left) as usize * 3;
        for (y, row) in part.pixels.chunks_exact_mut(width as usize * 3).enumerate() {
            let from_y = top + y as i64;
            if n_bytes > 0 && (0..i64::from(self.height)).contains(&from_y) {
                let source = &self.row(from_y as u32)[from_x as usize * 3..][..n_bytes];
                row[offset..offset + n_bytes].copy_from_slice(source);
            }
        }
        part
    }

    /// The upright image, after mirroring and turning: `orientation` is the value of EXIF's tag, 1 to 8;
    /// other values leave it unchanged.
    pub(crate) fn upright(self, orientation: u16) -> Self {
        if !(2..=8).contains(&orientation) {
            return self;
        }
        let (width, height) = (self.width as usize, self.height as usize);
        let is_turned = orientation >= 5;
        let (new_width, new_height) = if is_turned { (height, width) } else { (width, height) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for y in 0..new_height {
            for x in 0..new_width {
                let (from_x, from_y) = match orientation {
                    2 => (width - 1 - x, y),
                    3 => (width - 1 - x, height - 1 - y),
                    4 => (x, height - 1 - y),
                    5 => (y, x),
                    6 => (y, height - 1 - x),
                    7 => (width - 1 - y, height - 1 - x),
                    _ => (width - 1 - y, x),
                };
                let at = (from_y * width + from_x) * 3;
                pixels.extend_from_slice(&self.pixels[at..at + 3]);
            }
        }
        Self { width: new_width as u32, height: new_height as u32, pixels }
    }
}

impl std::fmt::Debug for RgbImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RgbImage({} x {})", self.width, self.height)
    }
}
