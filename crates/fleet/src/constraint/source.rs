//! What a request's outputs are held to, as what it is compiled from: the compiled constraint cannot leave
//! its process, this can. Does not know how it is asked for and sent.

use std::sync::Arc;

use throng_core::constraint::TokenConstraint;
use throng_core::request::TokenId;
use throng_text::ThinkingBudget;
use throng_text::grammar::{ConstraintSpec, GrammarError};

use super::ModelGrammars;
use super::after_reasoning::{AfterReasoning, BoundedReasoning, ReasoningTokens};

/// Constraint of a request's outputs, compiled and as its source.
#[derive(Debug, Clone)]
pub struct OutputForm {
    /// Compiled form, for replicas of this process.
    pub compiled: Arc<dyn TokenConstraint>,
    /// Source, for replicas of other processes; `None` where there are none.
    pub source: Option<Arc<ConstraintSource>>,
}

/// Source that a constraint is compiled from.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstraintSource {
    /// The form of the answer; `None`: only the reasoning is bounded.
    pub form: Option<ConstraintSpec>,
    /// The reasoning that may stand before the answer; `None`: the whole output is the answer.
    pub reasoning: Option<ReasoningBefore>,
}

/// The reasoning before an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningBefore {
    /// The tokens around it.
    pub tokens: ReasoningTokens,
    /// The prompt ends inside it.
    pub is_open: bool,
    /// Its most tokens.
    pub budget: Option<u32>,
}

impl ConstraintSource {
    /// Compiles it for a request of `n` continuations; `None` if it restricts nothing. Takes as long as
    /// [`ModelGrammars::constraint`].
    ///
    /// # Errors
    /// When the form cannot be enforced.
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

    /// Bytes that it holds, at most about: a tree of values takes some times its text.
    pub fn held_bytes(&self) -> usize {
        const TREE_FACTOR: usize = 16;
        self.form.as_ref().map_or(0, |form| form.n_bytes() * TREE_FACTOR)
    }
}
