//! What the form of a request's outputs is held to: its own constraint or that of its tools, after the reasoning, which may have
//! a bound of its own. Does not know how constraints are compiled and evaluated.

mod after_reasoning;
mod call_constraint;

use std::sync::Arc;

use throng_core::constraint::TokenConstraint;
use throng_text::ThinkingBudget;
use throng_text::grammar::ConstraintSpec;

use crate::openai::{ApiError, ChatRequest, OutputConstraint};
use crate::served_model::ModelEntry;
use after_reasoning::{AfterReasoning, BoundedReasoning, ReasoningTokens};

pub(super) use call_constraint::output_constraint;

/// The constraint of a request of `n` continuations.
///
/// # Errors
/// 400 for a constraint that cannot be used.
pub(super) fn constraint(
    model: &ModelEntry,
    asked: &OutputConstraint,
    n: u32,
) -> Result<Arc<dyn TokenConstraint>, ApiError> {
    let grammars = model
        .grammars
        .as_ref()
        .ok_or_else(|| ApiError::unsupported_by_model(&asked.param, "This model has no tokenizer."))?;
    grammars.constraint(asked, n)
}

/// What a chat's answers are held to: a constraint begins after the reasoning, which has a bound of its own.
///
/// # Errors
/// 400 for a constraint that cannot be used, and for a bound on the reasoning of a model that has none.
pub(super) fn chat_constraint(
    model: &ModelEntry,
    request: &ChatRequest,
    asked: Option<&OutputConstraint>,
    is_open: bool,
) -> Result<Option<Arc<dyn TokenConstraint>>, ApiError> {
    let answer = asked.map(|asked| constraint(model, asked, request.generation.n_generated())).transpose()?;
    let budget = request.generation.thinking_budget();
    let format = &model.served.answer_format;
    let Some((reasoning, tokenizer)) = format.reasoning.zip(model.served.tokenizer.as_ref()) else {
        if budget.is_some() {
            let reason = "This model's chat template has no known format of reasoning.";
            return Err(ApiError::unsupported_by_model("thinking_token_budget", reason));
        }
        return Ok(answer);
    };
    let continues_answer = request.conversation.continues_final_message() && !is_open;
    if continues_answer || (answer.is_none() && budget.is_none()) {
        return Ok(answer);
    }
    let calls = asked.is_some_and(|asked| matches!(asked.spec, ConstraintSpec::ToolCalls(_)));
    let tokens = ReasoningTokens::new(format, reasoning, tokenizer, calls).ok_or_else(|| {
        let reason = "The tokenizer of this model cannot write the marks of its reasoning.";
        ApiError::unsupported_by_model("response_format", reason)
    })?;
    Ok(match (answer, budget) {
        (Some(answer), budget) => {
            let end_tokens = model.served.eos_token_ids.clone();
            Some(Arc::new(AfterReasoning { tokens, is_open, budget, end_tokens, answer }))
        }
        (None, Some(n)) => {
            let budget = ThinkingBudget::new(n, tokens.open, tokens.close, &[], is_open);
            Some(Arc::new(BoundedReasoning(budget)))
        }
        (None, None) => None,
    })
}
