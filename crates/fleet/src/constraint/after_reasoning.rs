//! A constraint that starts after the model's reasoning, and a limit on the reasoning's tokens. Does not
//! know the formats of reasoning, nor the constraint's content.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use throng_core::constraint::{ConstraintError, ConstraintIdentity, TokenConstraint, TokenMask};
use throng_core::request::TokenId;
use throng_text::{AnswerFormat, ReasoningFormat, ThinkingBudget, Tokenizer};

/// The tokens around a model's reasoning and before its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasoningTokens {
    /// Tokens that open the reasoning; empty if the prompt has opened it.
    pub open: Vec<TokenId>,
    /// Tokens that close the reasoning.
    pub close: Vec<TokenId>,
    /// Tokens between the reasoning and the constrained part.
    pub lead: Vec<TokenId>,
    /// Tokens before the constrained part of an output without reasoning.
    pub direct: Vec<TokenId>,
}

impl ReasoningTokens {
    /// The tokens of a model with this reasoning format. With `calls` the constraint starts where a tool
    /// call may start.
    pub fn new(
        format: &AnswerFormat,
        reasoning: ReasoningFormat,
        tokenizer: &Tokenizer,
        calls: bool,
    ) -> Option<Self> {
        let tokens = |text: &str| format.tokens_of(text, tokenizer);
        let (lead, direct) = match reasoning {
            ReasoningFormat::Harmony if calls => ("<|start|>assistant", ""),
            ReasoningFormat::Harmony => {
                ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>")
            }
            _ => ("", ""),
        };
        let first = |marks: &'static [&'static str]| marks.first().and_then(|mark| tokens(mark));
        Some(Self {
            open: first(reasoning.opens())?,
            close: first(reasoning.closes())?,
            lead: tokens(lead)?,
            direct: tokens(direct)?,
        })
    }
}

/// Constrains the output after the reasoning. During the reasoning only end tokens are forbidden, so that
/// the constrained part is always reached.
#[derive(Debug)]
pub(super) struct AfterReasoning {
    /// The tokens around the reasoning.
    pub tokens: ReasoningTokens,
    /// Whether the prompt ends inside the reasoning.
    pub is_open: bool,
    /// Maximum number of reasoning tokens.
    pub budget: Option<u32>,
    /// End tokens of the model.
    pub end_tokens: Vec<TokenId>,
    /// Constraint of the answer.
    pub answer: Arc<dyn TokenConstraint>,
}

/// Part of the output that the next token belongs to.
enum Place<'o> {
    /// The start, which may become reasoning or the answer.
    Start,
    /// The reasoning; if given, this token must come next.
    Reasoning(Option<TokenId>),
    /// Tokens between reasoning and answer; these must come next.
    Lead(&'o [TokenId]),
    /// The answer; these are its tokens so far.
    Answer(&'o [TokenId]),
}

impl AfterReasoning {
    fn place<'o>(&'o self, output: &'o [TokenId]) -> Place<'o> {
        let open: &[TokenId] = if self.is_open { &[] } else { &self.tokens.open };
        let Some(inside) = output.strip_prefix(open) else {
            return match output.strip_prefix(self.tokens.direct.as_slice()) {
                Some(answer) if !open.starts_with(output) => Place::Answer(answer),
                _ => Place::Start,
            };
        };
        let close = &self.tokens.close;
        let Some(at) = inside.windows(close.len()).position(|tokens| tokens == close) else {
            return Place::Reasoning(self.budget.and_then(|n| {
                let mut budget = ThinkingBudget::new(n, Vec::new(), close.clone(), &[], true);
                inside.iter().for_each(|token| budget.take(*token));
                budget.forced()
            }));
        };
        let after = &inside[at + close.len()..];
        match after.strip_prefix(self.tokens.lead.as_slice()) {
            Some(answer) => Place::Answer(answer),
            None => Place::Lead(self.tokens.lead.strip_prefix(after).unwrap_or_default()),
        }
    }

    /// Allows, at the start of an output, both reasoning and the answer.
    fn mask_start(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        let answer = match output.strip_prefix(self.tokens.direct.as_slice()) {
            Some(answer) => self.answer.mask(answer, mask),
            None => Ok(()),
        };
        let begun = [&self.tokens.open, &self.tokens.direct];
        let next = begun.map(|tokens| tokens.strip_prefix(output).and_then(<[TokenId]>::first));
        if next.iter().all(Option::is_none) {
            // The output is neither; the answer's constraint has the reason.
            return answer.and(if mask.is_empty() { Err(ConstraintError::OutputRejected) } else { Ok(()) });
        }
        next.into_iter().flatten().for_each(|token| mask.allow(*token));
        Ok(())
    }
}

impl TokenConstraint for AfterReasoning {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        match self.place(output) {
            Place::Start => return self.mask_start(output, mask),
            Place::Answer(answer) => return self.answer.mask(answer, mask),
            Place::Reasoning(Some(token)) => mask.allow(token),
            Place::Reasoning(None) => {
                mask.allow_all();
                self.end_tokens.iter().filter(|end| !self.tokens.close.contains(end)).for_each(|end| {
                    mask.ban(*end);
                });
            }
            Place::Lead(tokens) => {
                let token = tokens.first().ok_or(ConstraintError::OutputRejected)?;
                mask.allow(*token);
            }
        }
        Ok(())
    }

    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        match self.place(output) {
            Place::Start => {}
            Place::Answer(answer) => self.answer.forced(answer, forced),
            Place::Reasoning(token) => forced.extend(token),
            Place::Lead(tokens) => forced.extend(tokens),
        }
    }

    fn identity(&self) -> Option<ConstraintIdentity> {
        let Self { tokens, is_open, budget, end_tokens, answer } = self;
        let ReasoningTokens { open, close, lead, direct } = tokens;
        let lists = [open, close, lead, direct, end_tokens];
        let bounds = [u32::from(*is_open), u32::from(budget.is_some()), budget.unwrap_or_default()];
        Some(identity(b"throng after reasoning", &lists, &bounds, &answer.identity()?.0))
    }
}

