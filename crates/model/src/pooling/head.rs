//! The layers of a head on a device. Does not know pooling.

use std::sync::Arc;

use super::config::{HeadActivation, HeadLayer};
use super::{Pooler, PoolingOutput};
use crate::backend::{Backend, BackendError, Linear, MatrixRole, Norm};
use crate::decoder::weights::{TensorError, find_tensor};
use throng_checkpoint::{TensorSource, TensorView};

/// Largest layer of a head, which bounds the memory that a file can make the host allocate.
const MAX_WIDTH: usize = 1 << 24;

/// The layers of a head, with their outputs.
pub(crate) struct PoolingHead<B: Backend> {
    layers: Vec<Layer<B>>,
    /// Pooled rows, `[sequences, hidden]`.
    input: B::Buffer,
}

struct Layer<B: Backend> {
    linear: Linear<B>,
    activation: HeadActivation,
    /// Gain and bias of a norm.
    norm: Option<[B::Vector; 2]>,
    output: B::Buffer,
    normed: Option<B::Buffer>,
}

impl<B: Backend> PoolingHead<B> {
    /// Loads the layers, for vectors of `hidden` elements, with buffers for this number of sequences.
    pub(crate) fn load(
        backend: &B,
        pooler: &Pooler,
        model: &Arc<dyn TensorSource>,
        max_sequences: usize,
        hidden: usize,
        norm_eps: f32,
    ) -> Result<(Self, f32), TensorError> {
        let (mut layers, mut width) = (Vec::new(), hidden);
        for (layer, own) in pooler.layers.iter().zip(&pooler.own_files) {
            let stored = StoredLayer::find(layer, &**own.as_ref().unwrap_or(model), width)?;
            let shape = [stored.n_rows, width];
            let weight = TensorView { shape: &shape, ..stored.weight };
            let n_rows = stored.n_rows;
            let vector = |tensor: TensorView<'_>| backend.vector(&tensor.numbers());
            let bias = stored.bias.map(vector).transpose()?;
            let norm = |(gain, bias): (TensorView<'_>, Option<TensorView<'_>>)| {
                let bias = bias.map_or_else(|| backend.vector(&vec![0.0; n_rows]), vector)?;
                Ok::<_, TensorError>([vector(gain)?, bias])
            };
            let norm = stored.norm.map(norm).transpose()?;
            let buffer = || backend.buffer(max_sequences, n_rows);
            layers.push(Layer {
                linear: Linear { weight: backend.matrix(MatrixRole::Router, &[weight])?, bias },
                activation: layer.activation,
                normed: norm.is_some().then(buffer).transpose()?,
                norm,
                output: buffer()?,
            });
            width = n_rows;
        }
        pooler.check_labels(width)?;
        Ok((Self { layers, input: backend.buffer(max_sequences, hidden)? }, norm_eps))
    }

    /// The output for pooled rows, row after row.
    pub(crate) fn run<'a>(
        &'a mut self,
        backend: &mut B,
        pooled: &[f32],
        norm_eps: f32,
    ) -> Result<&'a mut [f32], BackendError> {
        backend.write_rows(&mut self.input, pooled);
        let n_rows = backend.n_rows(&self.input);
        let mut x = &mut self.input;
        for layer in &mut self.layers {
            let Layer { linear, activation, norm, output, normed } = layer;
            backend.set_rows(output, n_rows);
            backend.matmul(x, &linear.weight, linear.bias.as_ref(), output);
            if *activation != HeadActivation::Identity {
                let mut rows = backend.download(output)?.to_vec();
                rows.iter_mut().for_each(|x| *x = activation.of(*x));
                backend.write_rows(output, &rows);
            }
            x = match (norm, normed) {
                (Some([gain, bias]), Some(normed)) => {
                    backend.set_rows(normed, n_rows);
                    backend.norm_rows(output, Norm { gain, bias: Some(bias), eps: norm_eps }, normed);
                    normed
                }
                _ => output,
            };
        }
        backend.download(x)
    }
}

