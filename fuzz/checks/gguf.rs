//! Any bytes as a GGUF file: refused, or every tensor has exactly the bytes of its shape and the metadata is
//! either parsed as a model's configuration or refused.

use throng_checkpoint::TensorSource;
use throng_checkpoint::gguf::Gguf;
use throng_model::arch::Architecture;

/// Panics when the parser violates its contract.
pub fn check(bytes: &[u8]) {
    let Ok(gguf) = Gguf::parse(bytes) else { return };
    for name in gguf.names() {
        let tensor = gguf.tensor(name).expect("it is listed");
        let n_elements = tensor.shape.iter().product();
        assert_eq!(Some(tensor.data.len()), tensor.format.bytes_of(n_elements));
    }
    for (key, value) in gguf.metadata().iter() {
        assert!(gguf.metadata().get(key).is_some_and(|found| std::ptr::eq(found, value)));
        if let Ok(Some(strings)) = gguf.metadata().strings(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
    }
    if let Ok(architecture) = Architecture::from_gguf(gguf.metadata(), &gguf) {
        assert!(!architecture.config.layers.is_empty());
    }
}
