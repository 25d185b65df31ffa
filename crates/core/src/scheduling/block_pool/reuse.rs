//! Learns how soon blocks of a class are used again after their last use, and computes the worth of keeping a
//! block of some age. Also learns from evicted blocks that are requested later. Does not know blocks' places.

use std::collections::{HashMap, VecDeque};

use crate::scheduling::block_hash::BlockKey;
use crate::scheduling::name_hasher::NameState;
use crate::time::{Nanos, Timestamp};

/// Ages are counted in bins of half an octave, the first of which ends at a millisecond.
pub(super) const N_AGES: usize = 44;

/// Number of classes.
pub(super) const N_CLASSES: usize = 8;

/// Ends of the times between two uses of the classes after the first, in ms.
const CLASS_ENDS_MS: [u64; N_CLASSES - 2] = [100, 1_000, 3_000, 10_000, 60_000, 600_000];

/// Number of observations after which the worths are computed again.
const OBSERVATIONS_PER_FIT: u32 = 512;

/// Weight of all observations of a class beyond which older ones count half.
const MOST_WEIGHT: f32 = 16_384.0;

/// Observations that are assumed in each bin before any are made, and of blocks that are never used again:
/// recently used content is then worth more.
const PRIOR_PER_AGE: f32 = 0.5;
const PRIOR_NEVER: f32 = 20.0;

/// Class of a block: the time between its last two uses, if known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReuseClass(u8);

impl ReuseClass {
    /// Blocks that were used once.
    pub const ONCE: Self = Self(0);

    /// Blocks with this time between their last two uses.
    pub fn of_gap(gap: Nanos) -> Self {
        let ms = gap.0 / 1_000_000;
        Self(1 + CLASS_ENDS_MS.iter().take_while(|end| ms >= **end).count() as u8)
    }

    /// Index of the class.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Ages of reuse by class, and the worths that follow.
#[derive(Debug)]
pub(super) struct ReuseTimes {
    reused: [[f32; N_AGES]; N_CLASSES],
    never: [f32; N_CLASSES],
    worth: [[f32; N_AGES]; N_CLASSES],
    /// Least worth at an age and below.
    least: [[f32; N_AGES]; N_CLASSES],
    /// Beginnings of the bins in seconds, and the end of the last one.
    edges_s: [f32; N_AGES + 1],
    /// Number of observations of a class that cannot bring its weight to [`MOST_WEIGHT`].
    n_light: [u32; N_CLASSES],
    /// Whether a class was observed since its worths were computed.
    is_observed: [bool; N_CLASSES],
    n_observed: u32,
    ghosts: HashMap<BlockKey, (ReuseClass, Timestamp), NameState>,
    /// Order of the ghosts, the oldest first.
    ghost_order: VecDeque<(BlockKey, Timestamp)>,
    max_ghosts: usize,
}

impl ReuseTimes {
    /// Creates the state of a pool of `n_blocks` blocks without observations.
    pub fn new(n_blocks: usize) -> Self {
        let mut times = Self {
            reused: [[PRIOR_PER_AGE; N_AGES]; N_CLASSES],
            never: [PRIOR_NEVER; N_CLASSES],
            worth: [[0.0; N_AGES]; N_CLASSES],
            least: [[0.0; N_AGES]; N_CLASSES],
            edges_s: std::array::from_fn(edge_s),
            n_light: [0; N_CLASSES],
            is_observed: [true; N_CLASSES],
            n_observed: 0,
            ghosts: HashMap::with_capacity_and_hasher(2 * n_blocks, NameState::default()),
            ghost_order: VecDeque::with_capacity(2 * n_blocks),
            max_ghosts: 2 * n_blocks,
        };
        times.fit();
        times
    }

    /// Worth of keeping a block of this age: the expected uses for each second of keeping it, over the best
    /// time to keep it (the index of Gittins and Jones, "A dynamic allocation index for the sequential design
    /// of experiments", 1974; hit density in Beckmann, Chen and Cidon, "LHD", NSDI 2018).
    pub fn worth(&self, class: ReuseClass, age: Nanos) -> f32 {
        self.worth_of_bin(class.index(), bin(age))
    }

    /// Worth of keeping a block of this class whose age is in this bin.
    pub fn worth_of_bin(&self, class: usize, age: usize) -> f32 {
        self.worth[class][age]
    }

    /// Least worth of blocks of this class whose age is in this bin or below.
    pub fn least_worth(&self, class: usize, age: usize) -> f32 {
        self.least[class][age]
    }

    /// Notes that a block was used again at this age.
    pub fn note_reuse(&mut self, class: ReuseClass, age: Nanos) {
        self.reused[usize::from(class.0)][bin(age)] += 1.0;
        self.count(class);
    }

    /// Notes that the content of a block gave way.
    pub fn note_dropped(&mut self, key: BlockKey, class: ReuseClass, last_use: Timestamp) {
        while self.ghost_order.len() >= self.max_ghosts.max(1) {
            let Some((key, since)) = self.ghost_order.pop_front() else { break };
            if let Some(&(class, _)) = self.ghosts.get(&key).filter(|(_, last_use)| *last_use == since) {
                self.ghosts.remove(&key);
                self.never[usize::from(class.0)] += 1.0;
                self.count(class);
            }
        }
        self.ghosts.insert(key, (class, last_use));
        self.ghost_order.push_back((key, last_use));
    }

