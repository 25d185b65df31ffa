//! Requests that nobody waits for any more: ends them, and charges them with all tokens that were generated
//! until then, also those that were on their way. Does not know limits.

use futures_util::StreamExt;
use throng_fleet::adapters::LoadedAdapter;
use throng_fleet::replica::{Generation, ReplicaEvent};
use throng_store::Outcome;
use tokio::runtime::Handle;

use crate::limits::Charge;

/// A prompt's generation of which some choices have not ended.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Generation of its tokens.
    pub generation: Box<dyn Generation>,
    /// Its prompt's tokens.
    pub n_prompt_tokens: u64,
    /// Its choices that have not ended, and how many tokens came of each.
    pub choices: Vec<(u32, u64)>,
    /// Tokens charged for each of these choices if its tokens are known at its end only, as those of beams
    /// are.
    pub unknown_tokens: Option<u64>,
}

impl Unfinished {
    /// Ends it and charges its tokens. They come to an end within one step.
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

    /// Charges what came of the choices that have not ended.
    fn charge_seen(&self, charge: &mut Charge) {
        let n_seen = self.choices.iter().map(|choice| choice.1).sum();
        charge.answer_ended(n_seen, n_seen);
    }
}

/// Ends what has not ended, and then gives the rest of its charge back. The adapter is kept until then.
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
