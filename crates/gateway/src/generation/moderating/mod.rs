//! Moderation between a session's outputs and its reader: the tenant's rules, then the classifier. Does not
//! know generations.

mod classifying;
mod filter;

use std::sync::Arc;
use std::task::{Context, Poll};

use self::classifying::OutputClassifying;
use self::filter::OutputFilter;
use crate::generation::output::Output;
use crate::moderation::Moderation;
use throng_auth::Tenant;

/// Moderation of a request's answers.
#[derive(Debug)]
pub(super) struct Moderating {
    filter: Option<OutputFilter>,
    classifying: Option<OutputClassifying>,
    moderation: Arc<Moderation>,
    has_ended: bool,
}

impl Moderating {
    /// Creates the moderation of a tenant's request with `n` choices; `None` without rules and classifier.
    pub fn new(moderation: &Arc<Moderation>, tenant: &Tenant, n: usize) -> Option<Self> {
        let filter = moderation.of(tenant).output().map(|rules| OutputFilter::new(&rules.set, n));
        let classifying =
            moderation.classifier().and_then(|classifier| OutputClassifying::new(classifier, n));
        let is_needed = filter.is_some() || classifying.is_some();
        is_needed.then(|| Self { filter, classifying, moderation: moderation.clone(), has_ended: false })
    }

    /// The next output that may be sent, of those from `next`. `end` ends a choice that needs no more
    /// tokens.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<Output>>,
        ended: &mut Vec<usize>,
    ) -> Poll<Option<Output>> {
        loop {
            if let Some(output) = self.pop() {
                return Poll::Ready(Some(output));
            }
            if let Some(classifying) = &mut self.classifying {
                if let Poll::Ready(cut) = classifying.poll(cx, self.has_ended) {
                    ended.extend(cut);
                    continue;
                }
                if !classifying.has_room() || (self.has_ended && !classifying.is_empty()) {
                    return Poll::Pending;
                }
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match std::task::ready!(next(cx)) {
                Some(output) => ended.extend(self.push(output)),
                None => self.has_ended = true,
            }
        }
    }

    /// Adds an output; returns its choice if it ends here.
    fn push(&mut self, output: Output) -> Option<usize> {
        match (&mut self.filter, &mut self.classifying) {
            (Some(filter), _) => filter.push(output),
            (None, Some(classifying)) => {
                classifying.push(output);
                None
            }
            (None, None) => None,
        }
    }

    fn pop(&mut self) -> Option<Output> {
        if let (Some(filter), Some(classifying)) = (&mut self.filter, &mut self.classifying) {
            std::iter::from_fn(|| filter.pop()).for_each(|output| classifying.push(output));
        }
        let output = match (&mut self.filter, &mut self.classifying) {
            (_, Some(classifying)) => classifying.pop(),
            (Some(filter), None) => filter.pop(),
            (None, None) => None,
        };
        if let Some(Output::Finished { is_filtered: true, .. }) = &output {
            self.moderation.answer_cut();
        }
        output
    }
}
