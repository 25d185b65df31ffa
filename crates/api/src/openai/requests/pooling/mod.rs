//! The bodies of embeddings, reranking, scoring and classification, in the forms of OpenAI, Jina and vLLM.
//! Does not compute vectors.

use super::completion::read_prompts;
use super::generation_values::TOKENS;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Integer, ModelName, Text};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{JsonType, Node};
use crate::spec::Prompt;

/// Maximum number of texts of a request, as in OpenAI's API.
pub const MAX_INPUTS: usize = 2048;
/// Maximum number of dimensions that a client can request.
const MAX_DIMENSIONS: i64 = 1 << 20;

/// Parameters that all four endpoints share.
#[derive(Debug, Clone, Default)]
pub struct PoolingOptions {
    /// Name of the model; `None`: the only served one.
    pub model: Option<String>,
    /// Whether the tokenizer adds its special tokens to texts; default true.
    pub add_special_tokens: Option<bool>,
    /// Truncates longer texts to this many tokens; -1: to the model's maximum. `None`: longer texts are
    /// refused.
    pub truncate_prompt_tokens: Option<i64>,
    /// Whether scores and classes are probabilities instead of logits; default true.
    pub use_activation: Option<bool>,
    /// End user of the request.
    pub user: Option<String>,
}

/// The parameters that all four endpoints share.
pub const POOLING_FIELDS: &[Field<PoolingOptions>] = &[
    field("model", ModelName(|o| &mut o.model), "The model."),
    field(
        "add_special_tokens",
        Boolean(|o| &mut o.add_special_tokens),
        "Let the tokenizer put its special tokens around texts; true unless said.",
    ),
    field(
        "truncate_prompt_tokens",
        Integer(-1, i32::MAX as i64, |o| &mut o.truncate_prompt_tokens),
        "Cut longer texts to this many tokens, special tokens included; -1: to what the model takes. Without it they are refused.",
    ),
    field(
        "use_activation",
        Boolean(|o| &mut o.use_activation),
        "Give probabilities instead of logits; true unless said.",
    ),
    field("user", Text(512, |o| &mut o.user), "A name for who asks, for limits and the log."),
];

/// Encoding of embeddings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// The bytes of 32-bit floats, little-endian, in base64.
    Base64,
}

/// A checked request for embeddings.
#[derive(Debug, Clone, Default)]
pub struct EmbeddingRequest {
    /// Parameters that all four endpoints share.
    pub options: PoolingOptions,
    /// Texts, at least one.
    pub input: Vec<Prompt>,
    /// Encoding of the embeddings.
    pub encoding_format: EncodingFormat,
    /// Number of elements of each embedding; the shortened vector is normalized again. `None`: all
    /// elements.
    pub dimensions: Option<i64>,
    /// Name of the configured prompt that is put before each text.
    pub prompt_name: Option<String>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

const INPUT_SHAPE: Shape = Shape::AnyOf(&[
    Shape::Text(usize::MAX),
    Shape::Array(MAX_INPUTS, &Shape::Text(usize::MAX)),
    TOKENS,
    Shape::Array(MAX_INPUTS, &TOKENS),
]);

/// The parameters that only embeddings have.
pub const EMBEDDING_FIELDS: &[Field<EmbeddingRequest>] = &[
    field(
        "input",
        Custom(INPUT_SHAPE, |r, node, _| {
            r.input = read_inputs(node)?;
            Ok(())
        }),
        "Text, token ids, or a list of either.",
    ),
    field(
        "encoding_format",
        Custom(Shape::Choice(&["float", "base64"]), |r, node, _| {
            let formats = [EncodingFormat::Float, EncodingFormat::Base64];
            r.encoding_format = formats[node.one_of(&["float", "base64"])?];
            Ok(())
        }),
        "Lists of numbers, or the bytes of 32-bit floats in base64.",
    ),
    field(
        "dimensions",
        Integer(1, MAX_DIMENSIONS, |r| &mut r.dimensions),
        "Give only so many elements of each embedding, divided by their length again.",
    ),
    field(
        "prompt_name",
        Text(512, |r| &mut r.prompt_name),
        "The prompt of the model that is put before each text; the model's default one unless said.",
    ),
];

impl EmbeddingRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (mut request, mut shared) = (Self::default(), PoolingOptions::default());
        let ignored = read(body, options, &mut shared, EMBEDDING_FIELDS, &mut request)?;
        if request.input.is_empty() {
            return Err(ApiError::missing_required_parameter("input"));
        }
        Ok(Self { options: shared, ignored, ..request })
    }
}

