//! Meaning of a model's vectors, and their conversion into probabilities, shorter embeddings and
//! similarities. Does not know requests and the computation of vectors.

use std::collections::BTreeMap;

use throng_wire::Pooling;

use throng_api::ApiError;

/// Settings of a model that answers with vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingModel {
    /// Meaning of the model's vectors.
    pub output: PoolingOutput,
    /// Whether embeddings are divided by their length.
    pub normalizes: bool,
    /// Number of token segments that the model distinguishes; a token of segment `s` has the id `token + s
    /// * segment_stride`.
    pub n_segments: u32,
    /// See [`Self::n_segments`].
    pub segment_stride: u32,
    /// Named prefixes for texts.
    pub prompts: BTreeMap<String, String>,
    /// Name of the default prefix, if there is one.
    pub default_prompt: Option<String>,
}

/// Meaning of a model's vectors.
#[derive(Debug, Clone, PartialEq)]
pub enum PoolingOutput {
    /// The vector is an embedding of a text.
    Embedding,
    /// The vector has a logit for each label.
    Labels {
        /// Names of the labels.
        names: Vec<String>,
        /// Function from logits to scores.
        activation: LabelActivation,
    },
}

/// Function from logits of labels to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelActivation {
    /// Probabilities of each label alone.
    Sigmoid,
    /// Probabilities of all labels together.
    Softmax,
    /// No activation: logits are the scores.
    Identity,
}

impl From<PoolingModel> for Pooling {
    fn from(model: PoolingModel) -> Self {
        let PoolingModel { output, normalizes, n_segments, segment_stride, prompts, default_prompt } = model;
        let (labels, activation) = match output {
            PoolingOutput::Embedding => (None, LabelActivation::Sigmoid),
            PoolingOutput::Labels { names, activation } => (Some(names), activation),
        };
        let are_exclusive = activation == LabelActivation::Softmax;
        let are_logits = activation == LabelActivation::Identity;
        Self {
            labels,
            are_exclusive,
            are_logits,
            normalizes,
            n_segments,
            segment_stride,
            prompts,
            default_prompt,
        }
    }
}

impl From<Pooling> for PoolingModel {
    fn from(told: Pooling) -> Self {
        let Pooling {
            labels,
            are_exclusive,
            are_logits,
            normalizes,
            n_segments,
            segment_stride,
            prompts,
            default_prompt,
        } = told;
        let activation = match (are_logits, are_exclusive) {
            (true, _) => LabelActivation::Identity,
            (false, true) => LabelActivation::Softmax,
            (false, false) => LabelActivation::Sigmoid,
        };
        let output = match labels {
            None => PoolingOutput::Embedding,
            Some(names) => PoolingOutput::Labels { names, activation },
        };
        Self { output, normalizes, n_segments, segment_stride, prompts, default_prompt }
    }
}

impl PoolingModel {
    /// Prefix for each input: the one with that name, else the default one, else none.
    ///
    /// # Errors
    /// `invalid_value` if the model has no prefix with that name.
    pub(crate) fn prompt(&self, name: Option<&str>) -> Result<&str, ApiError> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok("") };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
            let reason = match names[..] {
                [] => "This model has no prompts.".to_owned(),
                _ => format!("The prompts of this model are {}.", names.join(", ")),
            };
            ApiError::invalid_value("prompt_name", reason)
        })
    }

    /// Turns logits into scores, in place.
    pub(crate) fn activate(&self, logits: &mut [f32]) {
        let PoolingOutput::Labels { activation, .. } = &self.output else { return };
        match activation {
            LabelActivation::Identity => return,
            LabelActivation::Sigmoid => {
                return logits.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
            }
            LabelActivation::Softmax => {}
        }
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        logits.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f32 = logits.iter().sum();
        logits.iter_mut().for_each(|x| *x /= sum);
    }
}

/// Keeps the first `n` elements of an embedding, divided by their length if the model does so.
pub(crate) fn shorten(embedding: &mut Vec<f32>, n: usize, normalizes: bool) {
    embedding.truncate(n);
    if normalizes {
        let length = embedding.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        embedding.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

/// The cosine of the angle between two embeddings.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-24)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_embedding_has_length_one_again_where_it_had() {
        let mut embedding = vec![0.6, 0.0, 0.8];
        shorten(&mut embedding, 2, true);
        assert_eq!(embedding, [1.0, 0.0]);
        let mut plain = vec![3.0, 4.0, 5.0];
        shorten(&mut plain, 2, false);
        assert_eq!(plain, [3.0, 4.0]);
        assert!((cosine(&[1.0, 1.0], &[2.0, 0.0]) - 0.5_f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn probabilities_are_of_each_label_or_of_all() {
        let model = |activation| PoolingModel {
            output: PoolingOutput::Labels { names: vec!["a".into(), "b".into()], activation },
            normalizes: false,
            n_segments: 0,
            segment_stride: 0,
            prompts: BTreeMap::new(),
            default_prompt: None,
        };
        let mut alone = [0.0, 1000.0];
        model(LabelActivation::Sigmoid).activate(&mut alone);
        assert_eq!(alone, [0.5, 1.0]);
        let mut together = [1000.0, 1000.0];
        model(LabelActivation::Softmax).activate(&mut together);
        assert_eq!(together, [0.5, 0.5]);
        let mut logits = [-11.5, 8.25];
        model(LabelActivation::Identity).activate(&mut logits);
        assert_eq!(logits, [-11.5, 8.25]);
        let activations = [LabelActivation::Sigmoid, LabelActivation::Softmax, LabelActivation::Identity];
        for activation in activations {
            assert_eq!(PoolingModel::from(Pooling::from(model(activation))), model(activation));
        }
    }
}
