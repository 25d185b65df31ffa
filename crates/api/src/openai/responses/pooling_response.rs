//! Answers with embeddings, scores and classes, in the forms of OpenAI, Jina and vLLM. Does not compute
//! them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::openai::pooling::EncodingFormat;

/// An answer with a list of results.
#[derive(Debug, Serialize)]
pub struct PooledList<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    data: Vec<T>,
    model: &'a str,
    usage: PooledUsage,
}

/// Token counts of a request without output tokens.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PooledUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl PooledUsage {
    /// Creates the usage of a request with this number of tokens.
    pub fn new(prompt_tokens: u64) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }
}

impl<'a, T> PooledList<'a, T> {
    /// Creates a list in OpenAI's form for embeddings.
    pub fn new(model: &'a str, data: Vec<T>, usage: PooledUsage) -> Self {
        Self { id: None, object: "list", created: None, data, model, usage }
    }

    /// Adds an id and the time in seconds since 1970, as in vLLM's form for scores and classes.
    pub fn with_id(self, prefix: &str, created: u64) -> Self {
        Self { id: Some(random_id(prefix)), created: Some(created), ..self }
    }
}

fn random_id(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// An embedding with its index.
#[derive(Debug, Serialize)]
pub struct Embedding<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

impl<'a> Embedding<'a> {
    /// Creates the embedding of text `index`.
    pub fn new(index: usize, elements: &'a [f32], format: EncodingFormat) -> Self {
        Self { object: "embedding", index, embedding: Vector { elements, format } }
    }
}

#[derive(Debug)]
struct Vector<'a> {
    elements: &'a [f32],
    format: EncodingFormat,
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.format {
            EncodingFormat::Float => serializer.collect_seq(self.elements),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = self.elements.iter().flat_map(|x| x.to_le_bytes()).collect();
                serializer.serialize_str(&STANDARD.encode(bytes))
            }
        }
    }
}

/// Score of one pair of texts.
#[derive(Debug, Serialize)]
pub struct Score {
    index: usize,
    object: &'static str,
    score: f32,
}

impl Score {
    /// Creates the score of pair `index`.
    pub fn new(index: usize, score: f32) -> Self {
        Self { index, object: "score", score }
    }
}

/// Class of one text.
#[derive(Debug, Serialize)]
pub struct Classification<'a> {
    index: usize,
    label: &'a str,
    probs: &'a [f32],
    num_classes: usize,
}

impl<'a> Classification<'a> {
    /// Creates the classification of text `index`: the likeliest label, and the probabilities of all.
    pub fn new(index: usize, label: &'a str, probs: &'a [f32]) -> Self {
        Self { index, label, probs, num_classes: probs.len() }
    }
}

/// The answer of reranking.
#[derive(Debug, Serialize)]
pub struct Reranked<'a> {
    id: String,
    model: &'a str,
    usage: PooledUsage,
    results: Vec<RerankedDocument<'a>>,
}

impl<'a> Reranked<'a> {
    /// Creates the answer with documents in their new order.
    pub fn new(model: &'a str, results: Vec<RerankedDocument<'a>>, usage: PooledUsage) -> Self {
        Self { id: random_id("rerank"), model, usage, results }
    }
}

/// A document with its score.
#[derive(Debug, Serialize)]
pub struct RerankedDocument<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText<'a>>,
    relevance_score: f32,
}

#[derive(Debug, Serialize)]
struct DocumentText<'a> {
    text: &'a str,
}

impl<'a> RerankedDocument<'a> {
    /// Creates the result of document `index`, with its text if requested.
    pub fn new(index: usize, text: Option<&'a str>, relevance_score: f32) -> Self {
        Self { index, document: text.map(|text| DocumentText { text }), relevance_score }
    }
}
