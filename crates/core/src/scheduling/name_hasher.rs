//! A hasher for keys that are spread well already, such as names of blocks: a multiplication a word. Each
//! map has a seed of its own, so that nobody can choose names that meet in one bucket.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds hashers with a random seed.
#[derive(Debug, Clone)]
pub struct NameState {
    seed: u64,
    factor: u64,
}

impl Default for NameState {
    fn default() -> Self {
        let random = RandomState::new();
        // Odd, so that no bit of a key is lost.
        Self { seed: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl BuildHasher for NameState {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher { hash: self.seed, factor: self.factor }
    }
}

/// Hasher of a few words.
#[derive(Debug)]
pub struct NameHasher {
    hash: u64,
    factor: u64,
}

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        // Once more, since names that count up meet in few buckets after one multiplication with some factors.
        folded(self.hash, self.factor)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.hash = folded(self.hash ^ word, self.factor);
    }
}

/// Combines the two halves of a product.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn neighbours_are_spread_and_states_differ() {
        let state = NameState::default();
        let buckets: BTreeSet<u64> = (0..4096_u64).map(|n| state.hash_one(n) % 4096).collect();
        assert!(buckets.len() > 2000, "{} buckets of 4096 keys", buckets.len());
        let equal = (0..100_u64).filter(|n| state.hash_one(n) == NameState::default().hash_one(n)).count();
        assert!(equal < 100, "seeds differ");
    }
}
