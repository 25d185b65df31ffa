//! Files of all formats and colour types against the pixels of Pillow, and sizes beyond the bounds.

use std::fs;

use throng_images::{DecodeLimits, ImageError, ImageFormat, decode, read_header};

use super::support::{decoded, picture, pictures, true_pixels};

/// Largest and mean distance of the values of two images.
fn distance(name: &str) -> (u8, f64) {
    let (found, expected) = (decoded(name), true_pixels(name));
    assert_eq!((found.width(), found.height()), (expected.width(), expected.height()), "{name}");
    let distances = found.pixels().iter().zip(expected.pixels()).map(|(found, is)| found.abs_diff(*is));
    let sum: u64 = distances.clone().map(u64::from).sum();
    (distances.max().unwrap_or(0), sum as f64 / found.pixels().len() as f64)
}

#[test]
fn pixels_are_those_of_pillow() {
    let files = fs::read_dir(pictures()).expect("a folder").map(|entry| entry.expect("a file").file_name());
    let names: Vec<String> = files.map(|name| name.into_string().expect("a name")).collect();
    let names: Vec<&String> = names.iter().filter(|name| !name.ends_with("safetensors")).collect();
    assert_eq!(names.len(), 27);
    for name in names {
        let (largest, mean) = distance(name);
        // Decoders of JPEG differ in the inverse transform and in how they enlarge colour.
        let (most, most_on_average) = if name.ends_with("jpg") { (8, 0.6) } else { (0, 0.0) };
        assert!(largest <= most && mean <= most_on_average, "{name}: {largest}, {mean} on average");
    }
}

#[test]
fn a_bitmap_is_read() {
    let mut file = b"BM".to_vec();
    let header: [u32; 13] = [70, 0, 54, 40, 2, 2, 1 | 24 << 16, 0, 16, 2835, 2835, 0, 0];
    file.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    // Rows from below, blue first, padded to four bytes.
    file.extend([0, 0, 255, 0, 255, 0, 0, 0, 255, 0, 0, 10, 20, 30, 0, 0]);
    let image = decode(&file, &DecodeLimits::default()).expect("a bitmap");
    assert_eq!((image.width(), image.height()), (2, 2));
    assert_eq!(image.pixels(), [0, 0, 255, 30, 20, 10, 255, 0, 0, 0, 255, 0]);
}

#[test]
fn the_type_comes_from_the_content() {
    let limits = DecodeLimits::default();
    for (name, format) in [
        ("one.png", ImageFormat::Png),
        ("wide.jpg", ImageFormat::Jpeg),
        ("lossy.webp", ImageFormat::Webp),
        ("one-frame.gif", ImageFormat::Gif),
    ] {
        assert_eq!(read_header(&picture(name), &limits).map(|header| header.format), Ok(format));
    }
    for other in [&b""[..], b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", &[0; 64]] {
        assert_eq!(decode(other, &limits), Err(ImageError::UnknownFormat));
    }
}

#[test]
fn bounds_are_checked_before_pixels_are_decoded() {
    let bytes = picture("rgba.png");
    let limits = DecodeLimits::default();
    let few_bytes = DecodeLimits { max_bytes: 100, ..limits };
    assert!(matches!(decode(&bytes, &few_bytes), Err(ImageError::TooManyBytes { limit: 100, .. })));
    let short = DecodeLimits { max_side: 50, ..limits };
    assert_eq!(decode(&bytes, &short), Err(ImageError::TooLong { width: 44, height: 56, limit: 50 }));
    let small = DecodeLimits { max_pixels: 2463, ..limits };
    let too_many = ImageError::TooManyPixels { width: 44, height: 56, limit: 2463 };
    assert_eq!(decode(&bytes, &small), Err(too_many));
    assert!(decode(&bytes, &DecodeLimits { max_pixels: 2464, ..limits }).is_ok());
}

/// A PNG that claims sides without the pixels for them.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut file = picture("one.png");
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc32(&file[12..29]);
    file[29..33].copy_from_slice(&crc.to_be_bytes());
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn a_small_file_that_claims_many_pixels_is_refused_by_its_header() {
    let limits = DecodeLimits::default();
    let long = decode(&png_of(100_000, 100_000), &limits);
    assert_eq!(long, Err(ImageError::TooLong { width: 100_000, height: 100_000, limit: 16_384 }));
    let many = decode(&png_of(16_000, 16_000), &limits);
    assert!(matches!(many, Err(ImageError::TooManyPixels { .. })), "{many:?}");
    let mut gif = picture("one-frame.gif");
    gif[6..10].fill(0xff);
    assert!(matches!(decode(&gif, &limits), Err(ImageError::TooLong { width: 65535, .. })));
    // The sides are those that it may have, and the pixels are missing.
    assert_eq!(decode(&png_of(4000, 4000), &limits), Err(ImageError::Damaged(ImageFormat::Png)));
}
