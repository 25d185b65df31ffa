//! Requests that nobody waits for any more: ends them, and charges them with all tokens that were generated until then, also
//! those that were on their way. Does not know limits.

use futures_util::StreamExt;
use tokio::runtime::Handle;

use crate::adapters::LoadedAdapter;
use crate::limits::Charge;
use crate::replica::{Generation, ReplicaEvent};

/// A prompt's generation of which some choices have not ended.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// What happens to it.
    pub generation: Box<dyn Generation>,
    /// Its choices that have not ended, and how many tokens came of each.
    pub choices: Vec<(u32, u64)>,
    /// What is charged for each of these choices if its tokens are known at its end only, as those of beams are.
    pub unknown_tokens: Option<u64>,
}

impl Unfinished {
    /// Ends it and counts its tokens. They come to an end within one step.
    async fn end(mut self) -> u64 {
        if let Some(n_tokens) = self.unknown_tokens {
            return n_tokens * self.choices.len() as u64;
        }
        for (index, _) in &self.choices {
            self.generation.abort_continuation(*index);
        }
        let mut n_tokens = 0;
        while let Some(event) = self.generation.next().await {
            match event {
                ReplicaEvent::Prompt { .. } => {}
                ReplicaEvent::Token { index, .. } => {
                    self.choices
                        .iter_mut()
                        .filter(|choice| choice.0 == index)
                        .for_each(|choice| choice.1 += 1);
                }
                ReplicaEvent::Finished { index, timing, .. } => {
                    n_tokens += u64::from(timing.n_output);
                    self.choices.retain(|choice| choice.0 != index);
                }
                ReplicaEvent::Failed(_) => break,
            }
        }
        n_tokens + self.choices.iter().map(|choice| choice.1).sum::<u64>()
    }
}

/// Ends what has not ended, and then gives the rest of its charge back. The adapter is kept until then.
pub(super) fn end(unfinished: Vec<Unfinished>, mut charge: Charge, adapter: Option<LoadedAdapter>) {
    if unfinished.is_empty() {
        return;
    }
    let seen = |unfinished: &Unfinished| unfinished.choices.iter().map(|choice| choice.1).sum::<u64>();
    let Ok(runtime) = Handle::try_current() else {
        charge.add(unfinished.iter().map(seen).sum());
        return;
    };
    runtime.spawn(async move {
        for generation in unfinished {
            charge.add(generation.end().await);
        }
        drop((charge, adapter));
    });
}
