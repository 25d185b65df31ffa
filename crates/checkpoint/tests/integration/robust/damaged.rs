//! Small valid files, damaged everywhere: truncated at each byte, each bit of the header flipped, each number
//! replaced by an extreme one.

use std::collections::BTreeMap;

use serde_json::Value;
use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::writer::{HeaderWriter, TensorToWrite, type_id, write};
use throng_checkpoint::gguf::{Gguf, GgufArray, GgufValue};
use throng_checkpoint::safetensors::{SafetensorsFolder, parse_index};
use throng_kernels::quant::Format;

use super::within_bounds;

/// A model of every value type and some formats, with a vocabulary.
fn small_gguf(version: u32) -> Vec<u8> {
    let tokens = (0..120).map(|i| format!("token{i}ü")).collect::<Vec<_>>();
    let tokens = GgufValue::Array(GgufArray::Strings(tokens.iter().map(String::as_str).collect()));
    let metadata = [
        ("general.architecture", GgufValue::String("llama".into())),
        ("general.alignment", GgufValue::U32(32)),
        ("llama.block_count", GgufValue::U32(2)),
        ("llama.rope.freq_base", GgufValue::F32(10_000.0)),
        ("llama.context_length", GgufValue::U64(4096)),
        ("some.u8", GgufValue::U8(1)),
        ("some.i8", GgufValue::I8(-1)),
        ("some.u16", GgufValue::U16(2)),
        ("some.i16", GgufValue::I16(-2)),
        ("some.i32", GgufValue::I32(-3)),
        ("some.i64", GgufValue::I64(-4)),
        ("some.f64", GgufValue::F64(0.5)),
        ("tokenizer.ggml.add_bos_token", GgufValue::Bool(true)),
        ("tokenizer.ggml.tokens", tokens),
        ("tokenizer.ggml.scores", GgufValue::Array(GgufArray::F32(vec![0.5; 120]))),
        ("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(vec![1; 120]))),
        ("some.flags", GgufValue::Array(GgufArray::Bool(vec![true, false, true]))),
    ];
    let data: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let tensor = |name, shape: &'static [usize], format: Format| {
        let n_bytes = format.bytes_of(shape.iter().product()).unwrap();
        TensorToWrite { name, shape, format, data: &data[..n_bytes] }
    };
    let tensors = [
        tensor("token_embd.weight", &[6, 64], Format::Q8_0),
        tensor("blk.0.attn_norm.weight", &[64], Format::F32),
        tensor("blk.0.ffn_up.weight", &[2, 256], Format::Q4_K),
        tensor("blk.0.ffn_down.weight", &[4, 3, 32], Format::Q4_0),
        tensor("blk.0.ffn_gate.weight", &[1, 256], Format::IQ2_XS),
        tensor("blk.0.attn_q.weight", &[1, 64], Format::NVFP4),
        tensor("output.weight", &[2, 3, 4, 5], Format::F16),
    ];
    write(version, &metadata, &tensors)
}

/// A matrix of one row in each format.
fn gguf_of_every_format() -> Vec<u8> {
    let data: Vec<u8> = (0..=255).cycle().take(1024).collect();
    let formats = Format::ALL.into_iter().filter(|format| format.ggml_number().is_some());
    let formats: Vec<_> = formats.map(|format| (format, format!("{}.weight", format.name()))).collect();
    let tensors: Vec<_> = formats
        .iter()
        .map(|(format, name)| {
            let format = *format;
            let n_bytes = format.bytes_of(256).unwrap();
            TensorToWrite { name, shape: &[1, 256], format, data: &data[..n_bytes] }
        })
        .collect();
    write(3, &[("general.architecture", GgufValue::String("llama".into()))], &tensors)
}

fn small_ggufs() -> [Vec<u8>; 3] {
    [small_gguf(2), small_gguf(3), gguf_of_every_format()]
}

/// Everything that loading returns.
fn listing(source: &dyn TensorSource) -> Vec<(String, Vec<usize>, Format, Vec<u8>)> {
    let names = source.names();
    names
        .iter()
        .map(|name| {
            let tensor = source.tensor(name).expect("it is listed");
            assert_eq!(Some(tensor.data.len()), tensor.format.bytes_of(tensor.shape.iter().product()));
            (tensor.name.to_owned(), tensor.shape.to_vec(), tensor.format, tensor.data.to_vec())
        })
        .collect()
}

/// Loads damaged bytes; if they load, the result must be exactly what the bytes say.
fn read_damaged_gguf(bytes: &[u8]) -> Option<Gguf> {
    let gguf = within_bounds(bytes.len(), || Gguf::parse(bytes)).ok()?;
    let header = gguf.headers().next().unwrap();
    let mut written =
        HeaderWriter::new(header.version, header.tensors.len() as u64, header.metadata.iter().len() as u64);
    header.metadata.iter().for_each(|(key, value)| written.entry(key, value));
    for tensor in &header.tensors {
        let fastest_first: Vec<u64> = tensor.shape().iter().rev().map(|&d| d as u64).collect();
        written.tensor(&tensor.name, &fastest_first, type_id(tensor.format), tensor.offset as u64);
    }
    assert!(bytes.starts_with(&written.into_bytes()), "the load differs from the bytes");
    listing(&gguf);
    Some(gguf)
}

