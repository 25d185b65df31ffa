//! Judgement of answers by a classifier: the outputs of a session are held back in windows until the
//! classifier has allowed their text; a window that is not allowed ends the choice. Does not know the
//! protocol.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::generation::output::Output;
use crate::moderation::{Classifier, Judgement, Unavailable};

/// Maximum bytes of text before a window that are judged with it, so that matches across two windows are
/// found.
const MAX_CONTEXT_BYTES: usize = 4 << 10;

/// Question to the classifier.
type Question = BoxFuture<'static, Result<Vec<Judgement>, Unavailable>>;

/// The judged outputs of all choices of a request.
pub(super) struct OutputClassifying {
    classifier: Arc<Classifier>,
    window_bytes: usize,
    choices: Vec<Choice>,
    /// Outputs that are not judged yet; the first `n_asked` are being judged.
    held: VecDeque<Output>,
    held_bytes: usize,
    n_asked: usize,
    /// Running request to the classifier, and the choice of each of its texts.
    asking: Option<(Question, Vec<usize>)>,
    ready: VecDeque<Output>,
}

#[derive(Debug, Default)]
struct Choice {
    /// End of the text that has been submitted for judgement.
    caller: String,
    is_blocked: bool,
}

impl std::fmt::Debug for OutputClassifying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputClassifying").field("choices", &self.choices).finish_non_exhaustive()
    }
}

impl OutputClassifying {
    /// Creates the judgement of a request with `n` choices; `None` if the classifier does not judge
    /// answers.
    pub fn new(classifier: &Arc<Classifier>, n: usize) -> Option<Self> {
        Some(Self {
            classifier: classifier.clone(),
            window_bytes: classifier.output_window_bytes()?,
            choices: (0..n).map(|_| Choice::default()).collect(),
            held: VecDeque::new(),
            held_bytes: 0,
            n_asked: 0,
            asking: None,
            ready: VecDeque::new(),
        })
    }

    /// The next output that may be sent.
    pub fn pop(&mut self) -> Option<Output> {
        self.ready.pop_front()
    }

    /// Whether it accepts more outputs now: it holds two windows at most.
    pub fn has_room(&self) -> bool {
        self.held_bytes < 2 * self.window_bytes
    }

    /// Whether it holds no outputs.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.ready.is_empty()
    }

    /// Adds an output.
    pub fn push(&mut self, output: Output) {
        self.held_bytes += text_of(&output).len();
        self.held.push_back(output);
    }

    /// Polls the running request, or starts the next one if a window is full or a choice has ended. Returns
    /// the choices that end here.
    pub fn poll(&mut self, cx: &mut Context<'_>, is_last: bool) -> Poll<Vec<usize>> {
        if self.asking.is_none() {
            let has_end = self.held.iter().any(|output| !matches!(output, Output::Token { .. }));
            if self.held.is_empty() || !(is_last || has_end || self.held_bytes >= self.window_bytes) {
                return Poll::Pending;
            }
            self.ask();
        }
        let Some((question, _)) = &mut self.asking else { return Poll::Pending };
        let judgements = std::task::ready!(question.poll_unpin(cx));
        let choices = self.asking.take().map(|(_, choices)| choices).unwrap_or_default();
        Poll::Ready(self.settle(&choices, judgements))
    }

    fn ask(&mut self) {
        self.n_asked = self.held.len();
        let mut texts: Vec<Option<String>> = self.choices.iter().map(|_| None).collect();
        for output in &self.held {
            let (Some(choice_idx), text) = (choice_of(output), text_of(output)) else { continue };
            let Some(choice) = self.choices.get(choice_idx).filter(|choice| !choice.is_blocked) else {
                continue;
            };
            if !text.is_empty() {
                texts[choice_idx].get_or_insert_with(|| choice.caller.clone()).push_str(text);
            }
        }
        let (mut asked, mut choices) = (Vec::new(), Vec::new());
        for (choice_idx, text) in texts.into_iter().enumerate() {
            let Some(text) = text else { continue };
            let from = text.ceil_char_boundary(text.len().saturating_sub(MAX_CONTEXT_BYTES));
            self.choices[choice_idx].caller = text[from..].to_owned();
            asked.push(text);
            choices.push(choice_idx);
        }
        let classifier = self.classifier.clone();
        let question =
            async move { if asked.is_empty() { Ok(Vec::new()) } else { classifier.judge(&asked).await } };
        self.asking = Some((question.boxed(), choices));
    }

    /// Releases the judged outputs, except those of choices with a text that is not allowed. Without a
    /// judgement no text is allowed.
    fn settle(&mut self, choices: &[usize], judgements: Result<Vec<Judgement>, Unavailable>) -> Vec<usize> {
        let judgements = judgements.unwrap_or_else(|Unavailable| vec![Some(String::new()); choices.len()]);
        let flagged = choices.iter().zip(judgements).filter(|(_, judgement)| judgement.is_some());
        let ended: Vec<usize> = flagged.map(|(&choice_idx, _)| choice_idx).collect();
        ended.iter().for_each(|&choice_idx| self.choices[choice_idx].is_blocked = true);
        for output in self.held.drain(..std::mem::take(&mut self.n_asked)) {
            self.held_bytes -= text_of(&output).len();
            let is_blocked =
                choice_of(&output).is_some_and(|idx| self.choices.get(idx).is_some_and(|c| c.is_blocked));
            self.ready.extend(if is_blocked { blocked(output) } else { Some(output) });
        }
        ended
    }
}

/// The end that replaces output of a choice that must not continue.
fn blocked(output: Output) -> Option<Output> {
    let Output::Finished { choice_idx, reason, timing, .. } = output else { return None };
    Some(Output::Finished { choice_idx, text: String::new(), reason, stop: None, is_filtered: true, timing })
}

fn choice_of(output: &Output) -> Option<usize> {
    match output {
        Output::Token { choice_idx, .. } | Output::Finished { choice_idx, .. } => Some(*choice_idx),
        Output::Prompt { .. } | Output::Failed(_) => None,
    }
}

fn text_of(output: &Output) -> &str {
    match output {
        Output::Token { text, .. } | Output::Finished { text, .. } => text,
        Output::Prompt { .. } | Output::Failed(_) => "",
    }
}
