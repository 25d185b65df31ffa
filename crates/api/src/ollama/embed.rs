//! The bodies of `POST /api/embed` and `POST /api/embeddings`, and their answers.

use std::time::Duration;

use serde::Serialize;

use super::stay::{KEEP_ALIVE, KEEP_ALIVE_SHAPE, Stay};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Ignored, Integer, ModelName};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{JsonType, Node};
use crate::spec::Prompt;

/// Maximum number of texts of a request.
const MAX_INPUTS: usize = 2048;
/// Maximum number of dimensions that a client can request.
const MAX_DIMENSIONS: i64 = 1 << 20;

/// A checked request for embeddings.
#[derive(Debug, Clone, Default)]
pub struct EmbedRequest {
    /// Name of the model; `None`: the only served one.
    pub model: Option<String>,
    /// Texts, at least one; none is empty.
    pub input: Vec<Prompt>,
    /// Whether to truncate texts that exceed the model's context; default true.
    pub truncate: Option<bool>,
    /// Number of elements of each embedding in the answer; `None`: all.
    pub dimensions: Option<i64>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of both endpoints.
pub const EMBED_COMMON_FIELDS: &[Field<Option<String>>] = &[
    field("model", ModelName(|model| model), "The model to use."),
    field("options", Ignored(Shape::Object), "Has no effect: embeddings are not sampled."),
    field("keep_alive", Custom(KEEP_ALIVE_SHAPE, |_, node, _| Stay::read(node).map(drop)), KEEP_ALIVE),
];

/// The parameters that only `POST /api/embed` has.
pub const EMBED_FIELDS: &[Field<EmbedRequest>] = &[
    field(
        "input",
        Custom(
            Shape::AnyOf(&[Shape::Text(usize::MAX), Shape::Array(MAX_INPUTS, &Shape::Text(usize::MAX))]),
            |r, node, _| {
                r.input = read_texts(node)?;
                Ok(())
            },
        ),
        "A text, or a list of texts.",
    ),
    field(
        "truncate",
        Boolean(|r| &mut r.truncate),
        "Cut texts that are longer than the model's context instead of refusing them; true unless said.",
    ),
    field(
        "dimensions",
        Integer(1, MAX_DIMENSIONS, |r| &mut r.dimensions),
        "Give only so many elements of each embedding, divided by their length again.",
    ),
];

/// The parameter that only `POST /api/embeddings`, the older endpoint, has.
pub const EMBEDDINGS_FIELDS: &[Field<EmbedRequest>] = &[field(
    "prompt",
    Custom(Shape::Text(usize::MAX), |r, node, _| {
        r.input = vec![read_text(node)?];
        Ok(())
    }),
    "The text.",
)];

impl EmbedRequest {
    /// Reads and checks the body of `POST /api/embed`.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        Self::read(body, EMBED_FIELDS, "input", options)
    }

    /// Reads and checks the body of `POST /api/embeddings`.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse_one(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        Self::read(body, EMBEDDINGS_FIELDS, "prompt", options)
    }

    fn read(
        body: &[u8],
        fields: &'static [Field<Self>],
        texts: &'static str,
        options: &ReadOptions,
    ) -> Result<Self, ApiError> {
        let (mut request, mut model) = (Self::default(), None);
        let ignored = read_body(
            body,
            &mut [
                &mut Bound { fields: EMBED_COMMON_FIELDS, target: &mut model },
                &mut Bound { fields, target: &mut request },
            ],
            options,
        )?;
        if request.input.is_empty() {
            return Err(ApiError::missing_required_parameter(texts));
        }
        Ok(Self { model, ignored, ..request })
    }
}

fn read_texts(node: &Node<'_, '_>) -> Result<Vec<Prompt>, ApiError> {
    match node.json_type() {
        JsonType::String => Ok(vec![read_text(node)?]),
        JsonType::Array => {
            let mut texts = Vec::new();
            node.elements(MAX_INPUTS, |_, element| {
                texts.push(read_text(&element)?);
                Ok(())
            })?;
            Ok(texts)
        }
        _ => Err(node.wrong_type("a string or an array of strings")),
    }
}

/// Reads a non-empty text: whether an empty text has an embedding would depend on the model.
fn read_text(node: &Node<'_, '_>) -> Result<Prompt, ApiError> {
    let text = node.string(usize::MAX)?;
    if text.is_empty() {
        return Err(ApiError::invalid_value(node.path(), "The text must not be empty."));
    }
    Ok(Prompt::Text(text.into_owned()))
}

/// The answer of `POST /api/embed`. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub struct EmbedAnswer<'a> {
    model: &'a str,
    embeddings: &'a [Vec<f32>],
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

impl<'a> EmbedAnswer<'a> {
    /// Creates the answer with these vectors, for `n_tokens` tokens in the time `took`.
    pub fn new(model: &'a str, embeddings: &'a [Vec<f32>], n_tokens: u64, took: Duration) -> Self {
        let total_duration = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        Self { model, embeddings, total_duration, load_duration: 0, prompt_eval_count: n_tokens }
    }
}

/// The answer of `POST /api/embeddings`.
#[derive(Debug, Serialize)]
pub struct EmbeddingAnswer<'a> {
    /// The embedding, one number for each element.
    pub embedding: &'a [f32],
}
