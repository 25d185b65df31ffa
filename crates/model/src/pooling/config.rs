//! Kinds of pooling of a sequence's outputs, and the layers of a head, as values. Does not know files and
//! tensors.

use std::collections::BTreeMap;

/// Pooling of a sequence's outputs, and the meaning of the vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolingConfig {
    /// Outputs that are pooled.
    pub pooling: Pooling,
    /// Whether the vector is divided by its length.
    pub normalizes: bool,
    /// Maximum number of tokens of a text by the model's files; the context of the model bounds it too.
    pub max_tokens: Option<usize>,
    /// Meaning of the model's vector.
    pub output: PoolingOutput,
    /// Prefixes of texts, by name.
    pub prompts: Prompts,
}

/// Prompts that precede texts, as in the model's training, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompts {
    /// All prompts by name.
    pub by_name: BTreeMap<String, String>,
    /// Name of the default prompt.
    pub default: Option<String>,
}

/// Outputs of a sequence that are pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The output of the first token.
    First,
    /// The output of the last token.
    Last,
    /// The mean of all outputs.
    Mean,
}

/// Meaning of a pooled vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolingOutput {
    /// An embedding of a text.
    Embedding,
    /// A logit for each label.
    Labels {
        /// Names of the labels.
        names: Vec<String>,
        /// Probabilities by logits.
        activation: ClassifierActivation,
    },
}

/// Probabilities by logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassifierActivation {
    /// Each alone: one label, or several that do not exclude each other.
    Sigmoid,
    /// Softmax over all logits.
    Softmax,
    /// No activation: a cross-encoder's logit is its score.
    Identity,
}

/// A layer of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeadLayer {
    /// The tensor without its ending.
    pub(crate) name: String,
    pub(crate) activation: HeadActivation,
    /// A layer norm after it, without its ending.
    pub(crate) norm: Option<String>,
}

/// The activation of a layer of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadActivation {
    Identity,
    Tanh,
    Gelu,
}

impl HeadLayer {
    pub(crate) fn new(name: &str, activation: HeadActivation) -> Self {
        Self { name: name.to_owned(), activation, norm: None }
    }
}
