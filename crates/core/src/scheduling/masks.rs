//! The masks of one sequence in one step, shared by the thread that evaluates them and those that read
//! them, wait for them or proceed without. Does not know these threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::constraint::{ConstraintError, TokenConstraint, TokenMask};
use crate::request::{SamplingParams, SequenceId, TokenId};

/// Maximum number of tokens that are proposed as drafts because a constraint forces them.
const MAX_FORCED: usize = 32;

/// The masks of one sequence: before its first draft, and after each draft that the masks before allow.
/// They follow from the constraint and the output alone; the time of their evaluation decides only in which
/// step they are used.
#[derive(Debug)]
pub struct SequenceMasks {
    sequence: SequenceId,
    constraint: Arc<dyn TokenConstraint>,
    sampling: Arc<SamplingParams>,
    /// The output with all drafts.
    output: Vec<TokenId>,
    n_drafts: usize,
    number: u64,
    state: Mutex<State>,
    evaluated: Condvar,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Whether they were handed to a thread for evaluation.
    is_queued: bool,
    /// Whether the evaluating thread must report them.
    is_awaited: bool,
}

#[derive(Debug, Clone)]
enum Stage {
    New,
    /// A thread is evaluating them.
    Running,
    Evaluated(Arc<EvaluatedMasks>),
}

/// Decision whether an evaluation continues after a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskPace {
    /// Continues with the mask after the next draft.
    Continue,
    /// Masks after further drafts would take too long: they are left to later steps.
    Stop,
    /// A mask took so long that its request fails.
    Exceeded,
}

/// Result of the evaluation.
#[derive(Debug, Default)]
pub struct EvaluatedMasks {
    masks: Vec<TokenMask>,
    /// Reason why no further mask was evaluated.
    error: Option<ConstraintError>,
    /// Tokens that the constraint forces after all drafts.
    forced: Vec<TokenId>,
}

impl SequenceMasks {
    /// Creates the masks, to be evaluated, of an output whose last `n_drafts` tokens are drafts.
    pub fn new(
        sequence: SequenceId,
        constraint: Arc<dyn TokenConstraint>,
        sampling: Arc<SamplingParams>,
        output: Vec<TokenId>,
        n_drafts: usize,
    ) -> Self {
        let state = Mutex::new(State { stage: Stage::New, is_queued: false, is_awaited: false });
        let evaluated = Condvar::new();
        Self { sequence, constraint, sampling, output, n_drafts, number: 0, state, evaluated }
    }

    /// Requires that the evaluation of these masks is reported.
    #[must_use]
    pub fn awaited(self) -> Self {
        self.lock().is_awaited = true;
        self
    }

    /// Sets the number by which a report identifies the masks; 0 if there is none.
    pub fn set_number(&mut self, number: u64) {
        self.number = number;
    }

    /// Number by which a report refers to them.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Sequence that the masks are for.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Number of output tokens before the first draft.
    pub fn n_output(&self) -> usize {
        self.output.len() - self.n_drafts
    }

    /// Number of drafts.
    pub fn n_drafts(&self) -> usize {
        self.n_drafts
    }

    /// Whether they are the masks of a step with `n_output` output tokens and these drafts, or fewer. The
    /// output of one sequence never changes.
    pub fn fit(&self, n_output: usize, drafts: &[TokenId]) -> bool {
        self.n_output() == n_output && self.output[n_output..].starts_with(drafts)
    }

    /// Notes that they are handed to a thread for evaluation; `false` if they were before.
    pub fn queue(&self) -> bool {
        let mut state = self.lock();
        let is_new = matches!(state.stage, Stage::New) && !state.is_queued;
        state.is_queued |= is_new;
        is_new
    }

    /// Whether they were handed to a thread for evaluation; if not, the thread that needs them evaluates
    /// them.
    pub fn is_queued(&self) -> bool {
        self.lock().is_queued
    }

