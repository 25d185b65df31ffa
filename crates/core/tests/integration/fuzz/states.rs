//! Checks what steps do with slots of recurrent state.

use throng_core::scheduling::batch::ScheduledBatch;

/// Counts of what steps did with states.
#[derive(Debug, Default)]
pub struct States {
    pub n_saved: usize,
    pub n_begun: usize,
    pub n_copied: usize,
}

impl States {
    /// No slot that one sequence of the step writes is read or written by another one, and a sequence has a
    /// state if and only if the executor has slots.
    pub fn check(&mut self, batch: &ScheduledBatch, n_slots: u32) -> Result<(), String> {
        let mut writers = vec![None; n_slots as usize];
        for scheduled in batch.sequences() {
            let Some(state) = scheduled.state else {
                if n_slots == 0 {
                    continue;
                }
                return Err("a sequence without a state".into());
            };
            let saves = state.saves.into_iter().flatten();
            self.n_saved += saves.clone().count();
            self.n_begun += usize::from(state.from.is_some_and(|from| from != state.to));
            if (scheduled.start == 0) != state.from.is_none() || scheduled.n_drafts + scheduled.n_to_draft > 0
            {
                return Err(format!("a state {state:?} at position {}", scheduled.start));
            }
            for slot in saves.map(|save| save.slot).chain([state.to]) {
                if writers[slot.0 as usize].replace(scheduled.id).is_some() {
                    return Err(format!("{slot:?} is written twice"));
                }
            }
        }
        for scheduled in batch.sequences() {
            let from = scheduled.state.and_then(|state| state.from);
            let writer = from.and_then(|from| writers[from.0 as usize]);
            if writer.is_some_and(|writer| writer != scheduled.id) {
                return Err(format!("{from:?} is read and written"));
            }
        }
        self.n_copied += batch.state_copies().len();
        Ok(())
    }
}
