//! Finds an encoder's tensors, checks their shapes and copies them to a device. Does not know file formats
//! and arithmetic.

mod sandwich;

use std::borrow::Cow;

use throng_checkpoint::{TensorSource, TensorView};
use throng_kernels::quant::Format;
use throng_model::backend::{Backend, GatedMlp, Linear, MatrixRole, Norm};
use throng_model::decoder::weights::TensorError;

use crate::config::{Arrangement, NormStyle, Positions, Projection, VisionConfig};
use crate::names::{EncoderNames, Heads};
use throng_model::shapes::Activation;

pub use sandwich::{Clipped, SandwichWeights};

/// Weights of an encoder on a device. Weights for the host's computations are in its memory.
pub struct EncoderWeights<B: Backend> {
    pub(crate) patch: Linear<B>,
    /// Table of positions, row after row.
    pub(crate) positions: Vec<f32>,
    pub(crate) class_token: Vec<f32>,
    pub(crate) patch_norm: Option<NormWeights<B>>,
    pub(crate) pre_norm: Option<NormWeights<B>>,
    pub(crate) post_norm: Option<NormWeights<B>>,
    pub(crate) layers: Vec<EncoderLayer<B>>,
    pub(crate) projector: Vec<Step<B>>,
    pub(crate) deepstack: Vec<(usize, Vec<Step<B>>)>,
}

/// A norm of rows.
pub struct NormWeights<B: Backend> {
    gain: B::Vector,
    bias: Option<B::Vector>,
    eps: f32,
}

impl<B: Backend> NormWeights<B> {
    pub(crate) fn get(&self) -> Norm<'_, B> {
        Norm { gain: &self.gain, bias: self.bias.as_ref(), eps: self.eps }
    }
}

/// A layer of one of two kinds.
pub enum EncoderLayer<B: Backend> {
    /// A layer with norms before its blocks.
    Plain(LayerWeights<B>),
    /// A layer with norms around its blocks.
    Sandwich(Box<SandwichWeights<B>>),
}

/// A layer with norms before its blocks.
pub struct LayerWeights<B: Backend> {
    pub(crate) attention_norm: NormWeights<B>,
    pub(crate) query_key_value: Linear<B>,
    pub(crate) output: Linear<B>,
    pub(crate) mlp_norm: NormWeights<B>,
    pub(crate) mlp: GatedMlp<B>,
}

/// A step of a projector.
pub enum Step<B: Backend> {
    /// A norm of rows.
    Norm(NormWeights<B>),
    /// A linear layer to this number of columns.
    Linear(Linear<B>, usize),
    /// An activation between layers.
    Activation(Activation),
    /// A gated feed-forward network with an output of this number of columns.
    GatedMlp(GatedMlp<B>, Activation, usize),
    /// Rows in another arrangement, and the stored row that it needs.
    Arrange(Arrangement, Vec<f32>),
}

/// The tensors of an encoder.
#[derive(Clone, Copy)]
pub struct EncoderTensors<'a> {
    /// All tensors of the model.
    pub source: &'a dyn TensorSource,
    /// Beginning of the names of the encoder's tensors.
    pub prefix: &'a str,
    /// Beginning of the names of the projector's tensors.
    pub projector_prefix: &'a str,
    /// Names of the tensors.
    pub names: &'a EncoderNames,
}

