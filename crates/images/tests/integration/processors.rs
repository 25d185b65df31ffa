//! The processors of all families against the pixel values of transformers (`../shared/vision`; skipped where
//! that is absent).

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;
use throng_images::{ProcessedImage, Processor};

use super::support::{shared, true_pixels};

/// Families. torchvision's arithmetic is copied, so that resized pixels are equal too.
const FAMILIES: &[&str] = &[
    "qwen3-vl",
    "qwen3-vl-moe",
    "qwen3-5",
    "qwen2-5-vl",
    "gemma3",
    "gemma4",
    "mistral3",
    "smolvlm",
    "internvl3",
    "llava-1-5",
    "llava-onevision",
    "llama4",
    "glm4-1v",
    "glm4-5v",
];

fn json(path: &Path) -> Option<Value> {
    Some(serde_json::from_slice(&fs::read(path).ok()?).expect("JSON"))
}

struct Family {
    processor: Processor,
    cases: Value,
    expected: Vec<u8>,
}

fn family(folder: &Path) -> Family {
    let preprocessor = json(&folder.join("preprocessor_config.json"));
    let preprocessor =
        preprocessor.or_else(|| json(&folder.join("processor_config.json"))).expect("a processor");
    let config = json(&folder.join("config.json")).expect("a configuration");
    let processor = Processor::from_config(&preprocessor, &config).expect("supported");
    let cases = json(&folder.join("cases.json")).expect("cases");
    Family { processor, cases, expected: fs::read(folder.join("expected.safetensors")).expect("tensors") }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes"))).collect()
}

/// Checks a picture: number of tokens, shape, grid, and the values.
fn check(name: &str, picture: &str, family: &Family) -> Result<(), String> {
    let processed = family.processor.process(&true_pixels(picture)).map_err(|error| error.to_string())?;
    let n_tokens = family.cases["images"][picture]["placeholders"].as_u64();
    if n_tokens != Some(processed.n_tokens().into()) {
        return Err(format!("{name} {picture}: {} tokens instead of {n_tokens:?}", processed.n_tokens()));
    }
    let tensors = SafeTensors::deserialize(&family.expected).expect("valid");
    let tensor = tensors.tensor(&format!("{picture}.pixel_values")).expect("the values");
    let mut expected = floats(tensor.data());
    if name == "gemma4" {
        // Padding that the encoder masks.
        expected.truncate(processed.pixels.len());
    } else {
        let without_batch =
            tensor.shape().iter().skip(usize::from(tensor.shape().len() > processed.shape.len()));
        let shape: Vec<u32> = without_batch.map(|side| *side as u32).collect();
        if shape != processed.shape {
            return Err(format!("{name} {picture}: shape {:?} instead of {shape:?}", processed.shape));
        }
    }
    if let Ok(grid) = tensors.tensor(&format!("{picture}.image_grid_thw")) {
        let grid: Vec<u32> = grid.data().chunks(8).map(|side| u32::from(side[0])).collect();
        assert_eq!(grid, processed.grid, "{name} {picture}");
    }
    compare(&format!("{name} {picture}"), &processed, &expected)
}

fn compare(what: &str, processed: &ProcessedImage, expected: &[f32]) -> Result<(), String> {
    if expected.len() != processed.pixels.len() {
        return Err(format!("{what}: {} values instead of {}", processed.pixels.len(), expected.len()));
    }
    let distances = || processed.pixels.iter().zip(expected).map(|(found, is)| (found - is).abs());
    let n_off = distances().filter(|distance| *distance > 1e-6).count();
    let largest = distances().fold(0.0, f32::max);
    if n_off == 0 {
        return Ok(());
    }
    Err(format!("{what}: {n_off} of {} values are off, by {largest} at most", expected.len()))
}

#[test]
fn pixel_values_are_those_of_transformers() {
    let Some(folder) = shared("vision") else { return };
    let mut faults = Vec::new();
    for name in FAMILIES {
        let family = family(&folder.join(name));
        for picture in family.cases["images"].as_object().expect("pictures").keys() {
            faults.extend(check(name, picture, &family).err());
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
