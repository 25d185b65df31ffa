//! Reading weight files: the content is read as it was written, and real files of llama.cpp and transformers
//! load.

use std::fs;
use std::path::{Path, PathBuf};

use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_checkpoint::gguf::{Gguf, GgufArray, GgufError, GgufValue};
use throng_checkpoint::safetensors::{SafetensorsError, SafetensorsFolder};
use throng_kernels::quant::Format;
use throng_testkit::shared_files::shared;

fn every_value() -> Vec<(&'static str, GgufValue)> {
    vec![
        ("u8", GgufValue::U8(200)),
        ("i8", GgufValue::I8(-3)),
        ("u16", GgufValue::U16(60_000)),
        ("i16", GgufValue::I16(-30_000)),
        ("u32", GgufValue::U32(4_000_000_000)),
        ("i32", GgufValue::I32(-2_000_000_000)),
        ("f32", GgufValue::F32(1.5)),
        ("bool", GgufValue::Bool(true)),
        ("string", GgufValue::String("Füße".into())),
        ("u64", GgufValue::U64(u64::MAX)),
        ("i64", GgufValue::I64(i64::MIN)),
        ("f64", GgufValue::F64(-0.1)),
        ("numbers", GgufValue::Array(GgufArray::I32(vec![1, -2, 3]))),
        ("flags", GgufValue::Array(GgufArray::Bool(vec![true, false]))),
        ("words", GgufValue::Array(GgufArray::Strings(["a", "", "ü", "end"].into_iter().collect()))),
        ("nothing", GgufValue::Array(GgufArray::F32(vec![]))),
    ]
}

#[test]
fn gguf_reads_what_was_written() {
    let data: Vec<u8> = (0..=255).cycle().take(34 * 6).collect();
    for version in [2, 3] {
        let tensors = [
            TensorToWrite { name: "b", shape: &[3, 64], format: Format::Q8_0, data: &data },
            TensorToWrite { name: "a", shape: &[5], format: Format::F32, data: &data[..20] },
            TensorToWrite { name: "c", shape: &[2, 1, 3], format: Format::F16, data: &data[7..19] },
        ];
        let file = write(version, &every_value(), &tensors);
        let gguf = Gguf::parse(&file).unwrap();
        let read: Vec<_> = gguf.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(read, every_value());
        assert_eq!(gguf.names(), ["a", "b", "c"]);
        for written in &tensors {
            let read = gguf.tensor(written.name).unwrap();
            assert_eq!(
                (read.name, read.shape, read.format, read.data),
                (written.name, written.shape, written.format, written.data)
            );
        }
        assert!(gguf.tensor("d").is_none());
    }
}

#[test]
fn gguf_values_are_asked_for_by_type() {
    let file = write(3, &every_value(), &[]);
    let gguf = Gguf::parse(&file).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.u64("u8").unwrap(), Some(200));
    assert_eq!(metadata.u64("missing").unwrap(), None);
    assert_eq!(metadata.f64("f32").unwrap(), Some(1.5));
    assert_eq!(metadata.str("string").unwrap(), Some("Füße"));
    assert_eq!(metadata.bool("bool").unwrap(), Some(true));
    let words = metadata.strings("words").unwrap().unwrap();
    assert_eq!(words.iter().collect::<Vec<_>>(), ["a", "", "ü", "end"]);
    assert_eq!((words.len(), words.get(3), words.get(4)), (4, Some("end"), None));
    assert_eq!(metadata.array("numbers").unwrap().unwrap().to_u64s(), None);
    for wrong in [metadata.u64("i8").unwrap_err(), metadata.str("u8").map(|_| ()).unwrap_err()] {
        assert!(matches!(wrong, GgufError::WrongType { .. }), "{wrong}");
    }
}

fn write_parts(folder: &Path, change: impl Fn(usize, &mut Vec<(&str, GgufValue)>)) -> PathBuf {
    for part_idx in 0..3usize {
        let mut metadata = vec![
            ("split.no", GgufValue::U16(part_idx as u16)),
            ("split.count", GgufValue::U16(3)),
            ("split.tensors.count", GgufValue::I32(3)),
        ];
        if part_idx == 0 {
            metadata.push(("general.architecture", GgufValue::String("llama".into())));
        }
        change(part_idx, &mut metadata);
        let name = format!("t{part_idx}");
        let data = [part_idx as u8; 8];
        let tensor = TensorToWrite { name: &name, shape: &[2], format: Format::F32, data: &data };
        let path = folder.join(format!("m-{:05}-of-00003.gguf", part_idx + 1));
        fs::write(path, write(3, &metadata, &[tensor])).unwrap();
    }
    folder.join("m-00001-of-00003.gguf")
}

