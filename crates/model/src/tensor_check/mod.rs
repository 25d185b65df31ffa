//! Checks the tensors of a model against its architecture without reading more than their headers: loads it
//! on a device that holds nothing. So `throng inspect` refuses the same models as `throng serve`, and both
//! know the unread tensors.

mod headers;
mod no_device;

use std::collections::BTreeMap;

use crate::arch::Architecture;
use crate::decoder::weights::{DecoderWeights, TensorError};
use throng_checkpoint::TensorSource;

use headers::Headers;
use no_device::NoDevice;

/// Tensors whose content is computed anew: frequencies of rotary embeddings and numbers of positions. Those
/// of GGUF files are read with the metadata.
const COMPUTED: [&str; 5] = [
    "rotary_emb.inv_freq",
    "position_ids",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// Checks names, types and shapes of all tensors that the model needs; returns the names of the unread ones.
///
/// # Errors
/// An error that names the first tensor that is missing or of another type or shape.
pub(crate) fn unread_tensors(
    architecture: &Architecture,
    source: &dyn TensorSource,
) -> Result<Vec<String>, TensorError> {
    let headers = Headers::of(source);
    DecoderWeights::load(&NoDevice, architecture, &headers, &mut |_| {})?;
    let is_computed = |name: &str| COMPUTED.iter().any(|end| name.ends_with(end));
    Ok(headers.unread().into_iter().filter(|name| !is_computed(name)).collect())
}

/// Groups of names in a list that a person reads.
const SHOWN_GROUPS: usize = 8;

/// Names with `*` for numbers, each with the number of tensors; if there are many, only the beginnings of the
/// names.
pub fn groups(names: &[String]) -> Vec<(String, usize)> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    for depth in (1..=8).rev() {
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        for name in names {
            let mut parts: Vec<&str> =
                name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
            if parts.len() > depth {
                parts.truncate(depth);
                parts.push("…");
            }
            *groups.entry(parts.join(".")).or_default() += 1;
        }
        if groups.len() <= SHOWN_GROUPS || depth == 1 {
            return groups.into_iter().take(SHOWN_GROUPS).collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_grouped_until_a_person_can_read_them() {
        let few = ["mtp.layers.0.up.weight", "mtp.layers.1.up.weight", "lm_head.weight"].map(str::to_owned);
        let expected = [("lm_head.weight".to_owned(), 1), ("mtp.layers.*.up.weight".to_owned(), 2)];
        assert_eq!(groups(&few), expected);
        let many: Vec<String> = (0..40).map(|i| format!("visual.blocks.{i}.part{i}.weight")).collect();
        assert_eq!(groups(&many), [("visual.blocks.*.…".to_owned(), 40)]);
        let all: Vec<String> = (0..40).map(|i| format!("part{i}")).collect();
        assert_eq!(groups(&all).len(), SHOWN_GROUPS);
        assert!(groups(&[]).is_empty());
    }
}
