//! Measured speed of the executor, for predicting waits. Does not predict.

use super::StepShape;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::{ServiceRate, StepTime};
use crate::time::Nanos;

impl Scheduler {
    /// Duration of steps, with contexts as long as the present ones, and the number of sequences that fit
    /// at once; `None` before the first step.
    pub fn machine(&self) -> Option<ServiceRate> {
        let n_running = self.running.len();
        let n_positions = self.running.iter().map(|sequence| sequence.n_computed()).sum::<usize>();
        let n_context = n_positions.checked_div(n_running).unwrap_or(0);
        let ms =
            |n_tokens: usize, n_attended: usize| self.step_time.likely_ms(StepShape { n_tokens, n_attended });
        let fixed = ms(0, 0)?;
        let more = |n_attended: usize| Some(Nanos(((ms(1, n_attended)? - fixed).max(0.0) * 1e6) as u64));
        let step_time = StepTime {
            fixed: Nanos((fixed.max(0.0) * 1e6) as u64),
            // The prompt's tokens attend to half of it.
            per_prompt_token: more(n_context / 2)?,
            per_sequence: more(n_context)?,
            max_step_tokens: self.config.max_batch_tokens,
        };
        // Those that run tell how many blocks one needs.
        let n_fitting = (self.pool.n_total() * n_running).checked_div(self.pool.n_used());
        let n_fitting = n_fitting.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX).max(1);
        Some(ServiceRate {
            step_time,
            n_slots: self.config.max_batch_sequences.min(n_fitting),
            n_replicas: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::executor::ExecutorCapacity;
    use crate::scheduling::scheduler::SchedulerConfig;

    #[test]
    fn an_engine_that_was_only_probed_is_not_taken_for_slow() {
        let capacity = ExecutorCapacity {
            n_blocks: 256,
            max_batch_tokens: 512,
            max_batch_sequences: 16,
            max_sequence_tokens: 2048,
            vocabulary_size: 1000,
            n_state_slots: 0,
            max_steps_in_flight: 1,
            takes_whole_prompts: false,
            takes_media: false,
            keeps_media_whole: false,
            n_stages: 1,
        };
        let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity);
        assert_eq!(scheduler.machine(), None);
        for _ in 0..3 {
            scheduler.step_time.observe(StepShape::of_sequence(0, 1), Nanos::from_ms(10));
        }
        let machine = scheduler.machine().expect("it was timed");
        let prompt = machine.step_time.prefill(2_000, 0);
        assert!((Nanos::from_ms(40)..Nanos::from_ms(400)).contains(&prompt), "{prompt:?}");
    }
}
