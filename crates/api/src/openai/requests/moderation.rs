//! The body and the answer of `POST /v1/moderations`, in OpenAI's form. Does not know rules.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::ApiError;
use crate::field::Kind::{Custom, ModelName};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{JsonType, Node};

/// Maximum number of texts of a request.
const MAX_INPUTS: usize = 1_024;
const TEXT: Shape = Shape::Text(usize::MAX);

/// A checked moderation request.
#[derive(Debug, Clone, Default)]
pub struct ModerationRequest {
    /// Model name in the request, repeated in the answer.
    pub model: Option<String>,
    /// Texts, at least one.
    pub inputs: Vec<String>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of `POST /v1/moderations`.
pub const MODERATION_FIELDS: &[Field<ModerationRequest>] = &[
    field(
        "model",
        ModelName(|r| &mut r.model),
        "Accepted and named in the answer: the operator's rules decide.",
    ),
    field("input", Custom(Shape::AnyOf(&[TEXT, Shape::Array(MAX_INPUTS, &TEXT)]), read_input), "The texts."),
];

fn read_input(r: &mut ModerationRequest, node: &Node<'_, '_>, _: &ReadOptions) -> Result<(), ApiError> {
    r.inputs = match node.json_type() {
        JsonType::String => vec![node.string(usize::MAX)?.into_owned()],
        _ => {
            let mut inputs = Vec::new();
            node.elements(MAX_INPUTS, |_, text| {
                inputs.push(text.string(usize::MAX)?.into_owned());
                Ok(())
            })?;
            inputs
        }
    };
    Ok(())
}

impl ModerationRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut request = Self::default();
        let mut bound = Bound { fields: MODERATION_FIELDS, target: &mut request };
        let ignored = read_body(body, &mut [&mut bound], options)?;
        if request.inputs.is_empty() {
            return Err(ApiError::missing_required_parameter("input"));
        }
        Ok(Self { ignored, ..request })
    }
}

/// The answer of `POST /v1/moderations`.
#[derive(Debug, Serialize)]
pub struct ModerationResponse<'a> {
    /// Unique id of the answer.
    pub id: String,
    /// Model name in the request.
    pub model: &'a str,
    /// Results, one for each text.
    pub results: Vec<ModerationResult<'a>>,
}

/// The result for a text.
#[derive(Debug, Serialize)]
pub struct ModerationResult<'a> {
    /// Whether the text falls in any category.
    pub flagged: bool,
    /// For each category, whether the text falls in it.
    pub categories: BTreeMap<&'a str, bool>,
    /// For each category, a score of 0 or 1: rules either match or do not.
    pub category_scores: BTreeMap<&'a str, f32>,
}