/// Identity of lists and of a fixed count of numbers; each list is preceded by its length.
fn identity(kind: &[u8], lists: &[&Vec<TokenId>], numbers: &[u32], inner: &[u8]) -> ConstraintIdentity {
    let mut digest = Sha256::new_with_prefix(kind);
    for list in lists {
        digest.update((list.len() as u64).to_le_bytes());
        list.iter().for_each(|token| digest.update(token.to_le_bytes()));
    }
    numbers.iter().for_each(|number| digest.update(number.to_le_bytes()));
    digest.update(inner);
    ConstraintIdentity(digest.finalize().into())
}

/// Limits the reasoning of an otherwise unconstrained output.
#[derive(Debug)]
pub(super) struct BoundedReasoning(pub ThinkingBudget);

impl TokenConstraint for BoundedReasoning {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        match self.next(output) {
            Some(token) => mask.allow(token),
            None => mask.allow_all(),
        }
        Ok(())
    }

    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        forced.extend(self.next(output));
    }

    fn identity(&self) -> Option<ConstraintIdentity> {
        // The budget before any output: plain numbers and lists.
        let budget = format!("{:?}", self.0);
        Some(identity(b"throng bounded reasoning", &[], &[], budget.as_bytes()))
    }
}

impl BoundedReasoning {
    fn next(&self, output: &[TokenId]) -> Option<TokenId> {
        let mut budget = self.0.clone();
        output.iter().for_each(|token| budget.take(*token));
        budget.forced()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A constraint that allows only the tokens 50, 51 and the end token 9.
    #[derive(Debug)]
    struct Fixed;

    impl TokenConstraint for Fixed {
        fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
            let text = [50, 51, 9];
            let next = text.strip_prefix(output).ok_or(ConstraintError::OutputRejected)?;
            next.iter().take(1).for_each(|token| mask.allow(*token));
            Ok(())
        }

        fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
            forced.extend([50, 51].strip_prefix(output).unwrap_or_default());
        }
    }

    fn constraint(
        is_open: bool,
        budget: Option<u32>,
        lead: &[TokenId],
        direct: &[TokenId],
    ) -> AfterReasoning {
        let tokens = ReasoningTokens {
            open: vec![1, 2],
            close: vec![3, 4],
            lead: lead.to_vec(),
            direct: direct.to_vec(),
        };
        AfterReasoning { tokens, is_open, budget, end_tokens: vec![9], answer: Arc::new(Fixed) }
    }

    fn allowed(constraint: &dyn TokenConstraint, output: &[TokenId]) -> Option<Vec<TokenId>> {
        let mut mask = TokenMask::new(60);
        constraint.mask(output, &mut mask).ok().map(|()| mask.tokens().collect())
    }

    #[test]
    fn a_grammar_begins_after_the_reasoning() {
        let free: Vec<TokenId> = (0..60).filter(|token| *token != 9).collect();
        let direct = constraint(false, None, &[], &[]);
        for (output, expected) in [
            (&[][..], vec![1, 50]),
            (&[1], vec![2]),
            (&[50], vec![51]),
            (&[50, 51], vec![9]),
            (&[1, 2], free.clone()),
            (&[1, 2, 50, 3, 7], free.clone()),
            (&[1, 2, 7, 3, 4], vec![50]),
            (&[1, 2, 3, 4, 50], vec![51]),
        ] {
            assert_eq!(allowed(&direct, output).as_ref(), Some(&expected), "{output:?}");
        }
        assert_eq!(allowed(&direct, &[7]), None);
        assert_eq!(allowed(&direct, &[1, 7]), None);
        let open = constraint(true, None, &[], &[]);
        assert_eq!(allowed(&open, &[]).as_ref(), Some(&free));
        assert_eq!(allowed(&open, &[8, 3, 4]), Some(vec![50]));
        let channels = constraint(false, None, &[30, 31], &[1, 31]);
        for (output, expected) in [
            (&[][..], vec![1]),
            (&[1], vec![2, 31]),
            (&[1, 31], vec![50]),
            (&[1, 2, 8, 3, 4], vec![30]),
            (&[1, 2, 8, 3, 4, 30], vec![31]),
            (&[1, 2, 8, 3, 4, 30, 31, 50], vec![51]),
        ] {
            assert_eq!(allowed(&channels, output), Some(expected), "{output:?}");
        }
        let mut forced = Vec::new();
        channels.forced(&[1, 2, 3, 4], &mut forced);
        assert_eq!(forced, [30, 31]);
    }

    /// A tokenizer with single bytes and, from 256 on, the control tokens of gpt-oss.
    fn harmony() -> Tokenizer {
        let letters = (0x21..=0x7e_u8).map(|byte| (char::from(byte).to_string(), Value::from(byte)));
        let markers = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
        let added = markers.iter().zip(256..).map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        });
        let json = json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": letters.collect::<serde_json::Map<String, Value>>(), "merges": []},
        });
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None).expect("a tokenizer")
    }

    #[test]
    fn channels_are_opened_and_closed_by_control_tokens() {
        let tokenizer = harmony();
        let format = AnswerFormat::new(None, Some(ReasoningFormat::Harmony), &tokenizer);
        let text = |text: &str| text.bytes().map(TokenId::from).collect::<Vec<_>>();
        let answer = [vec![257], text("final"), vec![258]].concat();
        let tokens = |calls| ReasoningTokens::new(&format, ReasoningFormat::Harmony, &tokenizer, calls);
        let expected = ReasoningTokens {
            open: [vec![257], text("analysis"), vec![258]].concat(),
            close: vec![259],
            lead: [vec![256], text("assistant"), answer.clone()].concat(),
            direct: answer,
        };
        assert_eq!(tokens(false), Some(expected.clone()));
        let lead = [vec![256], text("assistant")].concat();
        assert_eq!(tokens(true), Some(ReasoningTokens { lead, direct: Vec::new(), ..expected }));
    }

    #[test]
    fn reasoning_is_closed_when_its_tokens_are_used_up() {
        let bounded = constraint(false, Some(2), &[], &[]);
        assert_eq!(allowed(&bounded, &[1, 2, 7]).map(|tokens| tokens.len()), Some(59));
        assert_eq!(allowed(&bounded, &[1, 2, 7, 7]), Some(vec![3]));
        assert_eq!(allowed(&bounded, &[1, 2, 7, 7, 3]), Some(vec![4]));
        assert_eq!(allowed(&bounded, &[1, 2, 7, 7, 3, 4]), Some(vec![50]));
        assert_eq!(allowed(&constraint(true, Some(0), &[], &[]), &[]), Some(vec![3]));
        let free = BoundedReasoning(ThinkingBudget::new(1, vec![1, 2], vec![3, 4], &[], false));
        assert_eq!(allowed(&free, &[7, 7, 7]).map(|tokens| tokens.len()), Some(60));
        assert_eq!(allowed(&free, &[1, 2, 7]), Some(vec![3]));
        assert_eq!(allowed(&free, &[1, 2, 7, 3, 4, 7, 7]).map(|tokens| tokens.len()), Some(60));
    }
}
