//! GGUF files whose metadata claims sizes that no file has: refused, without memory by them.

use allocation_counter::measure;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_checkpoint::gguf::{Gguf, GgufValue};
use throng_kernels::quant::Format;
use throng_model::arch::Architecture;

/// Most memory that reading the configuration of such a small file allocates.
const MAX_BYTES: u64 = 64 << 10;

/// Sizes that are only numbers in the metadata must not cause tables of that length.
#[test]
fn impossible_sizes() {
    let embedding =
        TensorToWrite { name: "token_embd.weight", shape: &[4], format: Format::F32, data: &[0; 16] };
    let with = |key: &str, huge: u64| {
        let mut metadata = vec![
            ("general.architecture", GgufValue::String("llama".into())),
            ("llama.block_count", GgufValue::U32(1)),
            ("llama.embedding_length", GgufValue::U32(32)),
            ("llama.feed_forward_length", GgufValue::U32(32)),
            ("llama.attention.head_count", GgufValue::U32(2)),
        ];
        metadata.retain(|(known, _)| *known != key);
        metadata.push((key, GgufValue::U64(huge)));
        write(3, &metadata, std::slice::from_ref(&embedding))
    };
    let read = |bytes: &[u8]| {
        let gguf = Gguf::parse(bytes).unwrap();
        let mut result = None;
        let allocated = measure(|| result = Some(Architecture::from_gguf(gguf.metadata(), &gguf)));
        assert!(allocated.bytes_total < MAX_BYTES, "{} bytes allocated", allocated.bytes_total);
        result.expect("it ran").map(|_| ())
    };
    assert!(read(&with("llama.context_length", 64)).is_ok());
    for key in [
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.rope.dimension_count",
        "llama.context_length",
    ] {
        for huge in [1 << 30, 1 << 40, u64::MAX] {
            assert!(read(&with(key, huge)).is_err(), "{key} = {huge}");
        }
    }
}
