//! Features of the pictures of a step as bytes: rank 0 encodes pictures, and the others read the features.
//! Does not know encoders.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch_input::{BatchInput, FeatureRows};
use crate::features::Features;

/// Pictures of a step without their features, which follow as numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Tokens of the step; those of pictures are placeholders. Empty without pictures.
    tokens: Vec<u32>,
    /// Runs of adjacent tokens: first row, number of rows, and the layers after which rows are added.
    runs: Vec<[usize; 3]>,
}

/// A message that does not describe features.
#[derive(Debug, thiserror::Error)]
#[error("features of pictures that cannot be read")]
pub struct MalformedFeatures;

/// Writes the features of a step: the length of the header, the header, then the rows that replace embeddings
/// and those added after layers, run by run.
pub(crate) fn write(input: &BatchInput, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
    let n_layers = |rows: &FeatureRows| (0..).take_while(|&idx| rows.deepstack(idx).is_some()).count();
    let runs = input.features.iter().map(|rows| [rows.first_row, rows.n_rows, n_layers(rows)]).collect();
    let tokens = if input.features.is_empty() { Vec::new() } else { input.tokens.clone() };
    let header = serde_json::to_vec(&Header { tokens, runs })?;
    bytes.clear();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for rows in &input.features {
        bytes.extend_from_slice(bytemuck::cast_slice(rows.rows()));
        for deepstack in (0..).map_while(|idx| rows.deepstack(idx)) {
            bytes.extend_from_slice(bytemuck::cast_slice(deepstack));
        }
    }
    Ok(())
}

/// Reads features of rows of `width` elements into a step.
pub(crate) fn read(bytes: &[u8], width: usize, input: &mut BatchInput) -> Result<(), MalformedFeatures> {
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or(MalformedFeatures)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| MalformedFeatures)?;
    let (header, mut rest) = rest.split_at_checked(length).ok_or(MalformedFeatures)?;
    let header: Header = serde_json::from_slice(header).map_err(|_| MalformedFeatures)?;
    let n_tokens = input.n_tokens();
    if header.runs.is_empty() {
        return Ok(());
    }
    if header.tokens.len() != n_tokens {
        return Err(MalformedFeatures);
    }
    input.tokens.copy_from_slice(&header.tokens);
    for [first_row, n_rows, n_layers] in header.runs {
        if first_row.checked_add(n_rows).is_none_or(|end| end > n_tokens) {
            return Err(MalformedFeatures);
        }
        let mut numbers = || {
            let n_bytes = n_rows * width * size_of::<f32>();
            let (own, others) = rest.split_at_checked(n_bytes).ok_or(MalformedFeatures)?;
            rest = others;
            Ok(own.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<f32>>())
        };
        let rows = numbers()?;
        let deepstack = (0..n_layers).map(|_| numbers()).collect::<Result<_, _>>()?;
        let features = Arc::new(Features { width, rows, deepstack });
        input.features.push(FeatureRows { first_row, n_rows, features, first_feature: 0 });
    }
    if rest.is_empty() { Ok(()) } else { Err(MalformedFeatures) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_come_back_as_they_were() {
        let numbers = |n: usize| (0..n).map(|i| i as f32 * 0.5).collect::<Vec<f32>>();
        let features = Arc::new(Features { width: 3, rows: numbers(12), deepstack: vec![numbers(12)] });
        let run = |first_row, n_rows, first_feature| FeatureRows {
            first_row,
            n_rows,
            features: Arc::clone(&features),
            first_feature,
        };
        let mut input = BatchInput { tokens: vec![7, 9, 9, 9, 8], ..BatchInput::default() };
        input.features = vec![run(1, 2, 0), run(3, 1, 3)];
        let (mut bytes, mut other) = (Vec::new(), BatchInput { tokens: vec![0; 5], ..BatchInput::default() });
        write(&input, &mut bytes).expect("plain numbers");
        read(&bytes, 3, &mut other).expect("what was written");
        assert_eq!(other.tokens, input.tokens);
        for (found, expected) in other.features.iter().zip(&input.features) {
            assert_eq!((found.first_row, found.rows()), (expected.first_row, expected.rows()));
            assert_eq!(found.deepstack(0), expected.deepstack(0));
            assert_eq!(found.deepstack(1), None);
        }
        for cut in [0, 7, 20, bytes.len() - 1] {
            assert!(read(&bytes[..cut], 3, &mut other).is_err(), "{cut}");
        }
        write(&BatchInput::default(), &mut bytes).expect("nothing");
        other.features.clear();
        read(&bytes, 3, &mut other).expect("what was written");
        assert!(other.features.is_empty());
    }
}
