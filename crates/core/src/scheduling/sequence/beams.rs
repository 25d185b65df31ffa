//! Sequences as beams: continuing another sequence with a token, on that sequence's blocks. Does not choose
//! beams.

use std::sync::Arc;

use super::{Rank, Running, Sequence, Waiting};
use crate::request::TokenId;
use crate::scheduling::batch::{BLOCK_TOKENS, BlockId, BlockMove};
use crate::scheduling::block_pool::BlockPool;

impl<S> Sequence<S> {
    /// Makes the sequence a beam that continues `parent` with `token`, and copies the parent's tokens.
    pub fn continue_beam<T>(&mut self, parent: &Sequence<T>, token: TokenId) {
        self.tokens.clear();
        self.tokens.extend_from_slice(parent.tokens());
        self.tokens.push(token);
        self.hashes.clone_from(&parent.hashes);
    }

    /// Appends the next token of a beam. It is reported only if the beam is among the best at the end.
    pub fn push_beam_token(&mut self, token: TokenId) {
        if self.tokens.is_empty() {
            self.tokens.extend_from_slice(&self.request.prompt);
        }
        self.tokens.push(token);
    }

    /// Creates a further sequence of the request, which waits to continue this one with `token`.
    pub fn fork_beam(&self, index: u32, token: TokenId) -> Sequence<Waiting> {
        let mut fork = Sequence {
            request: Arc::clone(&self.request),
            rank: Rank { index, ..self.rank },
            timeline: self.timeline,
            root: self.root,
            tokens: vec![],
            hashes: vec![],
            state: Waiting { is_charged: true, may_restore: true },
        };
        fork.continue_beam(self, token);
        fork
    }
}

impl Sequence<Running> {
    /// Makes the sequence a beam that continues `parent` with `token`. Both have computed all of their
    /// tokens, and have equally many. The parent's full blocks are shared; the sequence's own last block,
    /// if it is not full, becomes a copy of the parent's in the next step.
    pub fn continue_running_beam(&mut self, parent: &Self, token: TokenId, pool: &mut BlockPool) {
        let n_full = parent.state.n_computed / BLOCK_TOKENS;
        assert_eq!(self.blocks().len(), parent.blocks().len(), "beams of one length have as many blocks");
        for &block in parent.blocks() {
            pool.retain(block);
        }
        self.state.table.replace_leading(&parent.blocks()[..n_full], pool);
        self.state.copied_block = parent.blocks().get(n_full).copied();
        self.state.n_published = parent.state.n_published;
        self.take_state_of(parent, pool);
        self.continue_beam(parent, token);
    }

    /// Block to copy before the next token is computed, if any.
    pub fn copy(&self) -> Option<BlockMove> {
        let to = *self.blocks().get(self.state.n_computed / BLOCK_TOKENS)?;
        self.state.copied_block.map(|from| BlockMove::within_device(from, to))
    }

    pub(super) fn forget_copy(&mut self, pool: &mut BlockPool) {
        self.state.copied_block.take().into_iter().for_each(|block| pool.release(block));
    }

    /// Blocks to which the sequence holds a reference in the pool.
    pub fn held_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks().iter().copied().chain(self.state.copied_block)
    }
}
