//! Checks of the slots of recurrent state that running sequences hold. Does not assign them.

use super::Scheduler;

impl Scheduler {
    /// Checks that every held slot, and every checkpoint about to be read, belongs to a running sequence.
    pub(super) fn check_states(&self) -> Result<(), String> {
        let (mut n_held, mut n_readers) = (0, 0);
        for (n_slots, is_reading) in self.running.iter().map(|sequence| sequence.n_state_slots()) {
            n_held += n_slots;
            n_readers += usize::from(is_reading);
        }
        let states = self.pool.states();
        match (states.n_held(), states.n_readers()) == (n_held, n_readers) {
            true => Ok(()),
            false => Err(format!(
                "{} states are held and {} read, {n_held} and {n_readers} by sequences that run",
                states.n_held(),
                states.n_readers()
            )),
        }
    }
}
