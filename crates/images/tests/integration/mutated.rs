//! Damaged files of every format: an error or an image within the bounds, never a panic.

use std::time::Duration;

use fastrand::Rng;
use throng_images::{DecodeLimits, decode};

use super::support::picture;

/// Pictures of each format, of every kind of content.
const PICTURES: &[&[&str]] = &[
    &["gradient.png", "rgba.png", "palette.png", "sixteen-bit.png", "exif-6.png", "grey-alpha.png"],
    &["wide.jpg", "exif.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "full-chroma.jpg"],
    &["lossless.webp", "lossy.webp"],
    &["one-frame.gif"],
];

/// Changes some bytes, cuts the end off, repeats a part, or all of that.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..bytes.len());
        let until = (at + rng.usize(1..64)).min(bytes.len());
        let near_the_start = at % bytes.len().min(64);
        match rng.u8(..8) {
            0..3 => bytes[at] = rng.u8(..),
            3 => bytes[at] ^= 1 << rng.u8(..8),
            // Sizes stand near the beginning.
            4 => bytes[near_the_start] = *rng.choice([0, 1, 0x7f, 0x80, 0xff].iter()).expect("some"),
            5 => bytes.truncate(at.max(16)),
            6 => bytes.extend_from_within(at..until),
            _ => drop(bytes.drain(at..until)),
        }
        if bytes.len() < 16 {
            return;
        }
    }
}

#[test]
fn damaged_files_are_images_or_errors() {
    let n_files = if std::env::var_os("THRONG_NIGHTLY").is_some() { 10_000 } else { 300 };
    let limits = DecodeLimits { max_pixels: 1 << 20, ..DecodeLimits::default() };
    for (kind, names) in PICTURES.iter().enumerate() {
        let originals: Vec<Vec<u8>> = names.iter().map(|name| picture(name)).collect();
        let (mut n_images, mut slowest) = (0, Duration::ZERO);
        for seed in 0..n_files {
            let mut rng = Rng::with_seed(seed as u64 * 8 + kind as u64);
            let mut bytes = rng.choice(&originals).expect("some").clone();
            mutate(&mut bytes, &mut rng);
            let begun = std::time::Instant::now();
            if let Ok(image) = decode(&bytes, &limits) {
                assert!(u64::from(image.width()) * u64::from(image.height()) <= limits.max_pixels);
                n_images += 1;
            }
            slowest = slowest.max(begun.elapsed());
        }
        println!("{}: {n_images} of {n_files} are images, at most {slowest:?} each", names[0]);
    }
}
