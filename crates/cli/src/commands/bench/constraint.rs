//! The form that `throng bench --constraint` holds outputs to. Does not know what is measured.

use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;
use throng_core::constraint::TokenConstraint;
use throng_fleet::constraint::ModelGrammars;
use throng_text::grammar::ConstraintSpec;

use crate::args::BenchConstraint;
use crate::running::RunningModel;

/// Objects in the list: no output ends before it has all its tokens.
const MIN_OBJECTS: u32 = 2000;

/// Makes the constraint of each request, as the server does.
pub struct Form {
    grammars: ModelGrammars,
    spec: ConstraintSpec,
}

impl Form {
    /// Prepares the tokenizer and compiles the form, so that no measured request waits for that.
    ///
    /// # Errors
    /// For a model without a tokenizer, and for one that cannot be constrained.
    pub fn new(running: &RunningModel, form: BenchConstraint) -> Result<Self> {
        let tokenizer = running.tokenizer.clone().context("--constraint: this model has no tokenizer")?;
        let spec = match form {
            BenchConstraint::Json => ConstraintSpec::JsonSchema(
                json!({"type": "array", "items": {"type": "object"}, "minItems": MIN_OBJECTS}),
            ),
        };
        let form = Self { grammars: ModelGrammars::new(tokenizer, running.eos_token_ids()), spec };
        form.of_request()?;
        Ok(form)
    }

    /// The constraint of one request.
    ///
    /// # Errors
    /// Errors of [`Self::new`].
    pub fn of_request(&self) -> Result<Arc<dyn TokenConstraint>> {
        self.grammars.constraint(&self.spec, 1).context("--constraint")
    }
}
