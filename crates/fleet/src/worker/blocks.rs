//! Blocks for other workers: those of the engine, in the order in which they were asked for, until the first
//! that it does not have. A few are copied at a time, and no more before the reader has taken them. Does not
//! know sockets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use throng_core::scheduling::block_exchange::BlockExchangeError;
use throng_core::scheduling::block_hash::{BlockContent, BlockHash};
use throng_engine::ExportedBlocks;
use throng_http::awake::within;
use throng_wire::{BlockFrame, BlocksRequest, Frame, MalformedBlocksRequest};
use tokio::sync::OwnedSemaphorePermit;

use super::WorkerService;

/// Maximum number of workers that are given blocks at a time.
pub(super) const MAX_SERVED: usize = 4;

/// Bytes of blocks that are copied at a time for one worker.
const WINDOW_BYTES: usize = 4 << 20;

/// Maximum number of blocks that are copied at a time for one worker: the engine has room for as many of all.
const MAX_WINDOW_BLOCKS: usize = 64;

/// Longest wait for others that are given blocks.
const MOST_WAITING: Duration = Duration::from_secs(1);

/// Number of such windows: one is copied while the other is sent.
const N_WINDOWS: usize = 2;

/// Longest wait for the engine, which copies blocks between two steps.
const MOST_SILENCE: Duration = Duration::from_secs(2);

/// Reason why no blocks are given.
#[derive(Debug, thiserror::Error)]
pub enum BlocksRefused {
    /// The request cannot be read.
    #[error(transparent)]
    Malformed(#[from] MalformedBlocksRequest),
    /// The engine exchanges no blocks.
    #[error("the worker exchanges no blocks")]
    NotExchanged,
    /// The blocks are those of another model, type or layout.
    #[error(transparent)]
    Other(#[from] BlockExchangeError),
    /// Too many workers are given blocks.
    #[error("the worker gives blocks to as many others as it can")]
    Busy,
}

impl WorkerService {
    /// The frames that answer a request for blocks.
    ///
    /// # Errors
    /// When none are given.
    pub async fn blocks(
        &self,
        line: &[u8],
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, BlocksRefused> {
        let BlocksRequest { layout, names } = BlocksRequest::read(line)?;
        let engine = self.replica.0.clone();
        let own = engine.block_layout().cloned().ok_or(BlocksRefused::NotExchanged)?;
        own.check(&layout)?;
        let permit = within(MOST_WAITING, Arc::clone(&self.serving).acquire_owned()).await;
        let permit = permit.map_err(|_| BlocksRefused::Busy)?.map_err(|_| BlocksRefused::Busy)?;
        let n_window = (WINDOW_BYTES / own.n_bytes.max(1)).clamp(1, MAX_WINDOW_BLOCKS);
        let begun =
            Served { engine, names: names.into(), n_window, windows: VecDeque::new(), _permit: permit };
        let first = Frame::Layout(own).to_bytes().ok().map(Bytes::from);
        let blocks = stream::unfold(begun, |mut served| async move {
            let frame = served.next().await?;
            Some((frame, served))
        });
        Ok(futures_util::StreamExt::chain(stream::iter(first), blocks))
    }
}

/// An answer in progress.
struct Served {
    engine: throng_engine::EngineHandle,
    /// Names that the engine was not asked for.
    names: VecDeque<BlockHash>,
    /// Number of blocks of a window.
    n_window: usize,
    windows: VecDeque<Window>,
    _permit: OwnedSemaphorePermit,
}

/// Blocks that the engine was asked for together.
struct Window {
    exported: ExportedBlocks,
    /// Blocks that came and were not sent.
    came: Vec<Option<(BlockContent, Vec<u8>)>>,
    n_sent: usize,
}

impl Served {
    /// The next block; `None` after the last one.
    async fn next(&mut self) -> Option<Bytes> {
        while self.windows.len() < N_WINDOWS && !self.names.is_empty() {
            let names: Vec<_> = self.names.drain(..self.n_window.min(self.names.len())).collect();
            let exported = self.engine.export_blocks(&names)?;
            let came = names.iter().map(|_| None).collect();
            self.windows.push_back(Window { exported, came, n_sent: 0 });
        }
        let window = self.windows.front_mut()?;
        let (content, bytes) = window.next().await?;
        if window.n_sent == window.came.len() {
            self.windows.pop_front();
        }
        let BlockContent { hash, parent, tokens, .. } = content;
        let block = BlockFrame { hash, parent, tokens, bytes };
        Frame::CheckedBlock(block.into()).to_bytes().ok().map(Bytes::from)
    }
}

impl Window {
    async fn next(&mut self) -> Option<(BlockContent, Vec<u8>)> {
        loop {
            if let Some(block) = self.came.get_mut(self.n_sent)?.take() {
                self.n_sent += 1;
                return Some(block);
            }
            // A missing block leaves its place empty: those after it are of no use.
            let exported = within(MOST_SILENCE, self.exported.recv()).await.ok()??;
            *self.came.get_mut(exported.index)? = Some(exported.block?);
        }
    }
}
