//! What a sequence does as a beam: goes on after the tokens of another one, with that one's blocks. Does not
//! know which beam goes on after which.

use std::sync::Arc;

use super::{Rank, Running, Sequence, Waiting};
use crate::request::TokenId;
use crate::scheduling::batch::{BLOCK_TOKENS, BlockId, BlockMove};
use crate::scheduling::block_pool::BlockPool;

impl<S> Sequence<S> {
    /// Makes it a beam that goes on with `token` after `parent`, whose tokens it takes.
    pub fn continue_beam<T>(&mut self, parent: &Sequence<T>, token: TokenId) {
        self.tokens.clear();
        self.tokens.extend_from_slice(parent.tokens());
        self.tokens.push(token);
        self.hashes.clone_from(&parent.hashes);
    }

    /// Appends the next token of a beam. It becomes output only if the beam is among those that are reported
    /// at the end.
    pub fn push_beam_token(&mut self, token: TokenId) {
        if self.tokens.is_empty() {
            self.tokens.extend_from_slice(&self.request.prompt);
        }
        self.tokens.push(token);
    }

    /// A further sequence of its request, which waits to go on with `token` after the tokens of this one.
    pub fn fork_beam(&self, index: u32, token: TokenId) -> Sequence<Waiting> {
        let mut fork = Sequence {
            request: Arc::clone(&self.request),
            rank: Rank { index, ..self.rank },
            timeline: self.timeline,
            root: self.root,
            tokens: vec![],
            hashes: vec![],
            state: Waiting { is_charged: true },
        };
        fork.continue_beam(self, token);
        fork
    }
}

impl Sequence<Running> {
    /// Makes it a beam that goes on with `token` after `parent`. Both have computed all of their tokens, of
    /// which they have as many. The parent's full blocks are shared; of a last block that is not full, the
    /// sequence's own becomes a copy, in its next step.
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

    /// The copy to make before its next token is computed, if any.
    pub fn copy(&self) -> Option<BlockMove> {
        let to = *self.blocks().get(self.state.n_computed / BLOCK_TOKENS)?;
        self.state.copied_block.map(|from| BlockMove::within_device(from, to))
    }

    pub(super) fn forget_copy(&mut self, pool: &mut BlockPool) {
        self.state.copied_block.take().into_iter().for_each(|block| pool.release(block));
    }

    /// The references that it holds in the pool.
    pub fn held_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks().iter().copied().chain(self.state.copied_block)
    }
}
