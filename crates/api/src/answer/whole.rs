//! A whole answer, collected from the events of its stream.

use std::mem::{size_of, size_of_val};

use throng_core::fleet::replica::TokenReport;
use throng_core::request::TokenId;

use super::{AnswerEvent, CallFailure, ChoiceEnd, Delta, ServedEvent, Tally};

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// Prompts of the request, in order.
    pub prompts: Vec<PromptReport>,
    /// Choices of the answer, in order.
    pub choices: Vec<Choice>,
    /// Turns of the model before the last one, where the server ran calls between them.
    pub turns: Vec<PastTurn>,
    /// Token counts and times.
    pub tally: Tally,
    n_text_bytes: usize,
    n_held: usize,
}

/// A turn of the model that was not the last one.
#[derive(Debug)]
pub struct PastTurn {
    /// Choice that the model generated in the turn.
    pub choice: Choice,
    /// Results of calls, with the numbers of the calls.
    pub results: Vec<(u32, Result<String, CallFailure>)>,
}

/// Report of a prompt.
#[derive(Debug, Default)]
pub struct PromptReport {
    /// Number of its tokens that were found in the prefix cache.
    pub cached_tokens: u32,
    /// Log-probabilities of all its tokens except the first, if requested.
    pub logprobs: Vec<TokenReport>,
}

/// A whole choice.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Answer text.
    pub content: String,
    /// Reasoning text.
    pub reasoning: String,
    /// Tool calls in order.
    pub calls: Vec<Call>,
    /// Tokens; empty for an upstream engine that sends only text.
    pub reports: Vec<TokenReport>,
    /// For each token, the number of characters of the answer text before it.
    pub offsets: Vec<usize>,
    /// End of the choice; `None` if unknown.
    pub end: Option<ChoiceEnd>,
    /// Number of characters of the answer text.
    n_chars: usize,
}

/// A whole call of a tool.
#[derive(Debug, Clone)]
pub struct Call {
    /// Id that the call's result refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
}

impl Answer {
    /// Creates an empty answer. `tally` has the tokens of all prompts.
    pub fn new(n_prompts: usize, n_choices: usize, tally: Tally) -> Self {
        let (mut prompts, mut choices) = (Vec::new(), Vec::new());
        prompts.resize_with(n_prompts, PromptReport::default);
        choices.resize_with(n_choices, Choice::default);
        let n_held = n_choices * size_of::<Choice>();
        Self { prompts, choices, turns: Vec::new(), tally, n_text_bytes: 0, n_held }
    }

    /// Adds an event; [`AnswerEvent::Failed`] is ignored.
    pub fn add(&mut self, event: AnswerEvent) {
        self.tally.add(&event);
        match event {
            AnswerEvent::Prompt { prompt_idx, cached_tokens, logprobs, .. } => {
                self.prompts[prompt_idx] = PromptReport { cached_tokens, logprobs };
            }
            AnswerEvent::Token { choice_idx, report, deltas, .. } => {
                if let Some(report) = report {
                    self.n_held +=
                        size_of::<TokenReport>() + size_of_val(report.top.as_slice()) + size_of::<usize>();
                    let choice = &mut self.choices[choice_idx];
                    choice.reports.push(report);
                    choice.offsets.push(choice.n_chars);
                }
                self.apply(choice_idx, deltas);
            }
            AnswerEvent::Finished { choice_idx, deltas, end } => {
                self.apply(choice_idx, deltas);
                self.choices[choice_idx].end = Some(end);
            }
            AnswerEvent::Served(event) => self.add_served(event),
            AnswerEvent::Usage(_) | AnswerEvent::Failed(_) => {}
        }
    }

    fn add_served(&mut self, event: ServedEvent) {
        match event {
            ServedEvent::TurnEnded { deltas, end } => {
                self.apply(0, deltas);
                let choice = Choice { end: Some(end), ..std::mem::take(&mut self.choices[0]) };
                self.turns.push(PastTurn { choice, results: Vec::new() });
            }
            ServedEvent::CallEnded { call_idx, result } => {
                self.n_text_bytes += result.as_ref().map_or(0, String::len);
                if let Some(turn) = self.turns.last_mut() {
                    turn.results.push((call_idx, result));
                }
            }
            ServedEvent::TurnBegan { .. } => {}
        }
    }

    /// Keeps the `n` choices of each prompt with the highest mean log-probability of a token, best first, as
    /// OpenAI's reference defines `best_of` ("the one with the highest log probability per token").
    pub fn keep_best(&mut self, n: usize) {
        let n_of_prompt = self.choices.len() / self.prompts.len().max(1);
        if n_of_prompt <= n {
            return;
        }
        let mut choices = std::mem::take(&mut self.choices).into_iter();
        for _ in 0..self.prompts.len() {
            let mut of_prompt: Vec<Choice> = choices.by_ref().take(n_of_prompt).collect();
            of_prompt.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            of_prompt.truncate(n);
            self.choices.extend(of_prompt);
        }
    }

    /// Bytes of memory held, without the reports of the prompts.
    pub fn held_bytes(&self) -> usize {
        self.n_held + self.n_text_bytes
    }

    /// Total bytes of the texts.
    pub fn text_bytes(&self) -> usize {
        self.n_text_bytes
    }

    fn apply(&mut self, choice_idx: usize, deltas: Vec<Delta>) {
        let choice = &mut self.choices[choice_idx];
        self.n_text_bytes += deltas.iter().map(|delta| choice.add(delta)).sum::<usize>();
    }
}

/// Appends `more` and returns its number of bytes.
fn append(text: &mut String, more: &str) -> usize {
    text.push_str(more);
    more.len()
}

impl Choice {
    /// Adds text or a call, and returns the number of bytes that it holds.
    pub fn add(&mut self, delta: &Delta) -> usize {
        match delta {
            Delta::Content(text) => {
                self.n_chars += text.chars().count();
                append(&mut self.content, text)
            }
            Delta::Reasoning(text) => append(&mut self.reasoning, text),
            Delta::CallBegin { id, name, .. } => {
                let call = Call { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.calls.push(call);
                size_of::<Call>() + id.len() + name.len()
            }
            Delta::CallArguments { call_idx, fragment } => {
                let call = self.calls.get_mut(*call_idx as usize);
                call.map_or(0, |call| append(&mut call.arguments, fragment))
            }
        }
    }

    /// The token ids of the choice.
    pub fn token_ids(&self) -> Vec<TokenId> {
        self.reports.iter().map(|report| report.chosen.token).collect()
    }

    /// Mean log-probability of the tokens; 0 without tokens.
    pub fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.reports.iter().map(|report| f64::from(report.chosen.logprob)).sum();
        sum / self.reports.len().max(1) as f64
    }
}
