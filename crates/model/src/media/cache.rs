//! Features of the contents that were used last, up to a number of bytes. Does not know how they are
//! computed.

use std::sync::Arc;

use throng_core::prompt_media::ContentDigest;
use throng_core::scheduling::block_hash::BlockHash;

use super::Features;

/// A content with the scope of the sequences that may share cached results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureKey {
    /// Root of the names of blocks: it keeps tenants, salts and adapters apart.
    pub scope: Option<BlockHash>,
    /// Digest of the content.
    pub digest: ContentDigest,
}

/// Features by content, the most recently used at the end. The newest entry always stays.
#[derive(Debug)]
pub struct FeatureCache {
    max_bytes: usize,
    n_bytes: usize,
    entries: Vec<(FeatureKey, Arc<Features>)>,
}

impl FeatureCache {
    /// Maximum number of entries, whose keys are compared one by one.
    const MAX_ENTRIES: usize = 4096;

    /// Creates an empty cache of at most `max_bytes` bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, n_bytes: 0, entries: Vec::new() }
    }

    /// The features of a content, which become the ones used last.
    pub fn get(&mut self, key: &FeatureKey) -> Option<Arc<Features>> {
        let idx = self.entries.iter().rposition(|(known, _)| known == key)?;
        let entry = self.entries.remove(idx);
        let features = Arc::clone(&entry.1);
        self.entries.push(entry);
        Some(features)
    }

    /// Whether the features of a content are there.
    pub fn has(&self, key: &FeatureKey) -> bool {
        self.entries.iter().any(|(known, _)| known == key)
    }

    /// Adds features, and drops the least recently used ones while there are too many bytes.
    pub fn insert(&mut self, key: FeatureKey, features: Arc<Features>) {
        self.n_bytes += features.n_bytes();
        self.entries.push((key, features));
        let mut n_dropped = 0;
        while self.n_bytes > self.max_bytes || self.entries.len() - n_dropped > Self::MAX_ENTRIES {
            if n_dropped + 1 == self.entries.len() {
                break;
            }
            self.n_bytes -= self.entries[n_dropped].1.n_bytes();
            n_dropped += 1;
        }
        self.entries.drain(..n_dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(digest: u8, scope: u8) -> FeatureKey {
        FeatureKey { scope: Some(BlockHash::from_bytes([scope; 32])), digest: ContentDigest([digest; 32]) }
    }

    fn features(n: usize) -> Arc<Features> {
        Arc::new(Features { width: 1, rows: vec![0.0; n], deepstack: Vec::new() })
    }

    #[test]
    fn the_ones_used_last_stay_within_the_bound() {
        let mut cache = FeatureCache::new(40);
        [1, 2].into_iter().for_each(|digest| cache.insert(key(digest, 0), features(5)));
        assert!(cache.get(&key(1, 0)).is_some());
        cache.insert(key(3, 0), features(5));
        let kept = [1, 2, 3].map(|digest| cache.get(&key(digest, 0)).is_some());
        assert_eq!(kept, [true, false, true]);
        cache.insert(key(4, 0), features(50));
        let kept = [1, 3, 4].map(|digest| cache.get(&key(digest, 0)).is_some());
        assert_eq!(kept, [false, false, true], "the newest stays");
        cache.insert(key(5, 0), features(1));
        assert!(cache.get(&key(4, 0)).is_none() && cache.n_bytes == 4);
    }

    #[test]
    fn tenants_do_not_see_each_others_features() {
        let mut cache = FeatureCache::new(40);
        cache.insert(key(1, 1), features(1));
        assert!(cache.get(&key(1, 2)).is_none() && cache.get(&key(1, 1)).is_some());
    }
}
