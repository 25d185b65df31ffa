//! The constraint on outputs of `throng bench --constraint`. Does not know the measurements.

use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;
use throng_core::constraint::TokenConstraint;
use throng_fleet::constraint::ModelGrammars;
use throng_text::grammar::ConstraintSpec;

use crate::args::BenchConstraint;
use crate::running::RunningModel;

/// Minimum number of objects in the list, so that no output ends early.
const MIN_OBJECTS: u32 = 2000;

/// A grammar for all requests of a benchmark, compiled as the server does.
pub struct Form {
    grammars: ModelGrammars,
    spec: ConstraintSpec,
}

impl Form {
    /// Prepares the tokenizer and compiles the grammar before measurements start.
    ///
    /// # Errors
    /// When the model has no tokenizer or cannot be constrained.
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

    /// A constraint for one request.
    ///
    /// # Errors
    /// Errors of [`Self::new`].
    pub fn of_request(&self) -> Result<Arc<dyn TokenConstraint>> {
        self.grammars.constraint(&self.spec, 1).context("--constraint")
    }
}
