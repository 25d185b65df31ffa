//! The tensors of recurrent mixers. Does not know attention and feed-forward blocks.

use super::{Loader, RecurrentCore, RecurrentWeights, TensorError, weight};
use crate::backend::{Backend, Conv, DeltaNet, Linear, MatrixRole, StateSpace};
use crate::config::{DeltaShape, Mixer};
use crate::weights::TensorView;

impl<'a, B: Backend> Loader<'a, B> {
    /// `mixer` is a recurrent one.
    pub(super) fn recurrent(
        &mut self,
        layer: &str,
        mixer: &Mixer,
    ) -> Result<RecurrentWeights<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, &self.names.recurrent);
        let at = |name: &str| format!("{layer}{name}");
        let widths = mixer.recurrent_widths(hidden);
        let state = mixer.state(hidden);
        let ((input_width, width), state) = widths.zip(state).expect("the mixer is recurrent");
        let conv = self.conv(&at(names.conv), state.n_channels, state.kernel)?;
        let input = match mixer {
            Mixer::GatedDelta(shape) => self.delta_input(layer, shape)?,
            _ => self.linear(MatrixRole::RecurrentInput, &[(&at(names.input), input_width)], hidden)?,
        };
        let (n_heads, eps) = (state.n_heads, self.config.norm_eps);
        let core = match *mixer {
            Mixer::StateSpace(shape) => RecurrentCore::StateSpace(StateSpace {
                shape,
                conv,
                time_bias: self.vector(&at(names.time_bias), n_heads)?,
                skip: self.vector(&at(names.skip), n_heads)?,
                decay_rate: self.decay_rate(layer, n_heads)?,
                norm_gain: self.vector(&weight(&at(names.norm)), width)?,
                eps,
            }),
            Mixer::GatedDelta(shape) => RecurrentCore::GatedDelta(DeltaNet {
                shape,
                conv,
                time_bias: self.vector(&at(names.time_bias), n_heads)?,
                decay_rate: self.decay_rate(layer, n_heads)?,
                norm_gain: self.vector(&weight(&at(names.norm)), shape.value_dim)?,
                eps,
            }),
            _ => RecurrentCore::ShortConv(conv),
        };
        let output = self.linear(MatrixRole::RowParallel, &[(&at(names.output), hidden)], width)?;
        Ok(RecurrentWeights { input, core, output })
    }

    /// A convolution, whose tensor has the channels first, and a dimension of 1 in between or not.
    fn conv(&mut self, name: &str, n_channels: usize, kernel: usize) -> Result<Conv<B>, TensorError> {
        let flat = self.checked(&weight(name), &[n_channels, kernel]);
        let tensor = flat.or_else(|_| self.checked(&weight(name), &[n_channels, 1, kernel]))?;
        let stored = tensor.numbers();
        let taps: Vec<f32> =
            (0..kernel * n_channels).map(|i| stored[i % n_channels * kernel + i / n_channels]).collect();
        self.note(tensor.data.len());
        let bias = format!("{name}.bias");
        let bias = match self.find(&bias) {
            Some(_) => self.vector(&bias, n_channels)?,
            None => self.backend.vector(&vec![0.0; n_channels])?,
        };
        Ok(Conv { taps: self.backend.vector(&taps)?, bias })
    }

    /// The logarithm of the decay a unit of time. Files have it as it is, or the logarithm of its negative.
    fn decay_rate(&mut self, layer: &str, n_heads: usize) -> Result<B::Vector, TensorError> {
        let names = &self.names.recurrent;
        let tensor = self.checked(&format!("{layer}{}", names.decay), &[n_heads])?;
        let mut rates = tensor.numbers();
        if names.decay_is_logarithm {
            rates.iter_mut().for_each(|rate| *rate = -rate.exp());
        }
        self.note(tensor.data.len());
        Ok(self.backend.vector(&rates)?)
    }

    /// The projection to queries, keys, values, output gates, strengths and times.
    fn delta_input(&mut self, layer: &str, shape: &DeltaShape) -> Result<Linear<B>, TensorError> {
        let names = &self.names.recurrent;
        let at = |name: &str| format!("{layer}{name}");
        let [qkvz, ba] = [names.delta_by_head, names.gates_by_head].map(at);
        let (n_channels, n_values, n_heads) = (shape.n_channels(), shape.value_width(), shape.n_value_heads);
        let hidden = self.config.hidden_size;
        let by_head = !names.gates_by_head.is_empty() && self.find(&weight(&ba)).is_some();
        if !by_head {
            let parts = [
                (at(names.input), n_channels),
                (at(names.delta_gate), n_values),
                (at(names.delta_strength), n_heads),
                (at(names.delta_time), n_heads),
            ];
            let parts = parts.each_ref().map(|(name, rows)| (name.as_str(), *rows));
            return self.linear(MatrixRole::RecurrentInput, &parts, hidden);
        }
        // Everything of one head of keys is adjacent.
        let of_head = n_heads / shape.n_key_heads;
        let large = [shape.key_dim, shape.key_dim, of_head * shape.value_dim, of_head * shape.value_dim];
        let mut views = Vec::new();
        let mut gathered = Vec::new();
        for (name, sizes) in [(&qkvz, &large[..]), (&ba, &[of_head, of_head][..])] {
            let n_rows = shape.n_key_heads * sizes.iter().sum::<usize>();
            let view = self.checked(&weight(name), &[n_rows, hidden])?;
            gathered.push(rows_by_kind(&view, sizes));
            views.push((view, [n_rows, hidden]));
        }
        let parts =
            views.iter().zip(&gathered).map(|((view, shape), data)| TensorView { data, shape, ..*view });
        let parts: Vec<_> = parts.collect();
        let weight = self.make(MatrixRole::RecurrentInput, &parts)?;
        self.note(gathered.iter().map(Vec::len).sum());
        Ok(Linear { weight, bias: None })
    }
}

/// The rows of a matrix in which groups of rows of these sizes follow each other for every head: first those of the first group of
/// all heads, then those of the second one, and so on.
fn rows_by_kind(view: &TensorView<'_>, sizes: &[usize]) -> Vec<u8> {
    let of_head: usize = sizes.iter().sum();
    let n_rows = view.shape[0];
    let row_bytes = view.data.len() / n_rows;
    let mut rows = Vec::with_capacity(view.data.len());
    let mut first = 0;
    for size in sizes {
        for head in 0..n_rows / of_head {
            rows.extend_from_slice(&view.data[(head * of_head + first) * row_bytes..][..size * row_bytes]);
        }
        first += size;
    }
    rows
}
