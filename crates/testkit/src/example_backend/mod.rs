//! A device backend as a crate outside `throng-model` writes one: the required operations in plain loops over
//! f32, no fusions, greedy sampling on the device with several steps in flight, and row-parallel products
//! that are summed late. It passes the backend suite and the golden tests. Does not know architectures; it is
//! slow.

mod attention;
mod chosen;
mod experts;
mod heads;
mod low_rank;
mod norm;
mod recurrent;

use std::collections::VecDeque;
use std::ops::Range;

use throng_checkpoint::TensorView;
use throng_core::scheduling::batch::{BLOCK_TOKENS, ChosenToken, TokenLogprob};
use throng_kernels::quant::{Format, dequantize_row};
use throng_model::backend::rotations::Rotations;
use throng_model::backend::{
    AttentionQueries, AttentionShape, Backend, BackendError, BlockCopy, Capability, Columns,
    DeviceBlockLayout, DeviceMemory, DeviceOps, Expert, HeadColumns, IndexQueries, LowRankPart, MatrixRole,
    NO_TOKEN, Norm, RelativeScores, Router, RowGroups, SampledRows, SamplingRow, Ticket, WantedToken,
};
use throng_model::batch_input::BatchInput;
use throng_model::config::{Activation, RopeStyle, RopeTable};
use throng_model::kv_cache::{KvLayout, KvShape};
use throng_model::sampler::Sampler;

use experts::hidden;
pub use low_rank::LowRank;
use norm::normalize;

use crate::rotation::rotate;

/// A device that supports all operations.
#[derive(Debug)]
pub struct ExampleBackend {
    halves_partial_products: bool,
    max_steps_in_flight: usize,
    samples_nothing: bool,
    sampler: Sampler,
    /// The answers since the last ticket, each with the most likely tokens.
    sampled: Vec<Sampled>,
    /// The steps that were submitted and not collected, oldest first.
    in_flight: VecDeque<(Ticket, Vec<Sampled>)>,
    n_submitted: u64,
}

impl Default for ExampleBackend {
    fn default() -> Self {
        Self::with_steps_in_flight(2)
    }
}

impl ExampleBackend {
    /// A device with up to `n` steps that are submitted and not collected.
    pub fn with_steps_in_flight(n: usize) -> Self {
        Self {
            halves_partial_products: false,
            max_steps_in_flight: n,
            samples_nothing: false,
            sampler: Sampler::new(),
            sampled: Vec::new(),
            in_flight: VecDeque::new(),
            n_submitted: 0,
        }
    }

    /// Leaves all rows of logits to the host.
    #[must_use]
    pub fn without_sampling(self) -> Self {
        Self { samples_nothing: true, ..self }
    }

    /// A device that halves products with row-parallel matrices until they are summed "over devices", which
    /// doubles them. Both are exact, so a product that is not summed, or twice, or too late, changes results.
    pub fn with_halved_partial_products() -> Self {
        Self { halves_partial_products: true, ..Self::default() }
    }
}

/// The token of a row, and the most likely ones.
type Sampled = (TokenLogprob, Vec<TokenLogprob>);

/// Activations in the memory of the device.
#[derive(Debug)]
pub struct Rows {
    data: Vec<f32>,
    cols: usize,
    max_rows: usize,
}

impl Rows {
    fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.cols)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.data.chunks_exact_mut(self.cols)
    }

    fn for_each_group(&mut self, columns: Columns, mut each: impl FnMut(usize, &mut [f32])) {
        for (row_idx, row) in self.iter_mut().enumerate() {
            let groups = row[columns.first..columns.end()].chunks_exact_mut(columns.width);
            groups.for_each(|group| each(row_idx, group));
        }
    }
}

/// A dequantized matrix, `[rows, cols]`.
#[derive(Debug)]
pub struct Matrix {
    role: MatrixRole,
    data: Vec<f32>,
    cols: usize,
}

impl Matrix {
    fn multiply(&self, x: &[f32]) -> Vec<f32> {
        let dot = |w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum();
        self.data.chunks_exact(self.cols).map(dot).collect()
    }
}

/// Keys and values of each layer, `[n_blocks, 16, n_kv_heads * head_dim]`.
pub type KvCache = Vec<[Vec<f32>; 2]>;

impl DeviceMemory for ExampleBackend {
    type Buffer = Rows;
    type Matrix = Matrix;
    type Experts = Vec<Expert<Self>>;
    type Vector = Vec<f32>;
    type LowRank = Vec<LowRank>;
    type RopeTables = Vec<Rotations>;
    type KvCache = (usize, KvCache);
    type Batch = BatchInput;

