//! Finds a model's tensors, checks every shape against the configuration, and copies them to a device. Does
//! not know file formats and arithmetic.

mod attention;
mod encoder;
mod ends;
mod error;
mod experts;
mod feed_forward;
mod gated_attention;
mod indexer;
mod latent;
mod per_layer;
mod recurrent;
mod relative;
mod stored_rows;

use crate::arch::{Architecture, LayerNames};
use crate::backend::{Backend, BackendError, Conv, DeltaNet, GatedMlp, Linear, MatrixRole, Norm, StateSpace};
use crate::config::{DecoderConfig, FeedForward, LayerConfig, LayerSplit, Mixer, Stage};
use crate::quantization::Quantizer;
use throng_checkpoint::{ByteTensor, TensorSource, TensorView};

pub use error::{LoadProgress, TensorError};
pub(crate) use indexer::IndexerWeights;
pub(crate) use latent::{LatentQuery, LatentWeights};
use relative::RelativeTable;
pub(crate) use relative::RelativeWeights;
use stored_rows::StoredRows;
pub(crate) use stored_rows::{encoded_name, has_weight};

/// The weights of a model on a device, or of a stage of it.
pub struct DecoderWeights<B: Backend> {
    pub(crate) stage: Stage,
    pub(crate) embedding: Option<EmbeddingWeights<B>>,
    /// Weights of the layers of the stage.
    pub(crate) layers: Vec<LayerWeights<B>>,
    pub(crate) head: Option<HeadWeights<B>>,
}

/// Weights from which the residual stream of tokens is computed.
pub(crate) struct EmbeddingWeights<B: Backend> {
    pub(crate) table: B::Matrix,
    /// A gain of ones, if embeddings are normed.
    pub(crate) norm: Option<B::Vector>,
    pub(crate) encoder: Option<EncoderWeights<B>>,
    pub(crate) per_layer: Option<PerLayerEmbedding<B>>,
}

/// Weights from which logits of the residual stream are computed.
pub(crate) struct HeadWeights<B: Backend> {
    pub(crate) norm: Option<NormWeights<B>>,
    /// Absent where the embedding table of the same stage is also the output projection.
    pub(crate) output: Option<B::Matrix>,
    /// Bias of an output projection that has a tensor of its own, if the file has one.
    pub(crate) bias: Option<B::Vector>,
}

/// A norm of whole rows.
pub(crate) struct NormWeights<B: Backend> {
    pub(crate) gain: B::Vector,
    /// Bias of a layer norm.
    pub(crate) bias: Option<B::Vector>,
}

impl<B: Backend> NormWeights<B> {
    pub(crate) fn with(&self, eps: f32) -> Norm<'_, B> {
        Norm { gain: &self.gain, bias: self.bias.as_ref(), eps }
    }
}

/// Embeddings that an encoder adds to those of tokens, and the norm after it.
pub(crate) struct EncoderWeights<B: Backend> {
    pub(crate) positions: Option<B::Matrix>,
    pub(crate) segments: Option<B::Matrix>,
    pub(crate) norm: NormWeights<B>,
}

pub(crate) struct LayerWeights<B: Backend> {
    pub(crate) pre_mixer_norm: Option<NormWeights<B>>,
    pub(crate) post_mixer_norm: Option<NormWeights<B>>,
    pub(crate) pre_feed_forward_norm: Option<NormWeights<B>>,
    pub(crate) post_feed_forward_norm: Option<NormWeights<B>>,
    pub(crate) mixer: MixerWeights<B>,
    pub(crate) feed_forward: FeedForwardWeights<B>,
    pub(crate) per_layer: Option<PerLayerWeights<B>>,
    /// Factor of the residual stream in the end.
    pub(crate) scalar: Option<f32>,
}

/// Use of a layer's own embeddings of the tokens.
pub(crate) struct PerLayerWeights<B: Backend> {
    /// `[width, hidden]`.
    pub(crate) gate: B::Matrix,
    /// `[hidden, width]`.
    pub(crate) projection: B::Matrix,
    pub(crate) post_norm: B::Vector,
}

/// Weights from which the embeddings of all layers are computed.
pub(crate) struct PerLayerEmbedding<B: Backend> {
    /// `[vocabulary, layers * width]`.
    pub(crate) table: B::Matrix,
    /// `[layers * width, hidden]`.
    pub(crate) projection: B::Matrix,
    /// RMSNorm gain of the projections for one layer.
    pub(crate) norm: B::Vector,
}

pub(crate) enum MixerWeights<B: Backend> {
    Attention(AttentionWeights<B>),
    Latent(LatentWeights<B>),
    Recurrent(RecurrentWeights<B>),
    Hybrid(AttentionWeights<B>, RecurrentWeights<B>),
    /// The layer is a feed-forward block alone.
    None,
}