impl<B: Backend> EncoderWeights<B> {
    /// Copies the weights to a device.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or memory does not suffice.
    pub fn load(
        backend: &B,
        config: &VisionConfig,
        tensors: EncoderTensors<'_>,
    ) -> Result<Self, TensorError> {
        let EncoderTensors { prefix, names, .. } = tensors;
        let loader = Loader { backend, source: tensors.source, config, prefix };
        let hidden = config.hidden_size;
        let at = |name: &str| format!("{prefix}{name}");
        let positions = match config.positions {
            Positions::None => Vec::new(),
            Positions::Axes { n } => loader.numbers(&at(names.positions), 2 * n * hidden)?,
            Positions::Table { n_rows } => loader.numbers(&at(names.positions), n_rows * hidden)?,
            Positions::Bilinear { side } | Positions::Bicubic { side } => {
                loader.numbers(&at(names.positions), side * side * hidden)?
            }
        };
        let class_token = match config.class_token {
            None => Vec::new(),
            Some(_) => loader.numbers(&at(names.class_token), hidden)?,
        };
        let norm = |is_there: bool, name: &str| {
            is_there.then(|| loader.norm(&at(name), hidden, config.norm)).transpose()
        };
        let patch = loader.patch(&at(names.patch), hidden, config.patch_values)?;
        let patch_norm = norm(config.has_patch_norm, names.patch_norm)?;
        let pre_norm = norm(config.has_pre_norm, names.pre_norm)?;
        let post_norm = norm(config.has_post_norm, names.post_norm)?;
        let layers = (0..config.n_layers).map(|layer_idx| {
            let layer = format!("{prefix}{}{layer_idx}.", names.layers);
            match config.sandwich {
                None => loader.layer(&layer, names).map(EncoderLayer::Plain),
                Some(sandwich) => {
                    let weights = loader.sandwich(&layer, &names.layer, sandwich)?;
                    Ok(EncoderLayer::Sandwich(Box::new(weights)))
                }
            }
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let last = |steps: &[Projection]| loader.projector(tensors.projector_prefix, steps, hidden);
        let deepstack = config.deepstack.iter().map(|(layer_idx, steps)| Ok((*layer_idx, last(steps)?)));
        let deepstack = deepstack.collect::<Result<_, TensorError>>()?;
        let projector = last(&config.projector)?;
        Ok(Self {
            patch,
            positions,
            class_token,
            patch_norm,
            pre_norm,
            post_norm,
            layers,
            projector,
            deepstack,
        })
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    source: &'a dyn TensorSource,
    config: &'a VisionConfig,
    /// Beginning of the names of the encoder's tensors.
    prefix: &'a str,
}

/// A matrix as stored, or decoded from the layout of another library.
struct StoredMatrix<'a> {
    name: Cow<'a, str>,
    format: Format,
    shape: [usize; 2],
    data: Cow<'a, [u8]>,
}

impl StoredMatrix<'_> {
    fn view(&self) -> TensorView<'_> {
        TensorView { name: &self.name, shape: &self.shape, format: self.format, data: &self.data }
    }

    fn numbers(&self) -> Vec<f32> {
        self.view().numbers()
    }

    fn of_numbers(name: &str, shape: [usize; 2], numbers: &[f32]) -> StoredMatrix<'static> {
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        StoredMatrix { name: Cow::Owned(name.to_owned()), format: Format::F32, shape, data: Cow::Owned(data) }
    }
}

impl<'a, B: Backend> Loader<'a, B> {
    /// All elements of a tensor of any shape.
    fn numbers(&self, name: &str, n: usize) -> Result<Vec<f32>, TensorError> {
        let tensor = self.source.tensor(name).ok_or_else(|| missing(name))?;
        let n_found: usize = tensor.shape.iter().product();
        if n_found != n {
            let (name, found) = (name.to_owned(), tensor.shape.to_vec());
            return Err(TensorError::Shape { name, expected: vec![n], found });
        }
        Ok(tensor.numbers())
    }

    fn norm(&self, name: &str, width: usize, style: NormStyle) -> Result<NormWeights<B>, TensorError> {
        let mut gain = self.numbers(&format!("{name}.weight"), width)?;
        gain.iter_mut().for_each(|gain| *gain += style.gain_offset);
        let bias_name = format!("{name}.bias");
        let bias = match self.source.tensor(&bias_name) {
            None => None,
            Some(_) => Some(self.backend.vector(&self.numbers(&bias_name, width)?)?),
        };
        Ok(NormWeights { gain: self.backend.vector(&gain)?, bias, eps: style.eps })
    }

    /// A root mean square norm without a gain.
    fn plain_norm(&self, width: usize, eps: f32) -> Result<NormWeights<B>, TensorError> {
        Ok(NormWeights { gain: self.backend.vector(&vec![1.0; width])?, bias: None, eps })
    }