/// The tensors of a layer, found and checked.
struct StoredLayer<'a> {
    weight: TensorView<'a>,
    n_rows: usize,
    bias: Option<TensorView<'a>>,
    /// Gain and bias of its norm, where it has one.
    norm: Option<(TensorView<'a>, Option<TensorView<'a>>)>,
}

impl<'a> StoredLayer<'a> {
    /// Finds the tensors of a layer with `width` inputs.
    fn find(layer: &HeadLayer, source: &'a dyn TensorSource, width: usize) -> Result<Self, TensorError> {
        let weight = matrix(source, &format!("{}.weight", layer.name), width)?;
        // A matrix of one row may be stored as a vector.
        let n_rows = if weight.shape.len() == 1 { 1 } else { weight.shape[0] };
        let vector = |name: &str, end: &str| {
            let tensor = find_tensor(source, &format!("{name}.{end}"));
            tensor.map(|tensor| checked_vector(tensor, n_rows)).transpose()
        };
        let norm = |name: &String| {
            let gain = vector(name, "weight")?.ok_or_else(|| TensorError::Missing { name: name.clone() })?;
            Ok::<_, TensorError>((gain, vector(name, "bias")?))
        };
        let (bias, norm) = (vector(&layer.name, "bias")?, layer.norm.as_ref().map(norm).transpose()?);
        Ok(Self { weight, n_rows, bias, norm })
    }
}

impl Pooler {
    /// Checks the tensors of the head, for vectors of `hidden` elements; the names of those in the model's
    /// own files.
    pub(crate) fn check(&self, model: &dyn TensorSource, hidden: usize) -> Result<Vec<String>, TensorError> {
        let (mut names, mut width) = (Vec::new(), hidden);
        for (layer, own) in self.layers.iter().zip(&self.own_files) {
            let stored = StoredLayer::find(layer, own.as_ref().map_or(model, |own| &**own), width)?;
            width = stored.n_rows;
            let of_norm = stored.norm.into_iter().flat_map(|(gain, bias)| [Some(gain), bias]).flatten();
            names.extend(
                of_norm.chain(stored.bias).chain([stored.weight]).map(|tensor| tensor.name.to_owned()),
            );
        }
        self.check_labels(width)?;
        Ok(names)
    }

    fn check_labels(&self, n_outputs: usize) -> Result<(), TensorError> {
        match &self.config.output {
            PoolingOutput::Labels { names, .. } if names.len() != n_outputs => {
                let n = names.len();
                let what = format!("the classifier has {n_outputs} outputs, config.json names {n} labels");
                Err(TensorError::Malformed { what })
            }
            _ => Ok(()),
        }
    }
}

impl HeadActivation {
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
            Self::Gelu => throng_kernels::reference::gelu(x),
        }
    }
}

/// A matrix of `cols` columns, or its only row.
fn matrix<'a>(source: &'a dyn TensorSource, name: &str, cols: usize) -> Result<TensorView<'a>, TensorError> {
    let tensor = find_tensor(source, name).ok_or_else(|| TensorError::Missing { name: name.to_owned() })?;
    match *tensor.shape {
        [rows, found] if found == cols && (1..=MAX_WIDTH).contains(&rows) => Ok(tensor),
        [found] if found == cols => Ok(tensor),
        _ => Err(TensorError::Shape {
            name: tensor.name.to_owned(),
            expected: vec![tensor.shape.first().copied().unwrap_or(1), cols],
            found: tensor.shape.to_vec(),
        }),
    }
}

fn checked_vector(tensor: TensorView<'_>, width: usize) -> Result<TensorView<'_>, TensorError> {
    if tensor.shape != [width] {
        return Err(TensorError::Shape {
            name: tensor.name.to_owned(),
            expected: vec![width],
            found: tensor.shape.to_vec(),
        });
    }
    Ok(tensor)
}
