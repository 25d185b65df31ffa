//! Speed of an encoder of Qwen3-VL-2B's shape (24 layers of 1,024, patches of 16 × 16 pixels, deepstack
//! behind three layers) with random weights, beside the f32 peak of the registers of as many threads; in
//! one piece, and in parts as beside text.
//!
//! `cargo bench -p throng-vision --bench encoding [-- SIDE_IN_PIXELS]`

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use throng_core::prompt_media::{ContentLayout, FeatureRun, MediaContent, SpanKind};
use throng_core::scheduling::batch::WorkShare;
use throng_kernels::limits::{Arithmetic, RegisterLoop};
use throng_kernels::threads::ThreadPool;
use throng_model::load::LoadOptions;
use throng_model::media::MediaEncoder;
use throng_model::{BackendKind, load};

const PATCH: u32 = 16;
const N_LAYERS: usize = 24;
const HIDDEN: usize = 1024;
const MLP: usize = 4096;
const FEATURE: usize = 2048;
const N_DEEPSTACK: usize = 3;
const N_ROUNDS: usize = 3;

fn main() {
    let side = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(512_u32);
    let folder = tempfile::tempdir().expect("a folder");
    write_model(folder.path());
    let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
    let model = load(folder.path(), &options, &mut |_| {}).expect("it loads");
    let model = throng_vision::with_vision(model, None).expect("it has an encoder");
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = std::sync::Arc::new(ThreadPool::new(n_threads));
    let mut encoder =
        model.media().expect("it has one").encoder(BackendKind::Cpu, &threads).expect("it runs");
    let content = picture(side);
    let n_features = content.layout().n_features();
    let peak = RegisterLoop::best(Arithmetic::F32);
    let begun = Instant::now();
    black_box(peak.run(20_000_000));
    let peak = n_threads as f64 * peak.operations() * 2e7 / begun.elapsed().as_secs_f64() / 1e9;
    // The weights are read first.
    encode(&mut *encoder, &picture(4 * PATCH), 1);
    let work = giga_operations(side);
    println!("{side} × {side} pixels: {n_features} features, {work:.0} G operations; {n_threads} threads");
    for n_parts in [1, n_features as u32] {
        let mut seconds: Vec<f64> = (0..N_ROUNDS).map(|_| encode(&mut *encoder, &content, n_parts)).collect();
        seconds.sort_by(f64::total_cmp);
        let median = seconds[N_ROUNDS / 2];
        println!(
            "in {n_parts} parts: {:.2} s, {:.1} features a second, {:.0} of {peak:.0} G operations a second ({:.0} %)",
            median,
            n_features as f64 / median,
            work / median,
            100.0 * work / median / peak
        );
    }
}

/// Seconds of encoding in so many parts.
fn encode(encoder: &mut dyn MediaEncoder, content: &MediaContent, n_parts: u32) -> f64 {
    let begun = Instant::now();
    let mut encoding = encoder.begin(content).expect("it is read");
    let mut shares = (1..=n_parts).map(|done| WorkShare { done, all: n_parts });
    let features = shares.find_map(|share| encoding.advance(share).expect("it is encoded"));
    black_box(features.expect("all is done"));
    begun.elapsed().as_secs_f64()
}

/// Multiplications and additions of matrices and of attention, in 1e9.
fn giga_operations(side: u32) -> f64 {
    let n = f64::from(side / PATCH).powi(2);
    let (hidden, mlp) = (HIDDEN as f64, MLP as f64);
    let layer = 4.0 * hidden * hidden + 2.0 * hidden * mlp + 2.0 * n * hidden;
    let joined = 4.0 * hidden;
    let mergers = (1 + N_DEEPSTACK) as f64 * joined * (joined + FEATURE as f64) / 4.0;
    2.0 * n * (N_LAYERS as f64 * layer + mergers) / 1e9
}

