//! Rotary embeddings as values. Does not know how their angles are computed on a device and which layers use
//! them.

/// One rotary embedding: pair `i` of a token at position `p` is rotated by `p * frequencies[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position, one for each pair of rotated elements.
    pub frequencies: Vec<f64>,
    /// Factor of cosines and sines (YaRN's attention temperature; else 1).
    pub amplitude: f64,
    /// Scaling of the rotated elements by position.
    pub growth: Option<RopeGrowth>,
    /// The section of positions by which each pair is rotated (time, height, width; arXiv:2409.12191), one
    /// for each frequency; empty: all by the position in the sequence.
    pub sections: Vec<u8>,
    /// The frequencies where no sequence is longer than the context of the first training (LongRoPE).
    pub short: Option<ShortRope>,
}

/// A factor of queries that grows with the position `p` (Llama 4): `1 + beta * ln(1 + floor((p + offset) /
/// interval))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeGrowth {
    /// Factor of the logarithm.
    pub beta: f64,
    /// Number of adjacent positions with the same factor.
    pub interval: f64,
    /// Number added to the position.
    pub offset: f64,
}

impl RopeGrowth {
    /// The factor at a position.
    pub fn at(&self, position: usize) -> f64 {
        1.0 + self.beta * (1.0 + ((position as f64 + self.offset) / self.interval).floor()).ln()
    }
}

/// The short-context frequencies of a model that was trained for a short context and extended to a longer
/// one.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortRope {
    /// Maximum tokens of a sequence for which these frequencies are used.
    pub max_tokens: usize,
    /// Frequencies, the same number as for the long context.
    pub frequencies: Vec<f64>,
    /// Factor of cosines and sines.
    pub amplitude: f64,
}

impl RopeTable {
    /// The rotary embedding where sequences have at most `max_sequence_tokens`. It is the same for all
    /// sequences, also for short ones in a long context: a change within a sequence would leave its cached
    /// keys with the wrong rotation.
    pub fn for_context(&self, max_sequence_tokens: usize) -> Self {
        match &self.short {
            Some(short) if max_sequence_tokens <= short.max_tokens => {
                Self { frequencies: short.frequencies.clone(), amplitude: short.amplitude, ..self.plain() }
            }
            _ => self.plain(),
        }
    }

    fn plain(&self) -> Self {
        Self { short: None, ..self.clone() }
    }
}
