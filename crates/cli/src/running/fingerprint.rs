//! A digest of everything that the bits of answers depend on: the build, the weights, how they are
//! computed. Does not know requests.

use throng_model::LoadedModel;
use throng_model::kv_cache::KvDtype;

/// Bytes of each tensor in the digest: reading all of them would take as long as loading.
const SAMPLE_BYTES: usize = 4096;

/// A digest that is equal for workers with bit-identical answers. Covers each tensor's name, format, shape
/// and a sample of its bytes, and the computing device.
pub fn fingerprint(model: &LoadedModel, kv_dtype: KvDtype, computed_by: &str) -> String {
    let commit = option_env!("THRONG_COMMIT").unwrap_or_default();
    let mut bytes =
        format!("{} {commit} {computed_by} {}\n", env!("CARGO_PKG_VERSION"), kv_dtype.name()).into_bytes();
    bytes.extend(format!("{:?}\n", model.config).into_bytes());
    // The kind of pooling; nothing for generative models.
    bytes.extend(model.pooler.iter().flat_map(|pooler| format!("{:?}\n", pooler.config).into_bytes()));
    add_weights(model, &mut bytes);
    throng_wire::digest(&bytes)[..32].to_owned()
}

fn add_weights(model: &LoadedModel, bytes: &mut Vec<u8>) {
    let tensors = model.tensors();
    for tensor in tensors.names().into_iter().filter_map(|name| tensors.tensor(name)) {
        let held = model.held_format(&tensor).name();
        bytes.extend(
            format!("{} {} {held} {:?}\n", tensor.name, tensor.format.name(), tensor.shape).into_bytes(),
        );
        let begin = tensor.data.len().saturating_sub(SAMPLE_BYTES) / 2;
        bytes.extend_from_slice(&tensor.data[begin..tensor.data.len().min(begin + SAMPLE_BYTES)]);
    }
}
