//! Any bytes as an image: refused, or an image within the bounds, of which every processor makes values of
//! the shape that it says, or refuses its shape.

use std::sync::LazyLock;

use serde_json::json;
use throng_images::{DecodeLimits, Processor, decode, read_header};

static PROCESSORS: LazyLock<Vec<Processor>> = LazyLock::new(|| {
    let vision = json!({"patch_size": 4, "image_size": 16});
    let model = |kind: &str| json!({"model_type": kind, "vision_config": vision, "mm_tokens_per_image": 16});
    let size = json!({"height": 16, "width": 16});
    let pixels = json!({"shortest_edge": 256, "longest_edge": 4096});
    let dynamic = |class: &str| json!({"image_processor_type": class, "size": pixels, "patch_size": 4});
    let fixed = |class: &str| json!({"image_processor_type": class, "size": size, "crop_size": size, "max_patches": 4});
    let longest = |class: &str| {
        let tile = json!({"longest_edge": 16});
        json!({"image_processor_type": class, "size": {"longest_edge": 32}, "max_image_size": tile})
    };
    let clip = json!({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 16}, "crop_size": size});
    let gemma4 =
        json!({"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70, "patch_size": 2});
    let configurations = [
        (dynamic("Qwen2VLImageProcessor"), "qwen3_vl"),
        (dynamic("Glm4vImageProcessor"), "glm4v"),
        (fixed("Gemma3ImageProcessor"), "gemma3"),
        (clip, "llava"),
        (gemma4, "gemma4"),
        (fixed("GotOcr2ImageProcessor"), "internvl"),
        (fixed("Llama4ImageProcessor"), "llama4"),
        (fixed("LlavaOnevisionImageProcessor"), "llava_onevision"),
        (longest("PixtralImageProcessor"), "mistral3"),
        (longest("SmolVLMImageProcessor"), "smolvlm"),
    ];
    let made =
        configurations.into_iter().map(|(processor, kind)| Processor::from_config(&processor, &model(kind)));
    made.collect::<Result<_, _>>().expect("configurations that are supported")
});

/// Panics when the decoder or a processor violates its contract.
pub fn check(bytes: &[u8]) {
    let limits = DecodeLimits { max_bytes: 1 << 20, max_side: 2048, max_pixels: 1 << 18 };
    let header = read_header(bytes, &limits);
    let decoded = decode(bytes, &limits);
    let Ok(image) = decoded else { return };
    let header = header.expect("what is decoded has a header");
    let sides = (image.width(), image.height());
    assert!(sides == (header.width, header.height) || sides == (header.height, header.width));
    for processor in PROCESSORS.iter() {
        let Ok(processed) = processor.process(&image) else { continue };
        let n_values: usize = processed.shape.iter().map(|side| *side as usize).product();
        assert_eq!(processed.pixels.len(), n_values, "{processor:?}");
        assert!(processed.pixels.iter().all(|value| value.is_finite()), "{processor:?}");
        assert!(processed.n_tokens() > 0 && n_values < 1 << 22, "{processor:?}: {:?}", processed.shape);
    }
}