pub(crate) struct RecurrentWeights<B: Backend> {
    /// Projection to all inputs of the mixer for a token.
    pub(crate) input: Linear<B>,
    pub(crate) core: RecurrentCore<B>,
    /// Gain of the norm of the core's output, if other devices have a part of the normed group.
    pub(crate) split_norm: Option<B::Vector>,
    pub(crate) output: Linear<B>,
}

pub(crate) enum RecurrentCore<B: Backend> {
    ShortConv(Conv<B>),
    GatedDelta(DeltaNet<B>),
    StateSpace(StateSpace<B>),
}

pub(crate) struct AttentionWeights<B: Backend> {
    pub(crate) query_key_value: Linear<B>,
    pub(crate) query_key_norms: Option<QueryKeyNorms<B>>,
    /// The gain of ones of a norm of values.
    pub(crate) value_norm: Option<B::Vector>,
    /// Matrix from which the factors of the output are computed.
    pub(crate) gate: Option<B::Matrix>,
    pub(crate) output: Linear<B>,
    pub(crate) sinks: Option<B::Vector>,
    /// Weights of scores by distance.
    pub(crate) relative: Option<RelativeWeights<B>>,
}

pub(crate) struct QueryKeyNorms<B: Backend> {
    pub(crate) query: B::Vector,
    pub(crate) key: B::Vector,
    /// Biases of layer norms of queries and keys, which are zeros.
    pub(crate) biases: [Option<B::Vector>; 2],
}

pub(crate) enum FeedForwardWeights<B: Backend> {
    /// The layer is a mixer alone.
    None,
    Dense(GatedMlp<B>),
    Experts(ExpertsWeights<B>),
}

pub(crate) struct ExpertsWeights<B: Backend> {
    pub(crate) router: Linear<B>,
    /// Numbers added to the scores of the experts where they are chosen.
    pub(crate) router_bias: Option<B::Vector>,
    /// Projection to the experts' input, and back.
    pub(crate) latent: Option<[B::Matrix; 2]>,
    /// Factors of the experts' weights.
    pub(crate) scales: Option<B::Vector>,
    pub(crate) experts: B::Experts,
    pub(crate) shared: Option<SharedExpert<B>>,
}

/// Norms of a router, of experts and of a shared expert beside them.
pub(crate) struct ExpertNorms<B: Backend> {
    pub(crate) router: B::Vector,
    pub(crate) before_experts: B::Vector,
    pub(crate) after_experts: B::Vector,
    pub(crate) after_shared: B::Vector,
}

pub(crate) struct SharedExpert<B: Backend> {
    pub(crate) norms: Option<ExpertNorms<B>>,
    /// `[1, hidden]`; absent where its output is not scaled.
    pub(crate) router: Option<B::Matrix>,
    pub(crate) mlp: GatedMlp<B>,
}