/// A checked request to score pairs of texts, of `/score` or reranking.
#[derive(Debug, Clone, Default)]
pub struct PairsRequest {
    /// Parameters that all four endpoints share.
    pub options: PoolingOptions,
    /// First texts of the pairs: one, or one for each second text.
    pub first: Vec<Prompt>,
    /// Second texts of the pairs.
    pub second: Vec<Prompt>,
    /// Number of best results to return; `None`: all.
    pub top_n: Option<i64>,
    /// Whether results include their documents; default true.
    pub return_documents: Option<bool>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters that only reranking has.
pub const RERANK_FIELDS: &[Field<PairsRequest>] = &[
    field(
        "query",
        Custom(Shape::Text(usize::MAX), |r, node, _| {
            r.first = vec![Prompt::Text(node.string(usize::MAX)?.into_owned())];
            Ok(())
        }),
        "What documents are compared with.",
    ),
    field(
        "documents",
        Custom(
            Shape::Array(MAX_INPUTS, &Shape::AnyOf(&[Shape::Text(usize::MAX), Shape::Object])),
            |r, node, _| {
                r.second = read_documents(node)?;
                Ok(())
            },
        ),
        "Texts, or objects with a text.",
    ),
    field(
        "top_n",
        Integer(0, i32::MAX as i64, |r| &mut r.top_n),
        "Give only so many results, the best first; 0: all.",
    ),
    field(
        "return_documents",
        Boolean(|r| &mut r.return_documents),
        "Give documents back with their results; true unless said.",
    ),
];

/// The parameters that only scoring has.
pub const SCORE_FIELDS: &[Field<PairsRequest>] = &[
    field(
        "text_1",
        Custom(INPUT_SHAPE, |r, node, _| {
            r.first = read_prompts(node, MAX_INPUTS)?;
            Ok(())
        }),
        "One text, or as many as in text_2.",
    ),
    field(
        "text_2",
        Custom(INPUT_SHAPE, |r, node, _| {
            r.second = read_prompts(node, MAX_INPUTS)?;
            Ok(())
        }),
        "The texts that it is compared with.",
    ),
];

impl PairsRequest {
    /// Reads and checks the body of a reranking request.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse_rerank(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        Self::parse(body, options, RERANK_FIELDS, ["query", "documents"])
    }

    /// Reads and checks the body of a scoring request.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse_score(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let request = Self::parse(body, options, SCORE_FIELDS, ["text_1", "text_2"])?;
        if request.first.len() != 1 && request.first.len() != request.second.len() {
            let reason = "It must be one text, or as many as text_2 has.";
            return Err(ApiError::invalid_value("text_1", reason));
        }
        Ok(request)
    }

    fn parse(
        body: &[u8],
        options: &ReadOptions,
        fields: &'static [Field<Self>],
        names: [&'static str; 2],
    ) -> Result<Self, ApiError> {
        let (mut request, mut shared) = (Self::default(), PoolingOptions::default());
        let ignored = read(body, options, &mut shared, fields, &mut request)?;
        for (texts, name) in [&request.first, &request.second].into_iter().zip(names) {
            if texts.is_empty() {
                return Err(ApiError::missing_required_parameter(name));
            }
        }
        Ok(Self { options: shared, ignored, ..request })
    }
}

/// A checked request to classify texts.
#[derive(Debug, Clone, Default)]
pub struct ClassifyRequest {
    /// Parameters that all four endpoints share.
    pub options: PoolingOptions,
    /// Texts, at least one.
    pub input: Vec<Prompt>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters that only classification has.
pub const CLASSIFY_FIELDS: &[Field<ClassifyRequest>] = &[field(
    "input",
    Custom(INPUT_SHAPE, |r, node, _| {
        r.input = read_inputs(node)?;
        Ok(())
    }),
    "Text, token ids, or a list of either.",
)];

impl ClassifyRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (mut request, mut shared) = (Self::default(), PoolingOptions::default());
        let ignored = read(body, options, &mut shared, CLASSIFY_FIELDS, &mut request)?;
        if request.input.is_empty() {
            return Err(ApiError::missing_required_parameter("input"));
        }
        Ok(Self { options: shared, ignored, ..request })
    }
}

/// Reads a body with the shared parameters and the endpoint's own.
fn read<T>(
    body: &[u8],
    options: &ReadOptions,
    shared: &mut PoolingOptions,
    fields: &'static [Field<T>],
    own: &mut T,
) -> Result<IgnoredParameters, ApiError> {
    read_body(
        body,
        &mut [&mut Bound { fields, target: own }, &mut Bound { fields: POOLING_FIELDS, target: shared }],
        options,
    )
}

/// Reads texts and token ids, none of them empty: whether an empty text has a vector would depend on the
/// model.
fn read_inputs(node: &Node<'_, '_>) -> Result<Vec<Prompt>, ApiError> {
    let inputs = read_prompts(node, MAX_INPUTS)?;
    let is_list = node.json_type() == JsonType::Array;
    match inputs.iter().position(is_empty_text) {
        Some(idx) if is_list => Err(empty_text(format!("{}[{idx}]", node.path()))),
        Some(_) => Err(empty_text(node.path())),
        None => Ok(inputs),
    }
}

/// Whether a prompt is an empty text.
pub fn is_empty_text(prompt: &Prompt) -> bool {
    matches!(prompt, Prompt::Text(text) if text.is_empty())
}

/// The error for an empty text.
pub fn empty_text(param: impl Into<String>) -> ApiError {
    ApiError::invalid_value(param, "The text must not be empty.")
}

/// Reads texts, or objects with a text.
fn read_documents(node: &Node<'_, '_>) -> Result<Vec<Prompt>, ApiError> {
    let mut documents = Vec::new();
    node.elements(MAX_INPUTS, |_, element| {
        let mut text = None;
        if element.json_type() == JsonType::Object {
            element.known_members(&["text"], |_, value| {
                text = Some(value.string(usize::MAX)?.into_owned());
                Ok(())
            })?;
        } else {
            text = Some(element.string(usize::MAX)?.into_owned());
        }
        let text = text.ok_or_else(|| ApiError::missing_required_parameter(element.path_of("text")))?;
        documents.push(Prompt::Text(text));
        Ok(())
    })?;
    if documents.is_empty() { Err(ApiError::empty_array(node.path())) } else { Ok(documents) }
}
