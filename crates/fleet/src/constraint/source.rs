//! The source that a request's constraint is compiled from. Unlike the compiled constraint it can be sent
//! to other processes. Does not know requests and messages.

use std::sync::Arc;

use throng_core::constraint::TokenConstraint;
use throng_core::request::TokenId;
use throng_text::ThinkingBudget;
use throng_text::grammar::{ConstraintSpec, GrammarError};

use super::ModelGrammars;
use super::after_reasoning::{AfterReasoning, BoundedReasoning, ReasoningTokens};

/// Constraint on a request's outputs, compiled and as its source.
#[derive(Debug, Clone)]
pub struct OutputForm {
    /// Compiled form, for replicas of this process.
    pub compiled: Arc<dyn TokenConstraint>,
    /// Source of the constraint, for replicas in other processes; `None` without a constraint.
    pub source: Option<Arc<ConstraintSource>>,
}

/// Source of a constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstraintSource {
    /// Constraint on the answer; `None`: only the reasoning is limited.
    pub form: Option<ConstraintSpec>,
    /// Reasoning that may precede the answer; `None`: the whole output is the answer.
    pub reasoning: Option<ReasoningBefore>,
}

/// Reasoning before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningBefore {
    /// Tokens around the reasoning.
    pub tokens: ReasoningTokens,
    /// Whether the prompt ends inside the reasoning.
    pub is_open: bool,
    /// Maximum number of reasoning tokens.
    pub budget: Option<u32>,
}

impl ConstraintSource {
    /// Compiles the source for a request with `n` continuations; `None` if it has no restrictions. Takes as
    /// long as [`ModelGrammars::constraint`].
    ///
    /// # Errors
    /// When the constraint cannot be enforced.
    pub fn compile(
        &self,
        grammars: &ModelGrammars,
        end_tokens: &[TokenId],
        n: u32,
    ) -> Result<Option<Arc<dyn TokenConstraint>>, GrammarError> {
        let answer = self.form.as_ref().map(|form| grammars.constraint(form, n)).transpose()?;
        let Some(ReasoningBefore { tokens, is_open, budget }) = self.reasoning.clone() else {
            return Ok(answer);
        };
        Ok(match (answer, budget) {
            (Some(answer), budget) => {
                let end_tokens = end_tokens.to_vec();
                Some(Arc::new(AfterReasoning { tokens, is_open, budget, end_tokens, answer }))
            }
            (None, Some(n_tokens)) => {
                let budget = ThinkingBudget::new(n_tokens, tokens.open, tokens.close, &[], is_open);
                Some(Arc::new(BoundedReasoning(budget)))
            }
            (None, None) => None,
        })
    }

    /// Upper estimate of the bytes held: a tree of values takes several times the bytes of its text.
    pub fn held_bytes(&self) -> usize {
        const TREE_FACTOR: usize = 16;
        self.form.as_ref().map_or(0, |form| form.n_bytes() * TREE_FACTOR)
    }
}
