//! State of a paper executor for a sequence: a digest of all slots that it read. If the executor has slots of
//! recurrent state, each holds such a digest, and a step continues from it only if it is the digest of the
//! sequence's blocks. Does not know how tokens are chosen.

use throng_core::request::TokenId;
use throng_core::scheduling::batch::{MemorySlot, SlotCopy, StateShare, TokenLogprob};

use crate::beam_reference::PaperToken;

/// All slots that were read, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seen(pub(crate) u64);

impl Default for Seen {
    fn default() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }
}

impl Seen {
    pub(crate) fn read(&mut self, slot: u64) {
        self.0 = mix(self.0, slot);
    }

    /// `token` with log-probabilities derived from the slots that were read.
    pub(crate) fn report(&self, token: TokenId, n_top: Option<u32>, vocabulary_size: u32) -> PaperToken {
        let Some(n_top) = n_top else {
            return PaperToken { chosen: TokenLogprob { token, logprob: 0.0, rank: 0 }, top: Vec::new() };
        };
        let bits = mix(self.0, u64::from(token));
        let logprob = -((bits >> 48) as f32) / 4096.0;
        let chosen = TokenLogprob { token, logprob, rank: 1 + (bits % u64::from(vocabulary_size)) as u32 };
        let top = (0..n_top.min(vocabulary_size)).map(|i| TokenLogprob {
            token: ((self.0 % u64::from(vocabulary_size)) as u32 + i) % vocabulary_size,
            logprob: -(i as f32) - (self.0 >> 40) as f32 / 16_777_216.0,
            rank: i + 1,
        });
        PaperToken { chosen, top: top.collect() }
    }
}

/// The slots of recurrent state.
#[derive(Debug)]
pub(crate) struct PaperStates(Vec<Seen>);

impl PaperStates {
    /// Slots of arbitrary content.
    pub(crate) fn new(n_slots: u32) -> Self {
        Self((0..u64::from(n_slots)).map(|slot| Seen(mix(slot, 0xbeef))).collect())
    }

    /// Whether the executor has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A half of a state.
    pub(crate) fn part(&self, slot: MemorySlot, part: u32) -> [u8; 4] {
        self.0[slot.0 as usize].0.to_le_bytes().as_chunks().0[part as usize]
    }

    /// Overwrites a half of a state.
    pub(crate) fn set_part(&mut self, slot: MemorySlot, part: u32, half: [u8; 4]) {
        let mut halves = self.0[slot.0 as usize].0.to_le_bytes();
        halves.as_chunks_mut().0[part as usize] = half;
        self.0[slot.0 as usize] = Seen(u64::from_le_bytes(halves));
    }

    pub(crate) fn copy(&mut self, copies: &[SlotCopy]) {
        for copy in copies {
            self.0[copy.to.0 as usize] = self.0[copy.from.0 as usize];
        }
    }

    /// State of a sequence before a step; `of_blocks` is the state by its blocks. Returns another one if the
    /// recurrent state does not agree.
    pub(crate) fn before(&self, share: Option<StateShare>, of_blocks: Seen) -> Seen {
        assert_eq!(share.is_some(), !self.0.is_empty(), "a state for every sequence, or none for all");
        let Some(share) = share else { return of_blocks };
        let state = share.from.map_or_else(Seen::default, |MemorySlot(slot)| self.0[slot as usize]);
        if state == of_blocks { state } else { Seen(mix(state.0, of_blocks.0)) }
    }

    /// Writes the digest of a sequence after `n` of the `n_new` tokens of a step.
    pub(crate) fn note(&mut self, share: Option<StateShare>, (n, n_new): (usize, usize), seen: Seen) {
        let Some(share) = share else { return };
        for save in share.saves.into_iter().flatten().filter(|save| save.n_tokens as usize == n) {
            self.0[save.slot.0 as usize] = seen;
        }
        if n == n_new {
            self.0[share.to.0 as usize] = seen;
        }
    }
}

/// Mixes two words into one; the order matters. The finisher is that of splitmix64.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