    fn buffer(&self, max_rows: usize, cols: usize) -> Result<Rows, BackendError> {
        Ok(Rows { data: Vec::new(), cols, max_rows })
    }

    fn n_rows(&self, x: &Rows) -> usize {
        x.data.len() / x.cols
    }

    fn set_rows(&mut self, x: &mut Rows, n_rows: usize) {
        assert!(n_rows <= x.max_rows);
        x.data.clear();
        // What is not written before it is read shows in the results.
        x.data.resize(n_rows * x.cols, f32::NAN);
    }

    fn matrix(&self, role: MatrixRole, parts: &[TensorView<'_>]) -> Result<Matrix, BackendError> {
        let cols = *parts[0].shape.last().ok_or(BackendError::Unsupported("a scalar".to_owned()))?;
        let mut data = Vec::new();
        for part in parts {
            let start = data.len();
            data.resize(start + part.shape.iter().product::<usize>(), 0.0);
            dequantize_row(part.format, part.data, &mut data[start..]);
        }
        Ok(Matrix { role, data, cols })
    }

    fn experts(&self, experts: Vec<Expert<Self>>) -> Result<Vec<Expert<Self>>, BackendError> {
        Ok(experts)
    }

    fn vector(&self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    fn low_rank(&self, _: usize, parts: &[LowRankPart<'_>], _: Format) -> Result<Vec<LowRank>, BackendError> {
        Ok(parts.iter().map(LowRank::new).collect())
    }

    fn rope_tables(&self, ropes: &[RopeTable], n_positions: usize) -> Result<Vec<Rotations>, BackendError> {
        ropes.iter().map(|rope| Rotations::new(rope, n_positions)).collect()
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<(usize, KvCache), BackendError> {
        let n = |shape: KvShape| layout.n_blocks * BLOCK_TOKENS * shape.n_kv_heads * shape.head_dim;
        let layers = layout.layers.iter().map(|shape| [(); 2].map(|()| vec![0.0; shape.map_or(0, n)]));
        Ok((layout.n_blocks, layers.collect()))
    }

    fn copy_blocks(&mut self, (n_blocks, layers): &mut (usize, KvCache), copies: &[BlockCopy]) {
        for part in layers.iter_mut().flatten() {
            let block = part.len() / *n_blocks;
            for copy in copies {
                let from = copy.from as usize * block;
                part.copy_within(from..from + block, copy.to as usize * block);
            }
        }
    }

    fn block_layout(&self, (n_blocks, layers): &(usize, KvCache)) -> Option<DeviceBlockLayout> {
        let n_elements: usize = layers.iter().flatten().map(Vec::len).sum();
        Some(DeviceBlockLayout { name: "example-rows-1", n_bytes: n_elements / n_blocks * size_of::<f32>() })
    }

    fn export_block(
        &mut self,
        (n_blocks, layers): &(usize, KvCache),
        block: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        for part in layers.iter().flatten() {
            let n = part.len() / n_blocks;
            bytes.extend(part[block as usize * n..][..n].iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(())
    }

    fn import_block(
        &mut self,
        (n_blocks, layers): &mut (usize, KvCache),
        block: u32,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let mut numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for part in layers.iter_mut().flatten() {
            let n = part.len() / *n_blocks;
            part[block as usize * n..][..n].iter_mut().zip(&mut numbers).for_each(|(to, x)| *to = x);
        }
        Ok(())
    }

    fn batch(&self) -> Result<BatchInput, BackendError> {
        Ok(BatchInput::default())
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut BatchInput) {
        batch.copy_from(input);
        for carried in &input.carried {
            let (_, sampled) = self.in_flight.back().expect("a step was submitted");
            let token = sampled[carried.chosen_idx as usize].0.token;
            batch.tokens[carried.token_idx as usize] = if token == NO_TOKEN { 0 } else { token };
        }
    }

    fn write_rows(&mut self, x: &mut Rows, rows: &[f32]) {
        x.data.clear();
        x.data.extend_from_slice(rows);
    }

    fn download<'a>(&mut self, x: &'a mut Rows) -> Result<&'a mut [f32], BackendError> {
        Ok(&mut x.data)
    }
}

impl DeviceOps for ExampleBackend {
    fn embed(&mut self, table: &Matrix, batch: &BatchInput, scale: f32, out: &mut Rows) {
        for (&token, out) in batch.tokens.iter().zip(out.iter_mut()) {
            let row = &table.data[token as usize * table.cols..];
            out.iter_mut().zip(row).for_each(|(out, x)| *out = x * scale);
        }
    }

    fn matmul(&mut self, x: &Rows, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Rows) {
        let halves = self.halves_partial_products && w.role == MatrixRole::RowParallel;
        for (x, out) in x.iter().zip(out.iter_mut()) {
            out.copy_from_slice(&w.multiply(x));
            bias.iter().for_each(|bias| out.iter_mut().zip(*bias).for_each(|(out, b)| *out += b));
            out.iter_mut().filter(|_| halves).for_each(|out| *out *= 0.5);
        }
    }

    fn all_reduce(&mut self, partial: &mut Rows) {
        if self.halves_partial_products {
            partial.data.iter_mut().for_each(|x| *x *= 2.0);
        }
    }

    fn norm_rows(&mut self, x: &Rows, norm: Norm<'_, Self>, out: &mut Rows) {
        for (x, out) in x.iter().zip(out.iter_mut()) {
            out.copy_from_slice(x);
            normalize(norm, out);
        }
    }

    fn norm_columns(&mut self, x: &mut Rows, columns: Columns, norm: Norm<'_, Self>) {
        norm::normalize_groups(x, columns, norm);
    }

    fn add_low_rank<'a>(
        &mut self,
        x: &Rows,
        groups: &'a RowGroups,
        of: &dyn Fn(usize) -> Option<&'a Vec<LowRank>>,
        out: &mut Rows,
    ) {
        for group in 0..groups.len() {
            for (part, &row) in
                of(group).into_iter().flatten().flat_map(|p| groups.rows(group).iter().map(move |r| (p, r)))
            {
                part.add(&x.data[row * x.cols..][..x.cols], &mut out.data[row * out.cols..][..out.cols]);
            }
        }
    }

    fn rope(
        &mut self,
        x: &mut Rows,
        batch: &BatchInput,
        tables: &Vec<Rotations>,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        x.for_each_group(heads, |row_idx, head| {
            let (cos, sin) = tables[table_idx].at(batch.positions[row_idx] as usize);
            rotate(head, cos, sin, style);
        });
    }

    fn store_kv(
        &mut self,
        (_, layers): &mut (usize, KvCache),
        layer_idx: usize,
        batch: &BatchInput,
        qkv: &Rows,
        shape: &AttentionShape,
    ) {
        let columns = [Columns::of_keys(shape), Columns::of_values(shape)];
        let qkv: Vec<&[f32]> = qkv.iter().collect();
        for span in &batch.spans {
            for i in 0..span.n_rows {
                let (block, slot) = batch.slot(span, span.start + i);
                let n_parts = if shape.values_in_keys.is_some() { 1 } else { 2 };
                for (columns, part) in columns.iter().zip(&mut layers[layer_idx]).take(n_parts) {
                    let new = &qkv[span.first_row + i][columns.first..columns.end()];
                    part[(block * BLOCK_TOKENS + slot) * new.len()..][..new.len()].copy_from_slice(new);
                }
            }
        }
    }

    fn attention(
        &mut self,
        (_, layers): &(usize, KvCache),
        layer_idx: usize,
        batch: &BatchInput,
        queries: AttentionQueries<'_, Self>,
        out: &mut Rows,
    ) {
        attention::attend(&layers[layer_idx], batch, queries, out);
    }

    fn choose_positions(
        &mut self,
        (_, layers): &(usize, KvCache),
        cache_idx: usize,
        batch: &BatchInput,
        queries: IndexQueries<'_, Self>,
        chosen: &mut Rows,
    ) {
        chosen::choose(&layers[cache_idx][0], batch, queries, chosen);
    }

    fn attention_at(
        &mut self,
        (_, layers): &(usize, KvCache),
        layer_idx: usize,
        batch: &BatchInput,
        queries: AttentionQueries<'_, Self>,
        chosen: &Rows,
        out: &mut Rows,
    ) {
        chosen::attend(&layers[layer_idx][0], batch, queries, chosen, out);
    }

    fn relative_attention(
        &mut self,
        batch: &BatchInput,
        queries: AttentionQueries<'_, Self>,
        relative: RelativeScores<'_, Self>,
        out: &mut Rows,
    ) {
        attention::attend_relatively(batch, queries, relative, out);
    }

    fn glu(&mut self, gate_up: &Rows, activation: Activation, out: &mut Rows) {
        for (gate_up, out) in gate_up.iter().zip(out.iter_mut()) {
            out.copy_from_slice(&hidden(gate_up, out.len(), activation));
        }
    }

    fn add(&mut self, x: &mut Rows, y: &Rows, multiplier: f32) {
        x.data.iter_mut().zip(&y.data).for_each(|(x, y)| *x += y * multiplier);
    }

    fn copy_columns(
        &mut self,
        x: &Rows,
        from: HeadColumns,
        out: &mut Rows,
        to: HeadColumns,
        n: usize,
        width: usize,
    ) {
        heads::copy(x, from, out, to, n, width);
    }

    fn matmul_heads(&mut self, x: &Rows, from: HeadColumns, w: &[Matrix], out: &mut Rows, to: HeadColumns) {
        heads::multiply(x, from, w, out, to);
    }

    fn scale_columns(&mut self, x: &mut Rows, columns: Columns, scale: f32) {
        x.for_each_group(columns, |_, group| group.iter_mut().for_each(|x| *x *= scale));
    }

    fn gate_rows(&mut self, x: &mut Rows, gate: &Rows) {
        for (x, gate) in x.iter_mut().zip(&gate.data) {
            x.iter_mut().for_each(|x| *x *= 1.0 / (1.0 + (-gate).exp()));
        }
    }

    fn gate_columns(&mut self, x: &mut Rows, gates: &Rows, first_col: usize) {
        for (x, gates) in x.iter_mut().zip(gates.iter()) {
            x.iter_mut().zip(&gates[first_col..]).for_each(|(x, gate)| *x /= 1.0 + (-gate).exp());
        }
    }

    fn mixture_of_experts(
        &mut self,
        x: &Rows,
        router: Router<'_, Self>,
        experts: &Vec<Expert<Self>>,
        activation: Activation,
        out: &mut Rows,
    ) {
        let share = if self.halves_partial_products { 0.5 } else { 1.0 };
        experts::mix(x, router, experts, (activation, share), out);
    }

    fn gather_logit_rows(&mut self, x: &Rows, batch: &BatchInput, wanted: Range<usize>, out: &mut Rows) {
        for (&token, out) in batch.logit_tokens[wanted].iter().zip(out.iter_mut()) {
            out.copy_from_slice(&x.data[token as usize * x.cols..][..x.cols]);
        }
    }

    fn scale_and_cap(&mut self, x: &mut Rows, scale: f32, softcap: Option<f32>) {
        let capped = |x: f32| softcap.map_or(x, |cap| cap * (x / cap).tanh());
        x.data.iter_mut().for_each(|x| *x = capped(*x * scale));
    }
}

impl Backend for ExampleBackend {
    fn has(&self, _: Capability) -> bool {
        true
    }

    fn max_steps_in_flight(&self) -> usize {
        self.max_steps_in_flight
    }

    /// Answers prompt tokens, and rows that need only the most likely token.
    fn samples(&self, row: &SamplingRow<'_>) -> bool {
        if self.samples_nothing {
            return false;
        }
        let WantedToken::Sampled(input) = row.token else { return true };
        let params = input.params;
        let is_free = params.logit_bias.is_empty() && params.allowed_token_ids.is_none();
        is_free && params.is_greedy() && !params.reads_history() && input.n_output() >= params.min_tokens
    }

    fn sample(&mut self, logits: &mut Rows, rows: &mut dyn Iterator<Item = SamplingRow<'_>>) {
        let cols = logits.cols;
        for row in rows {
            let logits = &mut logits.data[row.row_idx * cols..][..cols];
            let answer = match row.token {
                WantedToken::Sampled(input) => self.sampler.sample(logits, &input),
                WantedToken::Prompt(token) => self.sampler.logprobs(logits, token, row.logprobs.unwrap_or(0)),
            };
            let none =
                ChosenToken { chosen: TokenLogprob { token: NO_TOKEN, logprob: 0.0, rank: 0 }, top: &[] };
            let ChosenToken { chosen, top } = answer.unwrap_or(none);
            self.sampled.push((chosen, top.to_vec()));
        }
    }

    fn submit(&mut self) -> Ticket {
        assert!(self.in_flight.len() < self.max_steps_in_flight, "too many steps are in flight");
        self.n_submitted += 1;
        let ticket = Ticket(self.n_submitted);
        self.in_flight.push_back((ticket, std::mem::take(&mut self.sampled)));
        ticket
    }

    fn collect(&mut self, ticket: Ticket, sampled: &mut SampledRows) -> Result<(), BackendError> {
        let (oldest, answers) = self.in_flight.pop_front().expect("a step was submitted");
        assert_eq!(oldest, ticket, "tickets are collected in order");
        answers.iter().for_each(|(chosen, top)| sampled.push(*chosen, top));
        Ok(())
    }
}
