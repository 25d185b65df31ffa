//! Generations without a reader: ends them, and charges all tokens generated until then, also those still in
//! transit. Does not know limits.

use futures_util::StreamExt;
use throng_fleet::adapters::LoadedAdapter;
use throng_fleet::replica::{Generation, ReplicaEvent};
use throng_store::Outcome;
use tokio::runtime::Handle;

use crate::limits::Charge;

/// A prompt's generation with unfinished choices.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Generation of the tokens.
    pub generation: Box<dyn Generation>,
    /// Number of prompt tokens.
    pub n_prompt_tokens: u64,
    /// Unfinished choices with the number of received tokens.
    pub choices: Vec<(u32, u64)>,
    /// Tokens charged for each of these choices if their number is determined only at the end, as for beams.
    pub unknown_tokens: Option<u64>,
}

impl Unfinished {
    /// Ends the generation and charges its tokens, which arrive within one step.
    async fn end(mut self, charge: &mut Charge) {
        if let Some(n_tokens) = self.unknown_tokens {
            return charge.answer_ended(n_tokens * self.choices.len() as u64, 0);
        }
        for (index, _) in &self.choices {
            self.generation.abort_continuation(*index);
        }
        while let Some(event) = self.generation.next().await {
            match event {
                ReplicaEvent::Prompt { cached_tokens, .. } => {
                    charge.prompt(self.n_prompt_tokens, u64::from(cached_tokens));
                }
                ReplicaEvent::Token { index, .. } => {
                    charge.token();
                    self.choices
                        .iter_mut()
                        .filter(|choice| choice.0 == index)
                        .for_each(|choice| choice.1 += 1);
                }
                ReplicaEvent::Finished { index, timing, .. } => {
                    let ended = self.choices.extract_if(.., |choice| choice.0 == index);
                    let n_seen = ended.map(|choice| choice.1).sum();
                    charge.answer_ended(u64::from(timing.n_output), n_seen);
                }
                ReplicaEvent::Failed { .. } => break,
            }
        }
        self.charge_seen(charge);
    }

    /// Charges the received tokens of unfinished choices.
    fn charge_seen(&self, charge: &mut Charge) {
        let n_seen = self.choices.iter().map(|choice| choice.1).sum();
        charge.answer_ended(n_seen, n_seen);
    }
}

/// Ends unfinished generations and then returns the rest of the charge. The adapter is kept until then.
pub(super) fn end(
    unfinished: Vec<Unfinished>,
    mut charge: Charge,
    outcome: Outcome,
    adapter: Option<LoadedAdapter>,
) {
    if unfinished.is_empty() {
        return charge.end(outcome);
    }
    let Ok(runtime) = Handle::try_current() else {
        unfinished.iter().for_each(|unfinished| unfinished.charge_seen(&mut charge));
        return charge.end(outcome);
    };
    runtime.spawn(async move {
        for generation in unfinished {
            generation.end(&mut charge).await;
        }
        charge.end(outcome);
        drop((charge, adapter));
    });
}