impl<B: Backend> DecoderWeights<B> {
    /// Checks all tensors and copies them to the device.
    ///
    /// # Errors
    /// When the device does not support the model, a tensor is missing or has another shape than the
    /// configuration says, or the memory of the device does not suffice.
    pub fn load(
        backend: &B,
        architecture: &Architecture,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, TensorError> {
        Self::load_stage(backend, architecture, source, &Stage::whole(&architecture.config), progress)
    }

    /// Loads the tensors that a stage needs.
    ///
    /// # Errors
    /// Errors of [`Self::load`], and when the model has no such stage.
    pub fn load_stage(
        backend: &B,
        architecture: &Architecture,
        source: &dyn TensorSource,
        stage: &Stage,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, TensorError> {
        Self::load_with(backend, architecture, source, stage, None, progress)
    }

    /// Loads the tensors, with matrices quantized by `quantizer`.
    pub(crate) fn load_with(
        backend: &B,
        architecture: &Architecture,
        source: &dyn TensorSource,
        stage: &Stage,
        quantizer: Option<&mut Quantizer>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, TensorError> {
        let config = &architecture.config;
        stage.check(config)?;
        backend.supports(config)?;
        let names = source.names();
        let sizes = names.iter().filter_map(|name| source.n_bytes(name)).map(|n_bytes| n_bytes as u64);
        let bytes = source.byte_names();
        let bytes = bytes.iter().filter_map(|name| source.byte_tensor(name)).map(|t| t.data.len() as u64);
        let encoded: u64 = source.encodings().iter().map(|encoding| encoding.n_stored_bytes).sum();
        let mut loader = Loader {
            backend,
            source,
            config,
            names: &architecture.names.layer,
            relative: RelativeTable::default(),
            quantizer,
            progress,
            state: LoadProgress { done_bytes: 0, total_bytes: sizes.chain(bytes).sum::<u64>() + encoded },
        };
        // Kept files have the matrices in this order: the table, the head, an encoder's tables, the layers, and their embeddings.
        let names = architecture.names;
        let table = stage.embeds.then(|| loader.embedding_table(names, stage)).transpose()?;
        let head = stage.has_head.then(|| loader.head(names, stage)).transpose()?;
        let encoder = config.encoder.filter(|_| stage.embeds);
        let encoder = encoder.map(|encoder| loader.encoder_embedding(names, encoder)).transpose()?;
        loader.relative = loader.relative_table(names)?;
        let layers = stage.layers.clone();
        let layers = layers
            .map(|layer_idx| loader.layer(&format!("{}{layer_idx}.", names.layer_prefix), layer_idx))
            .collect::<Result<_, _>>()?;
        let embedding = table.map(|table| loader.embedding(names, table, encoder)).transpose()?;
        Ok(Self { stage: stage.clone(), embedding, layers, head })
    }

    /// The part of the model that they are of.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Weights of the head.
    ///
    /// # Panics
    /// When the weights are those of a stage without it.
    pub(crate) fn head(&self) -> &HeadWeights<B> {
        self.head.as_ref().expect("the stage has the head")
    }

    /// Weights of the embedding table.
    ///
    /// # Panics
    /// When the weights are those of a stage without it.
    pub(crate) fn embedding_table(&self) -> &B::Matrix {
        &self.embedding.as_ref().expect("the stage embeds tokens").table
    }
}

/// The backend, the tensors, and the progress of loading.
struct Loader<'a, B: Backend> {
    backend: &'a B,
    source: &'a dyn TensorSource,
    config: &'a DecoderConfig,
    names: &'a LayerNames,
    relative: RelativeTable,
    quantizer: Option<&'a mut Quantizer>,
    progress: &'a mut dyn FnMut(LoadProgress),
    state: LoadProgress,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn find(&self, name: &str) -> Option<TensorView<'a>> {
        find_tensor(self.source, name)
    }

    fn checked(&self, name: &str, expected: &[usize]) -> Result<TensorView<'a>, TensorError> {
        let tensor = self.find(name).ok_or_else(|| self.missing(name))?;
        // A matrix of one row may be stored as a vector.
        let same = tensor.shape == expected || expected.strip_prefix(&[1]).is_some_and(|e| e == tensor.shape);
        if !same {
            return Err(TensorError::Shape {
                name: tensor.name.to_owned(),
                expected: expected.to_vec(),
                found: tensor.shape.to_vec(),
            });
        }
        Ok(tensor)
    }