#[test]
fn split_gguf_is_one_model_from_any_part() {
    let folder = tempfile::tempdir().unwrap();
    let first = write_parts(folder.path(), |_, _| {});
    for path in [first, folder.path().join("m-00003-of-00003.gguf")] {
        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.names(), ["t0", "t1", "t2"]);
        assert_eq!(gguf.tensor("t2").unwrap().data, [2; 8]);
    }
}

#[test]
fn split_gguf_faults_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = write_parts(folder, |part_idx, metadata| {
        if part_idx == 1 {
            metadata[0].1 = GgufValue::U16(2);
        }
    });
    let error = Gguf::open(&first).unwrap_err();
    assert!(
        matches!(error, GgufError::SplitMismatch { what: "split.no", expected: 1, found: 2, .. }),
        "{error}"
    );

    let first = write_parts(folder, |_, metadata| metadata[2].1 = GgufValue::I32(4));
    let error = Gguf::open(&first).unwrap_err();
    assert!(matches!(error, GgufError::SplitMismatch { what: "split.tensors.count", .. }), "{error}");

    let first = write_parts(folder, |_, _| {});
    fs::remove_file(folder.join("m-00002-of-00003.gguf")).unwrap();
    assert!(
        matches!(Gguf::open(&first).unwrap_err(), GgufError::Io { path, .. } if path.ends_with("m-00002-of-00003.gguf"))
    );
    let renamed = folder.join("other.gguf");
    fs::rename(first, &renamed).unwrap();
    assert!(matches!(Gguf::open(&renamed).unwrap_err(), GgufError::SplitName { n_files: 3, .. }));
}

fn safetensors_bytes(tensors: &[(&str, safetensors::Dtype, Vec<usize>, &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (*name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

#[test]
fn safetensors_folders_load_single_and_sharded() {
    use safetensors::Dtype;
    let data: Vec<u8> = (0..24).collect();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(matches!(SafetensorsFolder::open(folder).unwrap_err(), SafetensorsError::NoWeights { .. }));

    let one = safetensors_bytes(&[
        ("w", Dtype::F32, vec![2, 3], &data),
        ("h", Dtype::F16, vec![4], &data[..8]),
        ("b", Dtype::BF16, vec![3, 1], &data[..6]),
    ]);
    fs::write(folder.join("model.safetensors"), &one).unwrap();
    let single = SafetensorsFolder::open(folder).unwrap();
    assert_eq!(single.names(), ["b", "h", "w"]);
    let w = single.tensor("w").unwrap();
    assert_eq!((w.shape, w.format, w.data), (&[2, 3][..], Format::F32, &data[..]));
    assert_eq!(single.tensor("b").unwrap().format, Format::BF16);

    let two = safetensors_bytes(&[("x", Dtype::F32, vec![1], &data[..4])]);
    fs::write(folder.join("one.safetensors"), &one).unwrap();
    fs::write(folder.join("two.safetensors"), &two).unwrap();
    let index = r#"{"metadata":{"total_size":1},"weight_map":{"w":"one.safetensors","x":"two.safetensors"}}"#;
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    let sharded = SafetensorsFolder::open(folder).unwrap();
    assert_eq!(sharded.names(), ["w", "x"]);
    assert_eq!(sharded.tensor("x").unwrap().data, &data[..4]);
    assert_eq!(sharded.tensor("w").unwrap().data, data);
}

#[test]
fn files_of_llama_cpp_load() {
    for name in ["llama-F16", "llama-Q4_0", "llama-Q4_K_M", "llama-Q6_K", "llama-Q8_0", "qwen3-Q8_0"] {
        let Some(path) = shared(&format!("gguf/{name}.gguf")) else { continue };
        let gguf = Gguf::open(&path).unwrap();
        let architecture = gguf.metadata().str("general.architecture").unwrap().unwrap().to_owned();
        let vocabulary = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().len();
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        let width = gguf.metadata().u64(&format!("{architecture}.embedding_length")).unwrap().unwrap();
        assert_eq!(embedding.shape, [vocabulary, width as usize], "{}", path.display());
    }
}

#[test]
fn folders_of_transformers_load() {
    let names = [
        "deepseek-v3",
        "gemma2",
        "gemma3",
        "gpt-oss",
        "granite",
        "llama",
        "llama3-rope-tied",
        "mistral-sliding",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3-moe",
        "smollm3",
    ];
    for name in names {
        let Some(path) = shared(&format!("reference/{name}")) else { continue };
        let weights = SafetensorsFolder::open(&path).unwrap();
        assert!(weights.tensor("model.embed_tokens.weight").is_some(), "{}", path.display());
    }
}
