//! Masks of constraints that sequences wait for. Does not evaluate them.

use crate::time::{Nanos, Timestamp};

use super::{Effect, EngineCore};

impl EngineCore {
    /// Emits effects to evaluate the masks that the scheduler began.
    pub(super) fn begin_masks(&mut self, effects: &mut Vec<Effect>) {
        effects.extend(self.scheduler.take_begun_masks().map(Effect::EvaluateMasks));
    }

    /// Time at which the next request fails because of late masks.
    pub(super) fn masks_deadline(&self) -> Option<Timestamp> {
        self.scheduler.masks_deadline(Nanos::from_ms(self.config.mask_timeout_ms))
    }

    /// Fails every request that has waited too long for its masks.
    pub(super) fn end_overdue_masks(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.masks_deadline().is_some_and(|deadline| deadline <= now) {
            let (streams, patience) = (&mut self.streams, Nanos::from_ms(self.config.mask_timeout_ms));
            self.scheduler.fail_overdue_masks(patience, now, &mut |event| streams.pass_on(event, effects));
        }
    }
}
