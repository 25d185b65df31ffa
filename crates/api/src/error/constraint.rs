//! Errors of constraints on outputs. Does not know how they are enforced.

use throng_text::grammar::{ConstraintSpec, GrammarError};

use super::{ApiError, echo};

/// Parameter and kind of a constraint, for errors during generation.
#[derive(Debug, Clone)]
pub struct ConstraintParam {
    param: String,
    codes: Codes,
}

impl ConstraintParam {
    /// Creates it for a constraint of the parameter `param`.
    pub fn new(param: &str, spec: &ConstraintSpec) -> Self {
        Self { param: param.to_owned(), codes: Codes::of(spec) }
    }
}

/// Error codes of one kind of constraint.
#[derive(Debug, Clone)]
struct Codes {
    invalid: &'static str,
    too_complex: &'static str,
    unsupported: &'static str,
}

impl Codes {
    fn of(spec: &ConstraintSpec) -> Self {
        let (invalid, too_complex, unsupported) = match spec {
            ConstraintSpec::JsonObject | ConstraintSpec::JsonSchema(_) => {
                ("invalid_json_schema", "schema_too_complex", "unsupported_json_schema")
            }
            ConstraintSpec::Regex(_) => ("invalid_regex", "regex_too_complex", "unsupported_regex"),
            ConstraintSpec::Choice(_) => ("invalid_choice", "choice_too_complex", "unsupported_choice"),
            ConstraintSpec::Lark(_) | ConstraintSpec::Gbnf(_) => {
                ("invalid_grammar", "grammar_too_complex", "unsupported_grammar")
            }
            ConstraintSpec::ToolCalls(_) => {
                ("invalid_function_parameters", "schema_too_complex", "unsupported_json_schema")
            }
            ConstraintSpec::StructuralTag(_) => {
                ("invalid_structural_tag", "structural_tag_too_complex", "unsupported_structural_tag")
            }
        };
        Self { invalid, too_complex, unsupported }
    }
}

impl ApiError {
    /// A constraint of the parameter `param` cannot be used. The same request would always fail, even
    /// because of a fault of the server, so the status is 400.
    pub fn refused_constraint(param: &str, spec: &ConstraintSpec, error: &GrammarError) -> Self {
        let codes = Codes::of(spec);
        let code = match error {
            GrammarError::NoEndToken => {
                let reason = "This model has no token that ends an output, so it cannot be constrained.";
                return Self::unsupported_by_model(param, reason);
            }
            GrammarError::Invalid(_) | GrammarError::Unsatisfiable(_) | GrammarError::Mismatch(_) => {
                codes.invalid
            }
            GrammarError::TooComplex(_) | GrammarError::Internal(_) => codes.too_complex,
            GrammarError::UnsupportedKeyword { .. } | GrammarError::Unsupported(_) => codes.unsupported,
        };
        let reason: String = error.to_string().chars().filter(|c| !c.is_control()).take(400).collect();
        Self::bad_request(code, format!("Invalid '{}': {reason}.", echo(param))).with_param(param)
    }

    /// The constraint and `bad_words`, `allowed_token_ids` or similar parameters together allow no token.
    pub fn nothing_allowed(constraint: Option<&ConstraintParam>) -> Self {
        let Some(ConstraintParam { param, .. }) = constraint else {
            let message = "The sampling parameters of the request leave no token to choose.";
            return Self::bad_request("no_token_allowed", message.to_owned());
        };
        let message = format!(
            "'{}' and the other parameters of the request ('bad_words', 'allowed_token_ids', 'logit_bias', \
             'min_tokens') together leave no token to choose.",
            echo(param)
        );
        Self::bad_request("no_token_allowed", message).with_param(param)
    }

    /// A constraint exceeded its limits during generation.
    pub fn constraint_too_complex(constraint: Option<&ConstraintParam>) -> Self {
        let (param, code) = match constraint {
            Some(ConstraintParam { param, codes }) => (param.as_str(), codes.too_complex),
            None => ("structured_outputs", "grammar_too_complex"),
        };
        let reason = "the output reached a place at which the constraint is too complex to evaluate";
        Self::bad_request(code, format!("Invalid '{}': {reason}.", echo(param))).with_param(param)
    }
}
