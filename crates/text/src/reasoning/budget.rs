//! A limit on reasoning tokens: when it is reached, the tokens that close the reasoning are forced one by
//! one, and the answer follows. Does not know the text.

/// Counts the reasoning tokens of one answer. Results depend only on the given tokens.
#[derive(Debug, Clone)]
pub struct ThinkingBudget {
    n_left: u32,
    open: Vec<u32>,
    close: Vec<u32>,
    /// Forced tokens; they end with `close`.
    ending: Vec<u32>,
    state: State,
    /// Number of tokens of the sought sequence that the answer currently ends with.
    n_matched: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    Inside,
    /// The number of forced tokens that have been generated.
    Ending(usize),
    After,
}

impl ThinkingBudget {
    /// Limits reasoning between the tokens `open` and `close` to `n_tokens`. `lead` is forced before `close`
    /// as a transition to the answer. With `is_open` the prompt has opened the reasoning. If `close` is
    /// empty, no token is ever forced.
    pub fn new(n_tokens: u32, open: Vec<u32>, close: Vec<u32>, lead: &[u32], is_open: bool) -> Self {
        let ending = [lead, &close].concat();
        let state = match (close.is_empty(), is_open) {
            (true, _) => State::After,
            (false, true) => State::Inside,
            (false, false) => State::Before,
        };
        Self { n_left: n_tokens, open, close, ending, state, n_matched: 0 }
    }

    /// The token that must come next, if any.
    pub fn forced(&self) -> Option<u32> {
        match self.state {
            State::Ending(n) => self.ending.get(n).copied(),
            // A closing sequence that the model has started is completed, without `lead`.
            State::Inside if self.n_left == 0 && self.n_matched > 0 => {
                self.close.get(self.n_matched).copied()
            }
            State::Inside if self.n_left == 0 => self.ending.first().copied(),
            State::Before | State::Inside | State::After => None,
        }
    }

    /// Records the next token of the answer.
    pub fn take(&mut self, token: u32) {
        match self.state {
            State::Before => {
                self.n_matched = matched(&self.open, self.n_matched, token);
                if self.n_matched == self.open.len() && !self.open.is_empty() {
                    (self.state, self.n_matched) = (State::Inside, 0);
                }
            }
            State::Inside if self.n_left == 0 && self.n_matched == 0 => self.take_ending(0, token),
            State::Inside => {
                self.n_matched = matched(&self.close, self.n_matched, token);
                self.n_left = self.n_left.saturating_sub(1);
                if self.n_matched == self.close.len() {
                    self.state = State::After;
                }
            }
            State::Ending(n) => self.take_ending(n, token),
            State::After => {}
        }
    }

    fn take_ending(&mut self, n: usize, token: u32) {
        let is_next = self.ending.get(n) == Some(&token);
        self.state = match is_next && n + 1 == self.ending.len() {
            true => State::After,
            false => State::Ending(if is_next { n + 1 } else { 0 }),
        };
    }
}

/// Number of tokens of `pattern` that a text ends with after `token`, given `n` before it. Patterns are a
/// few tokens long, so all shorter prefixes are tried.
fn matched(pattern: &[u32], n: usize, token: u32) -> usize {
    let seen = |i: usize| if i < n { pattern[i] } else { token };
    (1..=(n + 1).min(pattern.len()))
        .rev()
        .find(|&len| (0..len).all(|i| pattern[i] == seen(n + 1 - len + i)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generated tokens if `wanted` are those that the model would choose.
    fn run(mut budget: ThinkingBudget, wanted: &[u32]) -> Vec<u32> {
        let mut wanted = wanted.iter();
        let mut tokens = Vec::new();
        loop {
            let token = match budget.forced() {
                Some(token) => token,
                None => match wanted.next() {
                    Some(token) => *token,
                    None => return tokens,
                },
            };
            budget.take(token);
            tokens.push(token);
        }
    }

    #[test]
    fn reasoning_ends_when_its_tokens_are_used_up() {
        let budget = |n, is_open| ThinkingBudget::new(n, vec![1], vec![2], &[9], is_open);
        assert_eq!(run(budget(3, false), &[1, 5, 5, 5, 6, 6]), [1, 5, 5, 5, 9, 2, 6, 6]);
        assert_eq!(run(budget(3, true), &[5, 5, 5, 6, 6]), [5, 5, 5, 9, 2, 6, 6]);
        assert_eq!(run(budget(0, true), &[6, 6]), [9, 2, 6, 6]);
        assert_eq!(run(budget(9, true), &[5, 2, 6, 1, 6]), [5, 2, 6, 1, 6]);
        assert_eq!(run(budget(0, false), &[6, 6]), [6, 6]);
        assert_eq!(run(budget(1, false), &[1, 2, 5, 5, 5]), [1, 2, 5, 5, 5]);
    }

    #[test]
    fn a_close_that_has_begun_is_completed() {
        let budget = |n| ThinkingBudget::new(n, vec![1, 1], vec![2, 2, 3], &[9], false);
        assert_eq!(run(budget(3), &[1, 1, 5, 2, 2, 6]), [1, 1, 5, 2, 2, 3, 6]);
        assert_eq!(run(budget(2), &[1, 1, 5, 2, 6]), [1, 1, 5, 2, 2, 3, 6]);
        assert_eq!(run(budget(5), &[1, 1, 2, 2, 2, 3, 6, 6, 6]), [1, 1, 2, 2, 2, 3, 6, 6, 6]);
        assert_eq!(run(budget(1), &[1, 5, 1, 1, 5, 6]), [1, 5, 1, 1, 5, 9, 2, 2, 3, 6]);
    }
}
