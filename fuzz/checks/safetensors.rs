//! Any bytes as a safetensors file and as a sharded model's index: refused, or every tensor has exactly the
//! bytes of its shape, and every shard is a plain name.

use throng_checkpoint::TensorSource;
use throng_checkpoint::safetensors::{SafetensorsFolder, parse_index};

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    if let Ok(file) = SafetensorsFolder::parse(bytes) {
        for name in file.names() {
            let tensor = file.tensor(name).expect("it is listed");
            assert_eq!(Some(tensor.data.len()), tensor.format.bytes_of(tensor.shape.iter().product()));
        }
    }
    for (_, shard) in parse_index(bytes).unwrap_or_default() {
        assert!(shard.ends_with(".safetensors") && !shard.contains(['/', '\\', ':']));
    }
}
