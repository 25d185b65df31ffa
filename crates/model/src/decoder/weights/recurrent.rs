//! The tensors of recurrent mixers. Does not know attention and feed-forward blocks.

use std::borrow::Cow;

use super::stored_rows::StoredRows;
use super::{Loader, RecurrentCore, RecurrentWeights, TensorError, weight};
use crate::backend::{Backend, Conv, DeltaNet, Linear, MatrixRole, StateSpace};
use crate::config::{DeltaShape, Mixer};
use throng_checkpoint::TensorView;

impl<'a, B: Backend> Loader<'a, B> {
    /// `mixer` is a recurrent one.
    pub(super) fn recurrent(
        &mut self,
        layer: &str,
        layer_idx: usize,
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
                norm_gain: match shape.n_norm_groups {
                    0 => self.backend.vector(&vec![1.0; width])?,
                    _ => self.vector(&weight(&at(names.norm)), width)?,
                },
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
        let is_split = self.layer_split(layer_idx).is_some_and(|split| split.state_norm_width.is_some());
        let gain = || self.vector(&weight(&at(names.norm)), width);
        let split_norm = is_split.then(gain).transpose()?;
        Ok(RecurrentWeights { input, core, split_norm, output })
    }

    /// A convolution, whose tensor has the channels first, with or without a dimension of 1 after them.
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

    /// The projection to queries, keys, values, output gates, strengths and times. Files have queries to
    /// gates in two tensors, or in one in which all columns of a head of keys are adjacent; and strengths and
    /// times likewise.
    fn delta_input(&mut self, layer: &str, shape: &DeltaShape) -> Result<Linear<B>, TensorError> {
        let names = &self.names.recurrent;
        let (n_values, n_heads, of_head) =
            (shape.value_width(), shape.n_value_heads, shape.n_value_heads / shape.n_key_heads);
        let large = [shape.key_dim, shape.key_dim, of_head * shape.value_dim, of_head * shape.value_dim];
        let mut parts = self.by_kind(
            layer,
            names.delta_by_head,
            &large,
            [(names.input, shape.n_channels()), (names.delta_gate, n_values)],
        )?;
        parts.extend(self.by_kind(
            layer,
            names.gates_by_head,
            &[of_head; 2],
            [(names.delta_strength, n_heads), (names.delta_time, n_heads)],
        )?);
        let views: Vec<_> = parts.iter().map(StoredRows::view).collect();
        let weight = self.make(MatrixRole::RecurrentInput, &views)?;
        self.note(parts.iter().map(|rows| rows.n_stored_bytes).sum());
        Ok(Linear { weight, bias: None })
    }

    /// Rows by kind: of one tensor in which groups of these sizes follow each other for every head, if the
    /// file has it, or of one tensor for each kind.
    fn by_kind(
        &self,
        layer: &str,
        by_head: &str,
        sizes: &[usize],
        kinds: [(&str, usize); 2],
    ) -> Result<Vec<StoredRows<'a>>, TensorError> {
        let hidden = self.config.hidden_size;
        let find =
            |name: &str, n_rows: usize| self.stored(&weight(&format!("{layer}{name}")), [n_rows, hidden]);
        if !by_head.is_empty() && self.has(&weight(&format!("{layer}{by_head}"))) {
            let rows = find(by_head, kinds.iter().map(|(_, n_rows)| n_rows).sum())?;
            let data = rows_by_kind(&rows.view(), sizes);
            return Ok(vec![StoredRows { data: Cow::Owned(data), ..rows }]);
        }
        kinds.into_iter().map(|(name, n_rows)| find(name, n_rows)).collect()
    }
}

/// The rows of a matrix in which groups of rows of these sizes follow each other for every head: first those
/// of the first group of all heads, then those of the second one, and so on.
pub(super) fn rows_by_kind(view: &TensorView<'_>, sizes: &[usize]) -> Vec<u8> {
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