#[test]
fn gguf_cut_anywhere_is_refused() {
    for whole in small_ggufs() {
        assert!((5_000..20_000).contains(&whole.len()));
        assert!(read_damaged_gguf(&whole).is_some());
        for n in 0..whole.len() {
            assert!(read_damaged_gguf(&whole[..n]).is_none(), "loaded although cut at {n}");
        }
    }
}

#[test]
fn gguf_with_any_header_bit_flipped_is_refused_or_read_as_it_stands() {
    for whole in small_ggufs() {
        let n_header_bytes = Gguf::parse(&whole).unwrap().headers().next().unwrap().data_start;
        let (mut n_loaded, mut damaged) = (0, whole.clone());
        for bit in 0..n_header_bytes * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            n_loaded += u32::from(read_damaged_gguf(&damaged).is_some());
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        // Only strings and numbers of the metadata may differ, not lengths, types and offsets.
        assert!((1_000..n_header_bytes as u32 * 8).contains(&n_loaded), "{n_loaded} loaded");
    }
}

#[test]
fn gguf_with_extreme_numbers_anywhere_is_refused_or_read_as_it_stands() {
    for whole in [small_gguf(3), gguf_of_every_format()] {
        let n_header_bytes = Gguf::parse(&whole).unwrap().headers().next().unwrap().n_bytes;
        let extremes = [
            0,
            1,
            0xFF,
            u64::from(u32::MAX),
            i64::MAX as u64,
            u64::MAX - 7,
            u64::MAX,
            1 << 61,
            whole.len() as u64,
        ];
        let mut damaged = whole.clone();
        for at in 0..n_header_bytes - 8 {
            for extreme in extremes {
                for width in [4, 8] {
                    damaged[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
                    read_damaged_gguf(&damaged);
                    damaged[at..at + width].copy_from_slice(&whole[at..at + width]);
                }
            }
        }
    }
}

fn small_safetensors() -> Vec<u8> {
    let data: Vec<u8> = (0..=255).cycle().take(2048).collect();
    let mut tensors = Vec::new();
    for layer in 0..6usize {
        for (name, dtype, shape) in [
            ("input_layernorm.weight", safetensors::Dtype::F32, vec![16]),
            ("self_attn.q_proj.weight", safetensors::Dtype::BF16, vec![16, 16]),
            ("mlp.up_proj.weight", safetensors::Dtype::F16, vec![4, 2, 3]),
        ] {
            let n_bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let view = safetensors::tensor::TensorView::new(dtype, shape, &data[..n_bytes]).unwrap();
            tensors.push((format!("model.layers.{layer}.{name}"), view));
        }
    }
    safetensors::serialize(tensors, Some([("format".to_owned(), "pt".to_owned())].into())).unwrap()
}

fn read_damaged_safetensors(bytes: &[u8]) -> Option<SafetensorsFolder> {
    let folder = within_bounds(bytes.len(), || SafetensorsFolder::parse(bytes)).ok()?;
    let n_header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + n_header_bytes]).unwrap();
    let loaded = listing(&folder);
    assert_eq!(loaded.len(), header.keys().filter(|key| *key != "__metadata__").count());
    for (name, shape, format, data) in loaded {
        let declared = &header[&name];
        assert_eq!(declared["dtype"], format.name());
        assert_eq!(declared["shape"], Value::from(shape));
        let [start, end] = [0, 1].map(|i| declared["data_offsets"][i].as_u64().unwrap() as usize);
        assert_eq!(data, bytes[8 + n_header_bytes + start..8 + n_header_bytes + end]);
    }
    Some(folder)
}

#[test]
fn safetensors_cut_anywhere_are_refused() {
    let whole = small_safetensors();
    assert!((5_000..20_000).contains(&whole.len()));
    assert!(read_damaged_safetensors(&whole).is_some());
    for n in 0..whole.len() {
        assert!(read_damaged_safetensors(&whole[..n]).is_none(), "loaded although cut at {n}");
    }
}

#[test]
fn safetensors_with_any_header_bit_flipped_are_refused_or_read_as_they_stand() {
    let mut damaged = small_safetensors();
    let n_header_bytes = 8 + u64::from_le_bytes(damaged[..8].try_into().unwrap()) as usize;
    let mut n_loaded = 0;
    for bit in 0..n_header_bytes * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        n_loaded += u32::from(read_damaged_safetensors(&damaged).is_some());
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    assert!((100..n_header_bytes as u32 * 8).contains(&n_loaded), "{n_loaded} loaded");
}

#[test]
fn an_index_cut_or_flipped_anywhere_is_refused_or_stays_in_its_folder() {
    let places: BTreeMap<String, String> = (0..20)
        .map(|i| (format!("model.layers.{i}.weight"), format!("model-{:05}-of-00003.safetensors", 1 + i % 3)))
        .collect();
    let whole =
        serde_json::json!({"metadata": {"total_size": 12}, "weight_map": places}).to_string().into_bytes();
    let read = |bytes: &[u8]| within_bounds(bytes.len(), || parse_index(bytes));
    assert_eq!(read(&whole).unwrap(), places.into_iter().collect::<Vec<_>>());
    for n in 0..whole.len() {
        assert!(read(&whole[..n]).is_err(), "loaded although cut at {n}");
    }
    let mut damaged = whole.clone();
    for bit in 0..whole.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        for (_, shard) in read(&damaged).unwrap_or_default() {
            assert!(!shard.contains('/') && shard.ends_with(".safetensors"), "{shard}");
        }
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}
