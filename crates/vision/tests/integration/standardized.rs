//! Gemma 4's larger models standardize features before the projection; the reference models do not. The
//! fixture has means and factors for the reference model, and what transformers 5 makes of two of its
//! pictures with them.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use throng_core::scheduling::batch::WorkShare;
use throng_model::{BackendKind, RunnerOptions};

use crate::cases::{Folder, LIMITS};
use crate::families::folder;

const NAMES: [&str; 2] = ["std_bias", "std_scale"];

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Copies a folder, with `standardize` set and the tensors for it.
fn write_folder(from: &Path, to: &Path, stored: &SafeTensors<'_>) {
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("it is copied");
    }
    let mut config: Value = serde_json::from_slice(&bytes_of(&from.join("config.json"))).expect("JSON");
    config["vision_config"]["standardize"] = json!(true);
    let write = |name: &str, bytes: &[u8]| {
        std::fs::remove_file(to.join(name)).expect("it was copied");
        std::fs::write(to.join(name), bytes).expect("it is written");
    };
    write("config.json", config.to_string().as_bytes());
    let bytes = bytes_of(&from.join("model.safetensors"));
    let model = SafeTensors::deserialize(&bytes).expect("tensors");
    let prefix = model.names().into_iter().find_map(|name| name.split_once("vision_tower."));
    let (prefix, _) = prefix.expect("a vision part");
    let more = NAMES.map(|name| {
        let tensor = stored.tensor(name).expect("the fixture");
        let view = TensorView::new(Dtype::F32, tensor.shape().to_vec(), tensor.data()).expect("a shape");
        (format!("{prefix}vision_tower.{name}"), view)
    });
    let all = model.tensors().into_iter().chain(more);
    write("model.safetensors", &serialize(all, None).expect("tensors"));
}

#[test]
fn features_are_standardized_before_the_projection() {
    let Some(reference) = folder("gemma4") else { return };
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gemma4-standardize.safetensors");
    let bytes = bytes_of(&fixture);
    let stored = SafeTensors::deserialize(&bytes).expect("tensors");
    let scratch = tempfile::tempdir().expect("a folder");
    write_folder(&reference, scratch.path(), &stored);
    let folder = Folder::open(scratch.path());
    let options = RunnerOptions { backend: BackendKind::Cpu, n_threads: 2, limits: LIMITS };
    let media = folder.model.media().expect("an encoder");
    let mut encoder = media.encoder(BackendKind::Cpu, &options.threads()).expect("it runs");
    for picture in ["tall.png", "wide.jpg"] {
        let expected = stored.tensor(&format!("{picture}.features")).expect("the fixture");
        let expected = expected.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let offsets: Vec<u32> = (0..folder.n_placeholders(picture) as u32).collect();
        let mut encoding = encoder.begin(&folder.content(picture, &offsets)).expect("it is read");
        let features = encoding.advance(WorkShare::WHOLE).expect("it is encoded").expect("all is done");
        assert_eq!(features.rows.len(), expected.len());
        let off = features.rows.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "{picture}: off by {off:.2e}");
    }
}
