//! Evaluates the token constraints of a step while its forward pass runs: a thread of its own begins with the first
//! sequence, and who needs a mask that is not there yet evaluates it. Does not know logits and how tokens are chosen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use throng_core::batch::{ScheduledBatch, ScheduledSequence};
use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::{SamplingParams, TokenId};

/// Most tokens that are proposed as drafts because a constraint forces them.
const MAX_FORCED: usize = 32;

/// The masks of one step's sequences. Buffers live from step to step: a mask for each position at which a constrained sequence had a
/// token chosen, of one bit for each token of the vocabulary.
#[derive(Debug)]
pub(crate) struct TokenMasks {
    vocabulary_size: u32,
    /// One a sequence, as many as a step with constraints had.
    sequences: Vec<Arc<RwLock<SequenceMasks>>>,
    /// Where the thread finds work; at most one step's sequences. None before the first constraint.
    worker: Option<SyncSender<Arc<RwLock<SequenceMasks>>>>,
    max_sequences: usize,
}

/// The masks of one sequence: before its first draft, and after each draft that the masks before allow.
#[derive(Debug, Default)]
pub(crate) struct SequenceMasks {
    /// What is still to be evaluated.
    pending: Option<Pending>,
    /// The output with all drafts.
    output: Vec<TokenId>,
    masks: Vec<TokenMask>,
    /// How many of `masks` hold.
    n_masks: usize,
    /// Why there are no more.
    error: Option<ConstraintError>,
    /// What the constraint forces after all drafts.
    forced: Vec<TokenId>,
}

#[derive(Debug)]
struct Pending {
    constraint: Arc<dyn TokenConstraint>,
    sampling: Arc<SamplingParams>,
    n_drafts: usize,
    vocabulary_size: u32,
}

impl TokenMasks {
    /// For steps of at most `max_sequences` sequences.
    pub(crate) fn new(vocabulary_size: u32, max_sequences: usize) -> Self {
        Self { vocabulary_size, sequences: Vec::new(), worker: None, max_sequences }
    }

    /// Tokens of the vocabulary.
    pub(crate) fn vocabulary_size(&self) -> usize {
        self.vocabulary_size as usize
    }

    /// Begins to evaluate what the sequences of a step need.
    pub(crate) fn begin(&mut self, batch: &ScheduledBatch) {
        for (sequence_idx, scheduled) in batch.sequences().iter().enumerate() {
            let Some(constraint) = &scheduled.constraint else { continue };
            if self.sequences.len() <= sequence_idx {
                self.sequences.resize_with(batch.sequences().len(), Arc::default);
            }
            write(&self.sequences[sequence_idx]).begin(batch, scheduled, constraint, self.vocabulary_size);
            let worker = self.worker.get_or_insert_with(|| start_worker(self.max_sequences.max(1)));
            // A full queue or a thread that did not start is no loss: who needs the mask evaluates it.
            let _ = worker.try_send(Arc::clone(&self.sequences[sequence_idx]));
        }
    }

    /// The masks of a sequence that has a constraint in this step; waits until they are evaluated.
    pub(crate) fn of_sequence(&self, sequence_idx: usize) -> RwLockReadGuard<'_, SequenceMasks> {
        let shared = &self.sequences[sequence_idx];
        let masks = read(shared);
        if masks.pending.is_none() {
            return masks;
        }
        drop(masks);
        write(shared).evaluate();
        read(shared)
    }
}

impl SequenceMasks {
    fn begin(
        &mut self,
        batch: &ScheduledBatch,
        scheduled: &ScheduledSequence,
        constraint: &Arc<dyn TokenConstraint>,
        vocabulary_size: u32,
    ) {
        (self.n_masks, self.error) = (0, None);
        self.forced.clear();
        self.output.clear();
        self.output.extend_from_slice(batch.output(scheduled, scheduled.n_drafts));
        self.pending = Some(Pending {
            constraint: Arc::clone(constraint),
            sampling: Arc::clone(&scheduled.sampling),
            n_drafts: scheduled.n_drafts,
            vocabulary_size,
        });
    }

    /// The mask after the first `n_accepted` drafts.
    ///
    /// # Errors
    /// When the constraint gave none, or those drafts are not what it allows.
    pub(crate) fn after(&self, n_accepted: usize) -> Result<&TokenMask, ConstraintError> {
        let mask = self.masks[..self.n_masks].get(n_accepted);
        mask.ok_or(self.error.unwrap_or(ConstraintError::OutputRejected))
    }

    /// What must follow `token`, chosen after all drafts.
    pub(crate) fn forced_after(&self, token: TokenId) -> &[TokenId] {
        match self.forced.split_first() {
            Some((&first, rest)) if first == token => rest,
            _ => &[],
        }
    }

    /// Evaluates what is pending, once.
    fn evaluate(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        // Unwind safe: after a panic neither the mask nor the forced tokens are read.
        let evaluated = catch_unwind(AssertUnwindSafe(|| self.fill(&pending)));
        if let Err(error) = evaluated.unwrap_or(Err(ConstraintError::Failed)) {
            self.error = Some(error);
            self.forced.clear();
        }
    }

    fn fill(&mut self, pending: &Pending) -> Result<(), ConstraintError> {
        let n_settled = self.output.len() - pending.n_drafts;
        for n_output in n_settled..=self.output.len() {
            if n_output > n_settled {
                let draft = self.output[n_output - 1];
                let is_allowed = self.masks[self.n_masks - 1].contains(draft);
                if !is_allowed || pending.sampling.finish_at(draft, n_output as u32).is_some() {
                    return Ok(());
                }
            }
            if self.masks.len() == self.n_masks {
                self.masks.push(TokenMask::default());
            }
            let mask = &mut self.masks[self.n_masks];
            mask.reset(pending.vocabulary_size);
            pending.constraint.mask(&self.output[..n_output], mask)?;
            self.n_masks += 1;
        }
        pending.constraint.forced(&self.output, &mut self.forced);
        self.forced.truncate(MAX_FORCED);
        Ok(())
    }
}

fn start_worker(max_queued: usize) -> SyncSender<Arc<RwLock<SequenceMasks>>> {
    let (sender, receiver) = sync_channel(max_queued);
    let run = move || evaluate_all(&receiver);
    if let Err(error) = std::thread::Builder::new().name("throng-masks".into()).spawn(run) {
        tracing::warn!(%error, "no thread for token constraints: they are evaluated after the forward pass");
    }
    sender
}

/// Ends with the sender.
fn evaluate_all(sequences: &Receiver<Arc<RwLock<SequenceMasks>>>) {
    for masks in sequences {
        // One that was evaluated before its turn may be in use: a writer would wait for its readers, and keep others out.
        if read(&masks).pending.is_some() {
            write(&masks).evaluate();
        }
    }
}

/// Panics are contained before a lock is dropped, so what a lock guards is whole.
fn read(masks: &RwLock<SequenceMasks>) -> RwLockReadGuard<'_, SequenceMasks> {
    masks.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(masks: &RwLock<SequenceMasks>) -> RwLockWriteGuard<'_, SequenceMasks> {
    masks.write().unwrap_or_else(PoisonError::into_inner)
}