    /// Evaluates them, calling `pace` after each mask, and returns whether the evaluation must be reported;
    /// `None` if the evaluation has begun before.
    pub fn evaluate(&self, vocabulary_size: u32, pace: impl Fn() -> MaskPace) -> Option<bool> {
        {
            let mut state = self.lock();
            if !matches!(state.stage, Stage::New) {
                return None;
            }
            state.stage = Stage::Running;
        }
        let mut evaluated = EvaluatedMasks::default();
        // Unwind safe: after a panic only complete masks are read.
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(vocabulary_size, pace, &mut evaluated)));
        if let Err(error) = filled.unwrap_or(Err(ConstraintError::Failed)) {
            evaluated.forced.clear();
            evaluated.error = Some(error);
        }
        Some(self.publish(evaluated))
    }

    /// Sets an error in place of masks that cannot be evaluated, and returns whether that must be reported.
    pub fn fail(&self, error: ConstraintError) -> bool {
        self.publish(EvaluatedMasks { error: Some(error), ..EvaluatedMasks::default() })
    }

    /// The masks, if they are evaluated.
    pub fn get(&self) -> Option<Arc<EvaluatedMasks>> {
        evaluated(&self.lock())
    }

    /// Waits for the masks; `None` if the evaluation takes longer than `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Arc<EvaluatedMasks>> {
        let is_pending = |state: &mut State| evaluated(state).is_none();
        let waited = self.evaluated.wait_timeout_while(self.lock(), patience, is_pending);
        evaluated(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The masks, if they are evaluated; otherwise the evaluating thread will report them.
    pub fn get_or_await(&self) -> Option<Arc<EvaluatedMasks>> {
        let mut state = self.lock();
        let masks = evaluated(&state);
        state.is_awaited |= masks.is_none();
        masks
    }

    fn publish(&self, evaluated: EvaluatedMasks) -> bool {
        let mut state = self.lock();
        state.stage = Stage::Evaluated(Arc::new(evaluated));
        self.evaluated.notify_all();
        state.is_awaited
    }

    fn fill(
        &self,
        vocabulary_size: u32,
        pace: impl Fn() -> MaskPace,
        evaluated: &mut EvaluatedMasks,
    ) -> Result<(), ConstraintError> {
        let n_settled = self.n_output();
        for n_output in n_settled..=self.output.len() {
            if let Some(last) = evaluated.masks.last() {
                let draft = self.output[n_output - 1];
                if !last.contains(draft) || self.sampling.finish_at(draft, n_output as u32).is_some() {
                    return Ok(());
                }
            }
            let mut mask = TokenMask::new(vocabulary_size);
            self.constraint.mask(&self.output[..n_output], &mut mask)?;
            let pace = pace();
            if pace == MaskPace::Exceeded && n_output == n_settled {
                return Err(ConstraintError::LimitExceeded);
            }
            evaluated.masks.push(mask);
            if pace != MaskPace::Continue {
                return Ok(());
            }
        }
        self.constraint.forced(&self.output, &mut evaluated.forced);
        evaluated.forced.truncate(MAX_FORCED);
        Ok(())
    }

    /// Locks the state; no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn evaluated(state: &State) -> Option<Arc<EvaluatedMasks>> {
    match &state.stage {
        Stage::Evaluated(masks) => Some(Arc::clone(masks)),
        Stage::New | Stage::Running => None,
    }
}

impl EvaluatedMasks {
    /// The mask after the first `n_accepted` drafts.
    ///
    /// # Errors
    /// When the constraint gave no mask, or does not allow those drafts.
    pub fn after(&self, n_accepted: usize) -> Result<&TokenMask, ConstraintError> {
        self.masks.get(n_accepted).ok_or(self.error.unwrap_or(ConstraintError::OutputRejected))
    }

    /// Tokens that must follow `token`, which was chosen after all drafts.
    pub fn forced_after(&self, token: TokenId) -> &[TokenId] {
        match self.forced.split_first() {
            Some((&first, rest)) if first == token => rest,
            _ => &[],
        }
    }
}
