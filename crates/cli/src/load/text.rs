//! Prompts of about a number of tokens: a common English word is mostly one token. Equal spans have equal
//! words, so that prompts share prefixes as in the workload.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};
use throng_sim::workload::{SimRequest, Span, token_of};

/// Words that most tokenizers have as one token with the space before them.
const WORDS: [&str; 64] = [
    "time", "people", "water", "house", "light", "world", "school", "country", "music", "river", "paper",
    "street", "garden", "story", "table", "window", "morning", "summer", "winter", "letter", "number",
    "family", "friend", "market", "city", "village", "mountain", "ocean", "island", "forest", "animal",
    "horse", "bird", "fish", "tree", "flower", "bread", "coffee", "sugar", "salt", "iron", "gold", "silver",
    "stone", "glass", "metal", "machine", "engine", "train", "road", "bridge", "ship", "plane", "wheel",
    "book", "page", "picture", "color", "sound", "voice", "answer", "question", "reason", "idea",
];

/// Maximum number of answers that are kept as parts of later prompts.
const MAX_ANSWERS: usize = 4096;
/// Maximum bytes of the kept answers.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Texts of the spans of a workload.
#[derive(Debug, Default)]
pub struct Texts {
    /// Answers of the server, by the content of their spans.
    answers: HashMap<u64, String>,
    order: VecDeque<u64>,
    n_bytes: usize,
}

impl Texts {
    /// Keeps an answer of the server, for prompts that repeat it.
    pub fn remember(&mut self, output: Span, answer: String) {
        self.n_bytes += answer.len();
        self.answers.insert(output.content, answer);
        self.order.push_back(output.content);
        while self.order.len() > MAX_ANSWERS || self.n_bytes > MAX_ANSWER_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.n_bytes -= self.answers.remove(&oldest).map_or(0, |answer| answer.len());
        }
    }

    /// The prompt as one text.
    pub fn prompt(&self, request: &SimRequest) -> String {
        let mut text = String::new();
        for span in &*request.prompt {
            match self.answers.get(&span.content) {
                Some(answer) => text += answer,
                None => push_words(&mut text, *span),
            }
        }
        text
    }

    /// The prompt as messages: the server's answers are the assistant's, all other text the user's.
    pub fn messages(&self, request: &SimRequest) -> Vec<Value> {
        let mut messages: Vec<Value> = Vec::new();
        let mut user = String::new();
        for span in &*request.prompt {
            match self.answers.get(&span.content) {
                None => push_words(&mut user, *span),
                Some(answer) => {
                    messages.push(json!({"role": "user", "content": std::mem::take(&mut user)}));
                    messages.push(json!({"role": "assistant", "content": answer}));
                }
            }
        }
        messages.push(json!({"role": "user", "content": user}));
        messages
    }
}

fn push_words(text: &mut String, span: Span) {
    for offset in 0..span.n_tokens {
        let word = token_of(span.content, offset, WORDS.len() as u32 + 1) as usize - 1;
        if !text.is_empty() {
            text.push(' ');
        }
        *text += WORDS[word % WORDS.len()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(content: u64, n_tokens: u32) -> Span {
        Span { content, n_tokens }
    }

    #[test]
    fn equal_spans_are_equal_texts_and_answers_are_the_servers() {
        let mut texts = Texts::default();
        let first = SimRequest::new([span(1, 5)], span(2, 3));
        let prompt = texts.prompt(&first);
        assert_eq!(prompt.split(' ').count(), 5);
        let second = SimRequest::new([span(1, 5), span(2, 3), span(3, 2)], span(4, 1));
        assert!(texts.prompt(&second).starts_with(&prompt));
        assert_eq!(texts.messages(&second).len(), 1);
        texts.remember(span(2, 3), "Yes.".into());
        let messages = texts.messages(&second);
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[1], json!({"role": "assistant", "content": "Yes."}));
    }

    #[test]
    fn answers_have_a_bound() {
        let mut texts = Texts::default();
        (0..5_000).for_each(|content| texts.remember(span(content, 1), "x".repeat(100)));
        assert_eq!((texts.answers.len(), texts.n_bytes), (MAX_ANSWERS, 100 * MAX_ANSWERS));
    }
}
