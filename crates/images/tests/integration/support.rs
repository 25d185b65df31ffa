//! Pictures and tensors for the tests.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use throng_images::{DecodeLimits, RgbImage, decode};

/// The folder of pictures, with their pixels as transformers sees them in `decoded.safetensors`.
pub fn pictures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The bytes of a picture.
pub fn picture(name: &str) -> Vec<u8> {
    std::fs::read(pictures().join(name)).expect("a picture")
}

/// The pixels of a picture, as transformers sees them.
pub fn true_pixels(name: &str) -> RgbImage {
    let bytes = std::fs::read(pictures().join("decoded.safetensors")).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid");
    let tensor = tensors.tensor(name).expect("the picture");
    let [height, width, _] = tensor.shape() else { panic!("three dimensions") };
    RgbImage::new(*width as u32, *height as u32, tensor.data().to_vec()).expect("a picture")
}

/// The pixels of a picture, decoded here.
pub fn decoded(name: &str) -> RgbImage {
    decode(&picture(name), &DecodeLimits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The folder `../shared/{name}` beside the checkout, or in the folder that `THRONG_SHARED` names; `None`
/// with a line that says so.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let folder = std::env::var_os("THRONG_SHARED").map_or_else(beside, PathBuf::from).join(name);
    if folder.exists() {
        return Some(folder);
    }
    println!("SKIPPED: tests that need ../shared/{name}, which is absent");
    None
}