    /// A matrix of this shape; a convolution over patches counts as a matrix.
    fn stored(&self, name: &str, shape: [usize; 2]) -> Result<StoredMatrix<'a>, TensorError> {
        let Some(tensor) = self.source.tensor(name) else {
            let decoded = self.source.decode(name, shape).ok_or_else(|| missing(name))?;
            let decoded = decoded.map_err(|error| TensorError::Malformed { what: error.to_string() })?;
            let (name, data) = (Cow::Owned(decoded.name), Cow::Owned(decoded.data));
            return Ok(StoredMatrix { name, format: decoded.format, shape, data });
        };
        let n_elements: usize = tensor.shape.iter().product();
        if tensor.shape.first() != Some(&shape[0]) || n_elements != shape[0] * shape[1] {
            let (name, found) = (name.to_owned(), tensor.shape.to_vec());
            return Err(TensorError::Shape { name, expected: shape.to_vec(), found });
        }
        let (name, data) = (Cow::Borrowed(tensor.name), Cow::Borrowed(tensor.data));
        Ok(StoredMatrix { name, format: tensor.format, shape, data })
    }

    fn bias(&self, name: &str, rows: usize) -> Result<Option<Vec<f32>>, TensorError> {
        let name = format!("{name}.bias");
        self.source.tensor(&name).map(|_| self.numbers(&name, rows)).transpose()
    }

    /// Stacked tensors with their biases, where there are any.
    fn linear(
        &self,
        role: MatrixRole,
        parts: &[(&str, usize)],
        cols: usize,
    ) -> Result<Linear<B>, TensorError> {
        let stored = parts.iter().map(|(name, rows)| self.stored(&format!("{name}.weight"), [*rows, cols]));
        let stored = stored.collect::<Result<Vec<_>, _>>()?;
        let mut biases = Vec::new();
        let mut has_bias = false;
        for (name, rows) in parts {
            let bias = self.bias(name, *rows)?;
            has_bias |= bias.is_some();
            biases.extend(bias.unwrap_or_else(|| vec![0.0; *rows]));
        }
        let views: Vec<_> = stored.iter().map(StoredMatrix::view).collect();
        let weight = self.backend.matrix(role, &views)?;
        let bias = has_bias.then(|| self.backend.vector(&biases)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// The linear layer from the values of patches. GGUF files have the weights of the two frames apart.
    fn patch(&self, name: &str, hidden: usize, n_values: usize) -> Result<Linear<B>, TensorError> {
        let second = format!("{name}.weight.1");
        if self.source.tensor(&second).is_none() {
            return self.linear(MatrixRole::Router, &[(name, hidden)], n_values);
        }
        let frame = |name: &str| self.numbers(name, hidden * n_values / 2);
        let frames = [frame(&format!("{name}.weight"))?, frame(&second)?];
        let channel = n_values / 2 / 3;
        let part = |(row, idx, frame): (usize, usize, usize)| {
            &frames[frame][row * n_values / 2 + idx * channel..][..channel]
        };
        let order = (0..hidden).flat_map(|row| (0..3).flat_map(move |idx| [(row, idx, 0), (row, idx, 1)]));
        let numbers: Vec<f32> = order.flat_map(part).copied().collect();
        let matrix = StoredMatrix::of_numbers(name, [hidden, n_values], &numbers);
        let weight = self.backend.matrix(MatrixRole::Router, &[matrix.view()])?;
        let bias = self.bias(name, hidden)?.map(|bias| self.backend.vector(&bias)).transpose()?;
        Ok(Linear { weight, bias })
    }

    /// A linear layer whose outputs are multiplied with stored factors, if there are any.
    fn scaled(&self, name: &str, scale: &str, [rows, cols]: [usize; 2]) -> Result<Linear<B>, TensorError> {
        if scale.is_empty() {
            return self.linear(MatrixRole::RowParallel, &[(name, rows)], cols);
        }
        let factors = self.numbers(scale, rows)?;
        let stored = self.stored(&format!("{name}.weight"), [rows, cols])?;
        let mut numbers = stored.numbers();
        for (row, factor) in numbers.chunks_exact_mut(cols).zip(&factors) {
            row.iter_mut().for_each(|number| *number *= factor);
        }
        let scaled = StoredMatrix::of_numbers(&stored.name, [rows, cols], &numbers);
        let weight = self.backend.matrix(MatrixRole::RowParallel, &[scaled.view()])?;
        let bias = self.bias(name, rows)?.map(|bias| {
            let bias: Vec<f32> = bias.iter().zip(&factors).map(|(bias, factor)| bias * factor).collect();
            self.backend.vector(&bias)
        });
        Ok(Linear { weight, bias: bias.transpose()? })
    }

    fn layer(&self, layer: &str, names: &EncoderNames) -> Result<LayerWeights<B>, TensorError> {
        let (config, names) = (self.config, &names.layer);
        let (hidden, width) = (config.hidden_size, config.n_heads * config.head_dim);
        let at = |name: &str| if name.is_empty() { String::new() } else { format!("{layer}{name}") };
        let role = MatrixRole::QueryKeyValue { n_query_rows: width, n_key_rows: width };
        let query_key_value = match names.query_key_value {
            Heads::Joined(name) => self.linear(role, &[(&at(name), 3 * width)], hidden)?,
            Heads::Apart(parts) => {
                let parts = parts.map(at);
                self.linear(role, &[(&parts[0], width), (&parts[1], width), (&parts[2], width)], hidden)?
            }
        };
        let (gate, up) = (at(names.gate), at(names.up));
        let up = (up.as_str(), config.mlp_width);
        let parts: &[(&str, usize)] = if config.is_gated { &[(&gate, config.mlp_width), up] } else { &[up] };
        let gate_up = self.linear(MatrixRole::GateUp, parts, hidden)?;
        let down = self.scaled(&at(names.down), &at(names.mlp_scale), [hidden, config.mlp_width])?;
        Ok(LayerWeights {
            attention_norm: self.norm(&at(names.attention_norm), hidden, config.norm)?,
            query_key_value,
            output: self.scaled(&at(names.output), &at(names.attention_scale), [hidden, width])?,
            mlp_norm: self.norm(&at(names.mlp_norm), hidden, config.norm)?,
            mlp: GatedMlp { width: config.mlp_width, gate_up, down },
        })
    }

    fn projector(
        &self,
        prefix: &str,
        steps: &[Projection],
        width: usize,
    ) -> Result<Vec<Step<B>>, TensorError> {
        let at = |name: &str| format!("{prefix}{name}");
        let mut cols = width;
        let mut loaded = Vec::new();
        for step in steps {
            loaded.push(match step {
                Projection::Norm(name, style) => Step::Norm(self.norm(&at(name), cols, *style)?),
                Projection::PlainNorm(eps) => Step::Norm(self.plain_norm(cols, *eps)?),
                Projection::Activation(activation) => Step::Activation(*activation),
                Projection::Linear { name, width, is_transposed: false } => {
                    let linear = self.linear(MatrixRole::Router, &[(&at(name), *width)], cols)?;
                    cols = *width;
                    Step::Linear(linear, *width)
                }
                Projection::Linear { name, width, is_transposed: true } => {
                    let matrix = self.transposed(&at(name), [cols, *width])?;
                    cols = *width;
                    Step::Linear(Linear { weight: matrix, bias: None }, *width)
                }
                Projection::GatedMlp { names, hidden, width, activation } => {
                    let [gate, up, down] = [0, 1, 2].map(|i| at(&names[i]));
                    let gate_up = [(gate.as_str(), *hidden), (up.as_str(), *hidden)];
                    let gate_up = self.linear(MatrixRole::GateUp, &gate_up, cols)?;
                    let down = self.linear(MatrixRole::RowParallel, &[(&down, *width)], *hidden)?;
                    cols = *width;
                    Step::GatedMlp(GatedMlp { width: *hidden, gate_up, down }, *activation, *width)
                }
                Projection::Arrange(arrangement) => {
                    let row = match arrangement {
                        Arrangement::Newlines(newlines) => self.numbers(&newlines.name, cols)?,
                        Arrangement::Standardize { names } => {
                            let stored =
                                names.map(|name| self.numbers(&format!("{}{name}", self.prefix), cols));
                            let [means, factors] = stored;
                            [means?, factors?].concat()
                        }
                        _ => Vec::new(),
                    };
                    cols *= arrangement.n_joined();
                    Step::Arrange(arrangement.clone(), row)
                }
            });
        }
        Ok(loaded)
    }

    /// A matrix that is stored with its input, `shape[0]`, as rows.
    fn transposed(&self, name: &str, shape: [usize; 2]) -> Result<B::Matrix, TensorError> {
        let stored = self.stored(name, shape)?.numbers();
        let [n_in, n_out] = shape;
        let numbers: Vec<f32> = (0..n_out)
            .flat_map(|col| (0..n_in).map(move |row| (row, col)))
            .map(|(row, col)| stored[row * n_out + col])
            .collect();
        let matrix = StoredMatrix::of_numbers(name, [n_out, n_in], &numbers);
        Ok(self.backend.matrix(MatrixRole::Router, &[matrix.view()])?)
    }
}

fn missing(name: &str) -> TensorError {
    TensorError::Missing { name: name.to_owned() }
}
