//! The special tokens around one sequence and around a pair of them, such as a reranker's query and
//! document. Does not encode texts.

use super::Tokenizer;

/// The special tokens around a pair of sequences, with segments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairFrame {
    pub(crate) prefix: Vec<(u32, u8)>,
    pub(crate) infix: Vec<(u32, u8)>,
    pub(crate) suffix: Vec<(u32, u8)>,
    pub(crate) segments: [u8; 2],
}

impl PairFrame {
    /// Puts the special tokens of a single sequence around both.
    pub(crate) fn of_one(prefix: &[u32], suffix: &[u32]) -> Self {
        let run = |tokens: &[u32]| tokens.iter().map(|&token| (token, 0)).collect();
        Self { prefix: run(prefix), infix: Vec::new(), suffix: run(suffix), segments: [0, 0] }
    }

    pub(crate) fn token_ids(&self) -> impl Iterator<Item = &u32> {
        self.prefix.iter().chain(&self.infix).chain(&self.suffix).map(|(token, _)| token)
    }

    /// Number of special tokens.
    pub fn n_special(&self) -> usize {
        self.prefix.len() + self.infix.len() + self.suffix.len()
    }

    /// The tokens of a pair, each with its segment.
    pub fn join(&self, first: &[u32], second: &[u32]) -> Vec<(u32, u8)> {
        let of = |tokens: &[u32], segment: u8| -> Vec<(u32, u8)> {
            tokens.iter().map(|&token| (token, segment)).collect()
        };
        let [of_first, of_second] = self.segments;
        let (first, second) = (of(first, of_first), of(second, of_second));
        [&self.prefix[..], &first, &self.infix, &second, &self.suffix].concat()
    }
}

impl Tokenizer {
    /// The special tokens before and after a single sequence.
    pub fn around_one(&self) -> [&[u32]; 2] {
        [&self.prefix, &self.suffix]
    }

    /// The special tokens around a pair of sequences.
    pub fn around_pair(&self) -> &PairFrame {
        &self.pair
    }
}
