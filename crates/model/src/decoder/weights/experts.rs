//! The tensors of experts: one by one, all of a projection in one tensor, or gate and up of all in one. Does
//! not know routers.

use std::borrow::Cow;
use std::ops::Range;

use throng_kernels::quant::Format;

use super::stored_rows::{StoredRows, find_decoded_expert};
use super::{Loader, TensorError, find_byte_tensor, weight};
use crate::backend::{Backend, BackendError, Expert, Linear, MatrixRole};
use throng_checkpoint::quantized::ExpertRows;
use throng_checkpoint::{ByteTensor, TensorView, mxfp4};

/// Rows of a tensor: the first, the number of rows, and their distance.
#[derive(Clone, Copy)]
struct Picked {
    first: usize,
    n: usize,
    step: usize,
}

impl Picked {
    fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.n).map(move |i| self.first + i * self.step)
    }
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(super) fn experts(
        &mut self,
        layer: &str,
        n_experts: usize,
        width: usize,
    ) -> Result<Vec<Expert<B>>, TensorError> {
        let (hidden, names) = (self.config.expert_size.unwrap_or(self.config.hidden_size), self.names);
        let at = |name: &str| format!("{layer}{name}");
        let shape = [n_experts, width, hidden];
        let (gate_up, down) = (at(names.experts_gate_up), at(names.experts_down));
        if !names.experts_gate_up.is_empty() && self.has_stacked(&gate_up) {
            return (0..n_experts).map(|idx| self.fused_expert([&gate_up, &down], idx, shape)).collect();
        }
        let stacked = [names.experts_gate, names.experts_up, names.experts_down].map(at);
        if !names.experts_gate.is_empty() && self.has_stacked(&weight(&stacked[0])) {
            let experts = (0..n_experts).map(|idx| self.stacked_expert(&stacked, idx, shape));
            let experts = experts.collect::<Result<_, _>>()?;
            let stored = stacked.iter().filter_map(|name| self.find(&weight(name)));
            stored.for_each(|tensor| self.source.release(tensor.name));
            return Ok(experts);
        }
        let expert = |expert_idx: usize| {
            let name = |pattern: &str| format!("{layer}{}", pattern.replace("{}", &expert_idx.to_string()));
            let [gate, up, down] = [names.expert_gate, names.expert_up, names.expert_down].map(name);
            Ok(Expert {
                gate_up: self.linear(MatrixRole::Expert, &[(&gate, width), (&up, width)], hidden)?,
                down: self.linear(MatrixRole::Expert, &[(&down, hidden)], width)?,
            })
        };
        (0..n_experts).map(expert).collect()
    }

    fn has_stacked(&self, name: &str) -> bool {
        self.has(name) || find_byte_tensor(self.source, &format!("{name}_blocks")).is_some()
    }

    /// One expert of tensors that hold all of them: gate, up and down.
    fn stacked_expert(
        &mut self,
        names: &[String; 3],
        expert_idx: usize,
        [n_experts, width, hidden]: [usize; 3],
    ) -> Result<Expert<B>, TensorError> {
        let shapes = [[n_experts, width, hidden], [n_experts, width, hidden], [n_experts, hidden, width]];
        let mut rows = Vec::new();
        let mut biases = Vec::new();
        for (name, shape) in names.iter().zip(shapes) {
            let all = Picked { first: 0, n: shape[1], step: 1 };
            rows.push(self.rows_of(&weight(name), expert_idx, shape, all)?);
            biases.push(self.bias_of(&format!("{name}.bias"), expert_idx, [n_experts, shape[1]])?);
        }
        let down_bias = biases.pop().flatten();
        let gate_up_bias: Option<Vec<Vec<f32>>> = biases.into_iter().collect();
        self.expert(&rows, [gate_up_bias.map(|parts| parts.concat()), down_bias])
    }

    /// One expert of a checkpoint with gate and up of all experts in one tensor, whose name has no ending.
    fn fused_expert(
        &mut self,
        [gate_up, down]: [&str; 2],
        expert_idx: usize,
        [n_experts, width, hidden]: [usize; 3],
    ) -> Result<Expert<B>, TensorError> {
        let whole = [n_experts, 2 * width, hidden];
        let (up_first, step) = if self.names.experts_layout.is_interleaved { (1, 2) } else { (width, 1) };
        let [gate, up] = [0, up_first].map(|first| Picked { first, n: width, step });
        let all = Picked { first: 0, n: hidden, step: 1 };
        let rows = [
            self.rows_of(gate_up, expert_idx, whole, gate)?,
            self.rows_of(gate_up, expert_idx, whole, up)?,
            self.rows_of(down, expert_idx, [n_experts, hidden, width], all)?,
        ];
        let gate_up_bias = self.bias_of(&format!("{gate_up}_bias"), expert_idx, [n_experts, 2 * width])?;
        let in_order =
            |bias: Vec<f32>| gate.indices().chain(up.indices()).map(|row| bias[row]).collect::<Vec<f32>>();
        let down_bias = self.bias_of(&format!("{down}_bias"), expert_idx, [n_experts, hidden])?;
        self.expert(&rows, [gate_up_bias.map(in_order), down_bias])
    }

    /// The expert with these rows of gate, up and down.
    fn expert(
        &mut self,
        rows: &[StoredRows<'_>],
        [gate_up_bias, down_bias]: [Option<Vec<f32>>; 2],
    ) -> Result<Expert<B>, TensorError> {
        let views: Vec<_> = rows.iter().map(StoredRows::view).collect();
        let (gate_up, down) = views.split_at(2);
        let vector = |bias: Option<Vec<f32>>| bias.map(|bias| self.backend.vector(&bias)).transpose();
        let [gate_up_bias, down_bias] = [vector(gate_up_bias)?, vector(down_bias)?];
        let role = MatrixRole::Expert;
        let gate_up = Linear { weight: self.make(role, gate_up)?, bias: gate_up_bias };
        let down = Linear { weight: self.make(role, down)?, bias: down_bias };
        self.note(views.iter().map(|view| view.data.len()).sum());
        Ok(Expert { gate_up, down })
    }

    /// One expert's row of a tensor of biases, where there is one.
    fn bias_of(
        &self,
        name: &str,
        expert_idx: usize,
        shape: [usize; 2],
    ) -> Result<Option<Vec<f32>>, TensorError> {
        if self.find(name).is_none() {
            return Ok(None);
        }
        let tensor = self.checked(name, &shape)?;
        let n_bytes = tensor.data.len() / shape[0];
        let own = TensorView { shape: &shape[1..], data: part(tensor.data, expert_idx, n_bytes), ..tensor };
        Ok(Some(own.numbers()))
    }

    /// Some rows of one expert's matrix in a tensor of all experts, `[experts, rows, cols]`: in this order,
    /// with rows and columns exchanged, in the layout of another library, or as codes and scales of MXFP4.
    fn rows_of(
        &self,
        name: &str,
        expert_idx: usize,
        [n_experts, n_rows, cols]: [usize; 3],
        picked: Picked,
    ) -> Result<StoredRows<'a>, TensorError> {
        if let Some(blocks) = find_byte_tensor(self.source, &format!("{name}_blocks")) {
            return self.rows_of_mxfp4(name, blocks, expert_idx, [n_experts, n_rows, cols], picked);
        }
        let shape = [picked.n, cols];
        let is_transposed = self.names.experts_layout.is_transposed;
        let Picked { first, n, step } = picked;
        let rows = ExpertRows { expert_idx, n_experts, shape: [n_rows, cols], is_transposed, first, n, step };
        if let Some(decoded) = find_decoded_expert(self.source, name, rows) {
            return StoredRows::of_decoded(decoded, shape);
        }
        if is_transposed {
            let tensor = self.checked(name, &[n_experts, cols, n_rows])?;
            let own = part(tensor.data, expert_idx, tensor.data.len() / n_experts);
            let size = tensor.format.block_bytes();
            if tensor.format.block_elements() != 1 {
                return Err(BackendError::Unsupported(format!("transposed {}", tensor.format.name())).into());
            }
            // Nothing was read, in a check of shapes.
            if own.is_empty() {
                return Ok(stored_rows(tensor.name, tensor.format, shape, Cow::Borrowed(own)));
            }
            let element = |row: usize, col: usize| part(own, col * n_rows + row, size);
            let elements = picked.indices().flat_map(|row| (0..cols).map(move |col| (row, col)));
            let data = elements.flat_map(|(row, col)| element(row, col)).copied().collect();
            return Ok(stored_rows(tensor.name, tensor.format, shape, Cow::Owned(data)));
        }
        let tensor = self.checked(name, &[n_experts, n_rows, cols])?;
        let own = part(tensor.data, expert_idx, tensor.data.len() / n_experts);
        let row_bytes = own.len() / n_rows;
        let data = match picked.step {
            1 => Cow::Borrowed(&own[picked.first * row_bytes..][..picked.n * row_bytes]),
            _ => Cow::Owned(picked.indices().flat_map(|row| part(own, row, row_bytes)).copied().collect()),
        };
        self.with_factor(stored_rows(tensor.name, tensor.format, shape, data), expert_idx, n_experts)
    }

    /// Rows of codes and of scales, put together.
    fn rows_of_mxfp4(
        &self,
        name: &str,
        blocks: ByteTensor<'a>,
        expert_idx: usize,
        [n_experts, n_rows, cols]: [usize; 3],
        picked: Picked,
    ) -> Result<StoredRows<'a>, TensorError> {
        let per_row = cols / Format::MXFP4.block_elements();
        let scales = format!("{name}_scales");
        let scales =
            find_byte_tensor(self.source, &scales).ok_or(TensorError::Missing { name: scales.clone() })?;
        check_bytes(&blocks, &[n_experts, n_rows, per_row, mxfp4::CODE_BYTES])?;
        check_bytes(&scales, &[n_experts, n_rows, per_row])?;
        if blocks.data.is_empty() {
            return Ok(stored_rows(blocks.name, Format::MXFP4, [picked.n, cols], Cow::Borrowed(blocks.data)));
        }
        let row_idx = |row: usize| expert_idx * n_rows + row;
        let of_row = |row: usize| -> Range<usize> { row_idx(row) * per_row..(row_idx(row) + 1) * per_row };
        let mut data = Vec::with_capacity(picked.n * per_row * Format::MXFP4.block_bytes());
        for block in picked.indices().flat_map(of_row) {
            data.extend(mxfp4::block(scales.data[block], part(blocks.data, block, mxfp4::CODE_BYTES)));
        }
        Ok(stored_rows(blocks.name, Format::MXFP4, [picked.n, cols], Cow::Owned(data)))
    }
}

fn stored_rows<'a>(name: &'a str, format: Format, shape: [usize; 2], data: Cow<'a, [u8]>) -> StoredRows<'a> {
    StoredRows { name: Cow::Borrowed(name), format, shape, n_stored_bytes: data.len(), data }
}

/// Part number `idx` of parts of `n` elements.
fn part<T>(data: &[T], idx: usize, n: usize) -> &[T] {
    &data[idx * n..][..n]
}

fn check_bytes(tensor: &ByteTensor<'_>, expected: &[usize]) -> Result<(), TensorError> {
    if tensor.shape == expected {
        return Ok(());
    }
    Err(TensorError::Shape {
        name: tensor.name.to_owned(),
        expected: expected.to_vec(),
        found: tensor.shape.to_vec(),
    })
}