fn picture(side: u32) -> MediaContent {
    let n = side / PATCH;
    let width = 3 * 2 * PATCH * PATCH;
    let layout = ContentLayout {
        kind: SpanKind::Image,
        grid: [1, n, n],
        shape: vec![n * n, width],
        runs: vec![FeatureRun { offset: 0, len: n * n / 4 }],
    };
    let mut rng = fastrand::Rng::with_seed(1);
    let pixels: Vec<f32> = (0..n * n * width).map(|_| rng.f32() * 2.0 - 1.0).collect();
    MediaContent::new(layout, pixels.into()).expect("pixel values of a picture")
}

/// Writes a folder with the tensors of the fixture in Qwen3-VL-2B's sizes; the text model has a single layer.
fn write_model(folder: &Path) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-vl");
    let config = std::fs::read(fixture.join("config.json")).expect("the fixture");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    let vision = &mut config["vision_config"];
    for (key, value) in [
        ("depth", json!(N_LAYERS)),
        ("hidden_size", json!(HIDDEN)),
        ("intermediate_size", json!(MLP)),
        ("out_hidden_size", json!(FEATURE)),
        ("num_heads", json!(16)),
        ("num_position_embeddings", json!(2304)),
        ("patch_size", json!(PATCH)),
        ("deepstack_visual_indexes", json!([5, 11, 17])),
    ] {
        vision[key] = value;
    }
    config["text_config"]["hidden_size"] = json!(FEATURE);
    std::fs::write(folder.join("config.json"), config.to_string()).expect("it is written");
    let bytes = std::fs::read(fixture.join("model.safetensors")).expect("the fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, tensor) in tensors.tensors() {
        let shape = scaled(&name, tensor.shape());
        let repeated = |part: &str, n: usize| -> Vec<_> {
            let named = |i: usize| name.replacen(&format!("{part}.0."), &format!("{part}.{i}."), 1);
            (0..n).map(|i| (named(i), shape.clone())).collect()
        };
        match name.split_once("visual.").map(|(_, name)| name) {
            Some(name) if name.starts_with("blocks.0.") => shapes.extend(repeated("blocks", N_LAYERS)),
            Some(name) if name.starts_with("deepstack_merger_list.0.") => {
                shapes.extend(repeated("deepstack_merger_list", N_DEEPSTACK));
            }
            Some(name) if name.starts_with("blocks.") || name.starts_with("deepstack_merger_list.") => {}
            _ => shapes.push((name.clone(), shape)),
        }
    }
    let largest = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).max().unwrap_or(0);
    let mut rng = fastrand::Rng::with_seed(2);
    // BF16 between -1/16 and 1/16: the upper bytes of numbers.
    let number = |rng: &mut fastrand::Rng| ((rng.f32() - 0.5) / 8.0).to_bits() >> 16;
    let values: Vec<u8> = (0..largest).flat_map(|_| (number(&mut rng) as u16).to_le_bytes()).collect();
    let views = shapes.iter().map(|(name, shape)| {
        let n_bytes = 2 * shape.iter().product::<usize>();
        (name, TensorView::new(Dtype::BF16, shape.clone(), &values[..n_bytes]).expect("a shape"))
    });
    let bytes = serialize(views, None).expect("tensors");
    std::fs::write(folder.join("model.safetensors"), bytes).expect("it is written");
}

/// The shape of a tensor of the fixture in the sizes of this model.
fn scaled(name: &str, shape: &[usize]) -> Vec<usize> {
    if name.ends_with("patch_embed.proj.weight") {
        return vec![HIDDEN, 3, 2, PATCH as usize, PATCH as usize];
    }
    if name.contains("visual.") {
        let size = |&side: &usize| match side {
            24 => HIDDEN,
            32 => FEATURE,
            36 => 2304,
            40 => MLP,
            72 => 3 * HIDDEN,
            96 => 4 * HIDDEN,
            side => side,
        };
        return shape.iter().map(size).collect();
    }
    let mut shape = shape.to_vec();
    let is_output = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    let place = if is_output { 0 } else { shape.len() - 1 };
    if shape[place] == 32 {
        shape[place] = FEATURE;
    }
    shape
}
