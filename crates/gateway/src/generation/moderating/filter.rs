//! Filter of answers by rules: the outputs of a session are held back until their text can be no part of a
//! match; a match ends the choice. Does not know categories of rules and the protocol.

use std::collections::VecDeque;
use std::sync::Arc;

use throng_text::moderation::{RuleSet, TextFilter};

use crate::generation::output::Output;

/// Filter of all choices of a request.
#[derive(Debug)]
pub(super) struct OutputFilter {
    choices: Vec<Choice>,
    /// Outputs that may be sent.
    ready: VecDeque<Output>,
}

#[derive(Debug)]
struct Choice {
    filter: TextFilter,
    /// Outputs that are held back, each with the number of safe bytes of text from which it may be sent.
    held: VecDeque<(Output, usize)>,
    /// Number of bytes of the text so far, and of the part in outputs that were sent.
    n_text: usize,
    n_sent: usize,
    /// Text before a match that is in no output yet.
    rest: Option<String>,
}

impl OutputFilter {
    /// Creates the filter of a request with `n` choices.
    pub fn new(rules: &Arc<RuleSet>, n: usize) -> Self {
        let choice = || Choice {
            filter: TextFilter::new(rules.clone()),
            held: VecDeque::new(),
            n_text: 0,
            n_sent: 0,
            rest: None,
        };
        Self { choices: (0..n).map(|_| choice()).collect(), ready: VecDeque::new() }
    }

    /// The next output that may be sent.
    pub fn pop(&mut self) -> Option<Output> {
        self.ready.pop_front()
    }

    /// Adds an output. Returns its choice if it ends because of a match.
    pub fn push(&mut self, output: Output) -> Option<usize> {
        match output {
            Output::Token { choice_idx, .. } => {
                let choice = self.choices.get_mut(choice_idx)?;
                let ended = choice.take(output);
                choice.send(&mut self.ready);
                ended.then_some(choice_idx)
            }
            Output::Finished { choice_idx, text, reason, stop, timing, .. } => {
                let choice = self.choices.get_mut(choice_idx)?;
                choice.finish(&text);
                choice.send(&mut self.ready);
                let (is_filtered, text) = match choice.rest.take() {
                    Some(rest) => (true, rest),
                    None => (false, text),
                };
                let stop = stop.filter(|_| !is_filtered);
                self.ready.push_back(Output::Finished {
                    choice_idx,
                    text,
                    reason,
                    stop,
                    is_filtered,
                    timing,
                });
                None
            }
            other => {
                self.ready.push_back(other);
                None
            }
        }
    }
}

impl Choice {
    /// Adds a token; returns whether it completes a match.
    fn take(&mut self, output: Output) -> bool {
        let Output::Token { text, .. } = &output else { return false };
        if self.rest.is_some() {
            return false;
        }
        self.n_text += text.len();
        self.filter.push(text);
        // A token may have more than its text so far: it is sent when the character behind is safe.
        let needed = self.n_text + 1;
        self.held.push_back((output, needed));
        self.cut("")
    }

    /// Adds the last piece of the text.
    fn finish(&mut self, text: &str) {
        if self.rest.is_some() {
            return;
        }
        self.filter.push(text);
        self.filter.finish();
        if !self.cut(text) {
            // All of it is safe.
            self.held.iter_mut().for_each(|(_, needed)| *needed = 0);
        }
    }

    /// Keeps the outputs before a match; returns whether there is one. `tail` is text that belongs to no
    /// token.
    fn cut(&mut self, tail: &str) -> bool {
        let Some(found) = self.filter.found() else { return false };
        let is_safe = |held: &&(Output, usize)| held.1 <= found.start;
        let n_safe = self.held.iter().take_while(is_safe).count();
        let unsafe_ones = self.held.split_off(n_safe);
        let n_before: usize =
            self.n_sent + self.held.iter().map(|(output, _)| n_bytes(output)).sum::<usize>();
        let mut rest = String::new();
        for (output, _) in &unsafe_ones {
            if let Output::Token { text, .. } = output {
                rest.push_str(text);
            }
        }
        rest.push_str(tail);
        rest.truncate(rest.floor_char_boundary(found.start.saturating_sub(n_before)));
        self.rest = Some(rest);
        self.held.iter_mut().for_each(|(_, needed)| *needed = 0);
        true
    }

    /// Moves safe outputs to `ready`.
    fn send(&mut self, ready: &mut VecDeque<Output>) {
        let n_safe = if self.rest.is_some() { usize::MAX } else { self.filter.n_shown() };
        while self.held.front().is_some_and(|(_, needed)| *needed <= n_safe) {
            let Some((output, _)) = self.held.pop_front() else { return };
            self.n_sent += n_bytes(&output);
            ready.push_back(output);
        }
    }
}

fn n_bytes(output: &Output) -> usize {
    match output {
        Output::Token { text, .. } => text.len(),
        _ => 0,
    }
}