    /// Notes a look-up of content that is absent: it may have been evicted.
    pub fn note_missed(&mut self, key: BlockKey, now: Timestamp) {
        if let Some((class, last_use)) = self.ghosts.remove(&key) {
            self.note_reuse(class, now.since(last_use));
        }
    }

    /// Whether the names of evicted contents are kept.
    pub fn has_ghosts(&self) -> bool {
        !self.ghosts.is_empty()
    }

    fn count(&mut self, class: ReuseClass) {
        let class = usize::from(class.0);
        match self.n_light[class].checked_sub(1) {
            Some(rest) => self.n_light[class] = rest,
            None => self.weigh(class),
        }
        self.is_observed[class] = true;
        self.n_observed += 1;
        if self.n_observed >= OBSERVATIONS_PER_FIT {
            self.fit();
        }
    }

    /// Halves the weight of a class's observations if it is too large.
    fn weigh(&mut self, class: usize) {
        let weight = self.reused[class].iter().sum::<f32>() + self.never[class];
        if weight > MOST_WEIGHT {
            self.reused[class].iter_mut().for_each(|weight| *weight *= 0.5);
            self.never[class] *= 0.5;
        } else {
            // An observation adds at most 1; the rest is more than the error of the sum.
            self.n_light[class] = (MOST_WEIGHT - weight - 2.0).max(0.0) as u32;
        }
    }

    fn fit(&mut self) {
        self.n_observed = 0;
        for class in 0..N_CLASSES {
            if !std::mem::take(&mut self.is_observed[class]) {
                continue;
            }
            let mut least = f32::INFINITY;
            for age in 0..N_AGES {
                let worth = worth(&self.reused[class][age..], self.never[class], &self.edges_s[age..]);
                least = least.min(worth);
                self.worth[class][age] = worth;
                self.least[class][age] = least;
            }
        }
    }
}

/// The largest ratio of uses to time kept, over the times after which a block of one bin of ages is evicted;
/// `reused` and the edges of bins begin with that bin.
fn worth(reused: &[f32], never: f32, edges_s: &[f32]) -> f32 {
    let mut rest = reused.iter().sum::<f32>() + never;
    let (mut uses, mut kept_s, mut best) = (0.0, 0.0, 0.0_f32);
    for (edges, &n) in edges_s.windows(2).zip(reused) {
        let end_s = edges[1] - edges_s[0];
        let begin_s = edges[0] - edges_s[0];
        uses += n;
        kept_s += n * 0.5 * (begin_s + end_s);
        rest -= n;
        best = best.max(uses / (kept_s + rest * end_s));
    }
    best
}

/// Index of the bin of an age.
pub(super) fn bin(age: Nanos) -> usize {
    let us = age.0 / 1_000;
    if us < 1_000 {
        return 0;
    }
    // Twice the logarithm of the age in ms: the square's has half an octave as a whole. The square of an
    // age of an hour still fits into 64 bits; older ones are in the last bin.
    let square = us.saturating_mul(us) / 1_000_000;
    (1 + square.ilog2() as usize).min(N_AGES - 1)
}

/// Beginning of a bin in seconds.
fn edge_s(bin: usize) -> f32 {
    if bin == 0 { 0.0 } else { 1e-3 * ((bin - 1) as f32 * 0.5).exp2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn bins_have_their_edges() {
        for (age, expected) in
            [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5), (1_024, 21), (u64::MAX / 1_000_000, 43)]
        {
            assert_eq!(bin(ms(age)), expected, "{age} ms");
        }
        assert!((edge_s(21) - 1.024).abs() < 1e-3);
    }

    #[test]
    fn without_observations_the_older_block_is_worth_less() {
        let times = ReuseTimes::new(10);
        let worths = [1, 10, 100, 1_000, 10_000, 100_000].map(|age| times.worth(ReuseClass::ONCE, ms(age)));
        assert!(worths.is_sorted_by(|a, b| a > b), "{worths:?}");
    }

    #[test]
    fn a_block_whose_time_comes_is_worth_more() {
        let mut times = ReuseTimes::new(10);
        (0..2_000).for_each(|i| times.note_reuse(ReuseClass::ONCE, ms(9_000 + i)));
        let [young, ripe, overdue] = [100, 8_000, 60_000].map(|age| times.worth(ReuseClass::ONCE, ms(age)));
        assert!(young < ripe && overdue < young, "{young} {ripe} {overdue}");
    }

    #[test]
    fn what_gave_way_too_early_is_learned() {
        let mut times = ReuseTimes::new(2_000);
        let before = times.worth(ReuseClass::ONCE, ms(5_000));
        for key in 0..600 {
            times.note_dropped(BlockKey(key), ReuseClass::ONCE, Timestamp::default());
            times.note_missed(BlockKey(key), Timestamp::default() + ms(7_000));
        }
        let learned = times.worth(ReuseClass::ONCE, ms(5_000));
        assert!(learned > 2.0 * before, "{learned} after {before}");
        for key in 0..10_000 {
            times.note_dropped(BlockKey(1_000 + key), ReuseClass::ONCE, Timestamp::default());
        }
        assert!(times.ghosts.len() <= 4_000 && times.ghost_order.len() <= 4_000);
        let later = times.worth(ReuseClass::ONCE, ms(5_000));
        assert!(later < 0.5 * learned, "most were never looked for: {later} after {learned}");
    }
}