    /// The part of a layer that the device has; `None`: the whole layer.
    fn layer_split(&self, layer_idx: usize) -> Option<&'a LayerSplit> {
        Some(&self.config.split.as_ref()?.layers[layer_idx])
    }

    fn note(&mut self, n_bytes: usize) {
        self.state.done_bytes += n_bytes as u64;
        (self.progress)(self.state);
    }

    fn vector(&mut self, name: &str, width: usize) -> Result<B::Vector, TensorError> {
        let tensor = self.checked(name, &[width])?;
        self.note(tensor.data.len());
        Ok(self.backend.vector(&tensor.numbers())?)
    }

    /// A vector, or a matrix of one row.
    fn row(&mut self, name: &str, width: usize) -> Result<B::Vector, TensorError> {
        let tensor = self.checked(name, &[1, width])?;
        self.note(tensor.data.len());
        Ok(self.backend.vector(&tensor.numbers())?)
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<B::Vector, TensorError> {
        self.norm_with(name, width, self.config.norm_gain_offset)
    }

    fn norm_with(&mut self, name: &str, width: usize, offset: f32) -> Result<B::Vector, TensorError> {
        let tensor = self.checked(&weight(name), &[width])?;
        let mut gain = tensor.numbers();
        gain.iter_mut().for_each(|gain| *gain += offset);
        self.note(tensor.data.len());
        Ok(self.backend.vector(&gain)?)
    }

    /// The norm of a layer's block, of whole rows.
    fn optional_norm(
        &mut self,
        present: bool,
        layer: &str,
        name: &str,
    ) -> Result<Option<NormWeights<B>>, TensorError> {
        let (hidden, offset) = (self.config.hidden_size, self.config.norm_gain_offset);
        present.then(|| self.row_norm(&format!("{layer}{name}"), hidden, offset)).transpose()
    }

    /// Tensors of some rows each, stacked.
    fn matrix(
        &mut self,
        role: MatrixRole,
        parts: &[(&str, usize)],
        cols: usize,
    ) -> Result<B::Matrix, TensorError> {
        let stored = parts.iter().map(|(name, rows)| self.stored(&weight(name), [*rows, cols]));
        let stored = stored.collect::<Result<Vec<_>, _>>()?;
        let views: Vec<_> = stored.iter().map(StoredRows::view).collect();
        let matrix = self.make(role, &views)?;
        views.iter().for_each(|view| self.source.release(view.name));
        self.note(stored.iter().map(|rows| rows.n_stored_bytes).sum());
        Ok(matrix)
    }

    fn make(&mut self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<B::Matrix, BackendError> {
        match &mut self.quantizer {
            None => self.backend.matrix(role, parts),
            Some(quantizer) => quantizer.matrix(self.backend, role, parts),
        }
    }

    /// Stacked tensors with their biases, where there are any.
    fn linear(
        &mut self,
        role: MatrixRole,
        parts: &[(&str, usize)],
        cols: usize,
    ) -> Result<Linear<B>, TensorError> {
        let weight = self.matrix(role, parts, cols)?;
        let mut biases = vec![0.0; parts.iter().map(|(_, rows)| rows).sum()];
        let (mut first, mut any) = (0, false);
        for (name, rows) in parts {
            let name = format!("{name}.bias");
            if self.find(&name).is_some() {
                let tensor = self.checked(&name, &[*rows])?;
                biases[first..first + rows].copy_from_slice(&tensor.numbers());
                self.note(tensor.data.len());
                any = true;
            }
            first += rows;
        }
        let bias = any.then(|| self.backend.vector(&biases)).transpose()?;
        Ok(Linear { weight, bias })
    }

    fn layer(&mut self, layer: &str, layer_idx: usize) -> Result<LayerWeights<B>, TensorError> {
        let (config, names) = (self.config, self.names);
        let (pre, post) = (config.norms.has_pre(), config.norms.has_post());
        let LayerConfig { mixer, feed_forward } = &config.layers[layer_idx];
        let (has_mixer, has_feed_forward) = (*mixer != Mixer::None, *feed_forward != FeedForward::None);
        let skips = layer_idx == 0 && config.lacks_first_norm;
        let mixer = match mixer {
            Mixer::Attention(attention) => MixerWeights::Attention(self.attention(layer, attention)?),
            Mixer::Latent(latent) => MixerWeights::Latent(self.latent_attention(layer, latent)?),
            Mixer::Hybrid(hybrid) => {
                let attention = self.attention(layer, &hybrid.attention)?;
                let states = self.recurrent(layer, layer_idx, &Mixer::StateSpace(hybrid.state_space))?;
                MixerWeights::Hybrid(attention, states)
            }
            Mixer::None => MixerWeights::None,
            recurrent => MixerWeights::Recurrent(self.recurrent(layer, layer_idx, recurrent)?),
        };
        Ok(LayerWeights {
            pre_mixer_norm: self.optional_norm(
                pre && has_mixer && !skips,
                layer,
                names.pre_attention_norm,
            )?,
            post_mixer_norm: self.optional_norm(post && has_mixer, layer, names.post_attention_norm)?,
            pre_feed_forward_norm: self.optional_norm(
                pre && has_feed_forward,
                layer,
                names.pre_feed_forward_norm,
            )?,
            post_feed_forward_norm: self.optional_norm(
                post && has_feed_forward,
                layer,
                names.post_feed_forward_norm,
            )?,
            mixer,
            feed_forward: self.feed_forward(layer, layer_idx)?,
            per_layer: config.per_layer_width.map(|width| self.per_layer(layer, width)).transpose()?,
            scalar: config.has_layer_scalars.then(|| self.scalar(layer)).transpose()?,
        })
    }
}

/// A tensor by its name, or by its name in a multimodal or a headless checkpoint.
pub(crate) fn find_tensor<'a>(source: &'a dyn TensorSource, name: &str) -> Option<TensorView<'a>> {
    source.tensor(name).or_else(|| other_names(name).iter().find_map(|name| source.tensor(name)))
}

/// A tensor of bytes by its name, looked up as other tensors are.
pub(crate) fn find_byte_tensor<'a>(source: &'a dyn TensorSource, name: &str) -> Option<ByteTensor<'a>> {
    source.byte_tensor(name).or_else(|| other_names(name).iter().find_map(|name| source.byte_tensor(name)))
}

fn other_names(name: &str) -> [String; 11] {
    let bare = name.strip_prefix("model.").unwrap_or(name);
    let of_encoder = |prefix: &str| format!("{prefix}.{name}");
    [
        format!("language_model.{name}"),
        format!("model.language_model.{bare}"),
        format!("model.text_model.{bare}"),
        bare.to_owned(),
        of_encoder("bert"),
        of_encoder("roberta"),
        of_encoder("new"),
        of_encoder("gte"),
        of_encoder("mpnet"),
        of_encoder("deberta"),
        of_encoder("model"),
    ]
}

fn weight(name: &str) -> String {
    format!("{name}.weight")
}
