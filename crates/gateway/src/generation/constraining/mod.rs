//! The constraint on a request's outputs: its own or that of its tools, beginning after the reasoning,
//! which may be bounded. Does not compile and evaluate constraints.

mod call_constraint;

use std::sync::Arc;

use throng_fleet::constraint::{ConstraintSource, OutputForm, ReasoningBefore, ReasoningTokens};
use throng_text::grammar::ConstraintSpec;

use crate::served_model::ModelEntry;
use throng_api::ApiError;
use throng_api::spec::{ChatInput, GenerationOptions, OutputConstraint};

pub(super) use call_constraint::output_constraint;

/// The constraint of a request of `n` continuations.
///
/// # Errors
/// 400 for a constraint that cannot be used.
pub(super) fn constraint(
    model: &ModelEntry,
    asked: &OutputConstraint,
    n: u32,
) -> Result<Option<OutputForm>, ApiError> {
    compiled(model, Some(asked), None, n)
}

/// Constraint on a chat's answers: it begins after the reasoning, which has a bound of its own.
///
/// # Errors
/// 400 for a constraint that cannot be used, and for a bound on the reasoning of a model that has none.
pub(super) fn chat_constraint(
    model: &ModelEntry,
    options: &GenerationOptions,
    chat: &ChatInput,
    asked: Option<&OutputConstraint>,
    is_open: bool,
) -> Result<Option<OutputForm>, ApiError> {
    let n = options.n_generated();
    let budget = options.thinking_budget();
    let format = &model.served.answer_format;
    let Some((reasoning, tokenizer)) = format.reasoning.zip(model.served.tokenizer.as_ref()) else {
        let answer = compiled(model, asked, None, n)?;
        if budget.is_some() && !options.thinks_if_it_can {
            let reason = "This model's chat template has no known format of reasoning.";
            return Err(ApiError::unsupported_by_model("thinking_token_budget", reason));
        }
        return Ok(answer);
    };
    let continues_answer = chat.conversation.continues_final_message() && !is_open;
    if continues_answer || (asked.is_none() && budget.is_none()) {
        return compiled(model, asked, None, n);
    }
    let calls = asked.is_some_and(|asked| matches!(asked.spec, ConstraintSpec::ToolCalls(_)));
    let tokens = ReasoningTokens::new(format, reasoning, tokenizer, calls).ok_or_else(|| {
        let reason = "The tokenizer of this model cannot write the marks of its reasoning.";
        ApiError::unsupported_by_model("response_format", reason)
    })?;
    compiled(model, asked, Some(ReasoningBefore { tokens, is_open, budget }), n)
}

fn compiled(
    model: &ModelEntry,
    asked: Option<&OutputConstraint>,
    reasoning: Option<ReasoningBefore>,
    n: u32,
) -> Result<Option<OutputForm>, ApiError> {
    let source = ConstraintSource { form: asked.map(|asked| asked.spec.clone()), reasoning };
    let Some(grammars) = &model.grammars else {
        let unsupported = |asked: &OutputConstraint| {
            ApiError::unsupported_by_model(&asked.param, "This model has no tokenizer.")
        };
        return asked.map_or(Ok(None), |asked| Err(unsupported(asked)));
    };
    let compiled = source.compile(grammars, &model.served.eos_token_ids, n).map_err(|error| match asked {
        Some(asked) => ApiError::refused_constraint(&asked.param, &asked.spec, &error),
        None => ApiError::unsupported_by_model("thinking_token_budget", &error.to_string()),
    })?;
    let source = model.is_remote().then(|| Arc::new(source));
    Ok(compiled.map(|compiled| OutputForm { compiled, source }))
}
