//! The least device that runs a Llama: the required operations and no others, over buffers that are handles.
//! It records the operations of a step's layers and replays them for later steps of the same shape, as a CUDA
//! graph does. Of the model crate it needs the interface alone, and no kernels. Does not know architectures;
//! it is slow.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_checkpoint::TensorView;
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_model::backend::rotations::Rotations;
use throng_model::backend::{
    AttentionQueries, Backend, BackendError, BlockCopy, DeviceMemory, DeviceOps, MatrixRole, Norm,
    RecurrentOps,
};
use throng_model::batch_input::BatchInput;
use throng_model::config::RopeTable;
use throng_model::kv_cache::KvLayout;
use throng_model::shapes::{Activation, AttentionShape, Columns, KvShape, RopeStyle, StepShape};

use crate::rotation::rotate;

/// A device that supports only the operations of Llama.
#[derive(Default)]
pub struct LlamaBackend {
    /// The layers that are being recorded.
    recording: Option<(StepShape, Vec<Operation>)>,
    recorded: HashMap<StepShape, Vec<Operation>>,
    runs_anew: bool,
    counts: Arc<LayerCounts>,
}

/// An operation with its buffers, which can be run again.
type Operation = Box<dyn Fn() + Send>;

/// Number of times that the layers of a step were recorded, and replayed.
#[derive(Debug, Default)]
pub struct LayerCounts {
    /// Number of steps whose layers were recorded.
    pub n_recorded: AtomicUsize,
    /// Number of steps whose layers were replayed.
    pub n_replayed: AtomicUsize,
}

impl LlamaBackend {
    /// A device that runs the operations of all steps.
    pub fn without_replay() -> Self {
        Self { runs_anew: true, ..Self::default() }
    }

    /// Counts of the device.
    pub fn counts(&self) -> Arc<LayerCounts> {
        Arc::clone(&self.counts)
    }

    /// Runs an operation, and keeps it while layers are recorded.
    fn run(&mut self, operation: impl Fn() + Send + 'static) {
        operation();
        if let Some((_, operations)) = &mut self.recording {
            operations.push(Box::new(operation));
        }
    }
}

/// A handle of memory on the device.
#[derive(Debug)]
pub struct Handle<T>(Arc<Mutex<T>>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Handle<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Activations on the device, and the copy that the host has requested.
#[derive(Debug)]
pub struct Buffer {
    rows: Handle<Rows>,
    on_host: Vec<f32>,
}

/// Activations, `[rows, cols]`, or a weight matrix.
#[derive(Debug)]
pub struct Rows {
    data: Vec<f32>,
    cols: usize,
}

impl Rows {
    fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.data.chunks_exact(self.cols)
    }

    /// Rows to be written, `n_rows`: an operation takes their number from its input, so that it can be run
    /// again for a step with another number.
    fn written(&mut self, n_rows: usize) -> impl Iterator<Item = &mut [f32]> {
        self.data.resize(n_rows * self.cols, f32::NAN);
        self.data.chunks_exact_mut(self.cols)
    }

    fn n_rows(&self) -> usize {
        self.data.len() / self.cols
    }
}

/// Keys and values of each layer, `[n_blocks, 16, n_kv_heads * head_dim]`.
#[derive(Debug)]
pub struct Cache {
    n_blocks: usize,
    layers: Vec<[Vec<f32>; 2]>,
}

impl DeviceMemory for LlamaBackend {
    type Buffer = Buffer;
    type Matrix = Arc<Rows>;
    type Experts = Infallible;
    type Vector = Arc<Vec<f32>>;
    type LowRank = Infallible;
    type RopeTables = Arc<Vec<Rotations>>;
    type KvCache = Handle<Cache>;
    type Batch = Handle<BatchInput>;

    fn buffer(&self, _max_rows: usize, cols: usize) -> Result<Buffer, BackendError> {
        Ok(Buffer { rows: Handle::new(Rows { data: Vec::new(), cols }), on_host: Vec::new() })
    }

    fn n_rows(&self, x: &Buffer) -> usize {
        x.rows.lock().n_rows()
    }

    fn set_rows(&mut self, x: &mut Buffer, n_rows: usize) {
        x.rows.lock().written(n_rows).for_each(|row| row.fill(f32::NAN));
    }

    fn matrix(&self, _: MatrixRole, parts: &[TensorView<'_>]) -> Result<Arc<Rows>, BackendError> {
        let cols = *parts[0].shape.last().ok_or(BackendError::Unsupported("a scalar".to_owned()))?;
        let data = parts.iter().flat_map(|part| part.numbers()).collect();
        Ok(Arc::new(Rows { data, cols }))
    }

    fn vector(&self, values: &[f32]) -> Result<Arc<Vec<f32>>, BackendError> {
        Ok(Arc::new(values.to_vec()))
    }

    fn rope_tables(&self, ropes: &[RopeTable], n: usize) -> Result<Arc<Vec<Rotations>>, BackendError> {
        ropes.iter().map(|rope| Rotations::new(rope, n)).collect::<Result<_, _>>().map(Arc::new)
    }

    fn kv_cache(&self, layout: &KvLayout) -> Result<Handle<Cache>, BackendError> {
        let n = |shape: KvShape| layout.n_blocks * BLOCK_TOKENS * shape.n_kv_heads * shape.head_dim;
        let layers = layout.layers.iter().map(|shape| [(); 2].map(|()| vec![0.0; shape.map_or(0, n)]));
        Ok(Handle::new(Cache { n_blocks: layout.n_blocks, layers: layers.collect() }))
    }

    fn copy_blocks(&mut self, cache: &mut Handle<Cache>, copies: &[BlockCopy]) {
        let Cache { n_blocks, layers } = &mut *cache.lock();
        for part in layers.iter_mut().flatten() {
            let block = part.len() / *n_blocks;
            for copy in copies {
                let from = copy.from as usize * block;
                part.copy_within(from..from + block, copy.to as usize * block);
            }
        }
    }

    fn batch(&self) -> Result<Handle<BatchInput>, BackendError> {
        Ok(Handle::new(BatchInput::default()))
    }

    fn upload(&mut self, input: &BatchInput, batch: &mut Handle<BatchInput>) {
        batch.lock().copy_from(input);
    }

    fn write_rows(&mut self, x: &mut Buffer, rows: &[f32]) {
        x.rows.lock().data = rows.to_vec();
    }

    fn download<'a>(&mut self, x: &'a mut Buffer) -> Result<&'a mut [f32], BackendError> {
        x.on_host.clone_from(&x.rows.lock().data);
        Ok(&mut x.on_host)
    }
}

impl DeviceOps for LlamaBackend {
    fn embed(&mut self, table: &Arc<Rows>, batch: &Handle<BatchInput>, scale: f32, out: &mut Buffer) {
        let (table, batch, out) = (Arc::clone(table), batch.clone(), out.rows.clone());
        self.run(move || {
            let tokens = &batch.lock().tokens;
            for (&token, out) in tokens.iter().zip(out.lock().written(tokens.len())) {
                let row = &table.data[token as usize * table.cols..];
                out.iter_mut().zip(row).for_each(|(out, x)| *out = x * scale);
            }
        });
    }

    fn matmul(&mut self, x: &Buffer, w: &Arc<Rows>, bias: Option<&Arc<Vec<f32>>>, out: &mut Buffer) {
        let (x, w, bias, out) = (x.rows.clone(), Arc::clone(w), bias.cloned(), out.rows.clone());
        self.run(move || {
            let x = x.lock();
            for (x, out) in x.iter().zip(out.lock().written(x.n_rows())) {
                for (i, (out, w)) in out.iter_mut().zip(w.iter()).enumerate() {
                    let dot: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    *out = dot + bias.as_ref().map_or(0.0, |bias| bias[i]);
                }
            }
        });
    }

    fn norm_rows(&mut self, x: &Buffer, norm: Norm<'_, Self>, out: &mut Buffer) {
        assert!(norm.bias.is_none(), "a layer norm, which the device does not have");
        let (x, gain, eps, out) = (x.rows.clone(), Arc::clone(norm.gain), norm.eps, out.rows.clone());
        self.run(move || {
            let x = x.lock();
            for (x, out) in x.iter().zip(out.lock().written(x.n_rows())) {
                let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
                let inverse = 1.0 / (mean + eps).sqrt();
                out.iter_mut().zip(x).zip(gain.iter()).for_each(|((out, x), gain)| *out = x * inverse * gain);
            }
        });
    }

    fn rope(
        &mut self,
        x: &mut Buffer,
        batch: &Handle<BatchInput>,
        tables: &Arc<Vec<Rotations>>,
        table_idx: usize,
        heads: Columns,
        style: RopeStyle,
    ) {
        let (x, batch, tables) = (x.rows.clone(), batch.clone(), Arc::clone(tables));
        self.run(move || {
            let (mut x, batch) = (x.lock(), batch.lock());
            let cols = x.cols;
            for (row, &position) in x.data.chunks_exact_mut(cols).zip(&batch.positions) {
                let (cos, sin) = tables[table_idx].at(position as usize);
                for head in row[heads.first..heads.end()].chunks_exact_mut(heads.width) {
                    rotate(head, cos, sin, style);
                }
            }
        });
    }

    fn store_kv(
        &mut self,
        cache: &mut Handle<Cache>,
        layer_idx: usize,
        batch: &Handle<BatchInput>,
        qkv: &Buffer,
        shape: &AttentionShape,
    ) {
        let columns = [Columns::of_keys(shape), Columns::of_values(shape)];
        let (cache, batch, qkv) = (cache.clone(), batch.clone(), qkv.rows.clone());
        self.run(move || {
            let (mut cache, batch, qkv) = (cache.lock(), batch.lock(), qkv.lock());
            for span in &batch.spans {
                for (i, row) in qkv.iter().skip(span.first_row).take(span.n_rows).enumerate() {
                    let (block, slot) = batch.slot(span, span.start + i);
                    for (columns, part) in columns.iter().zip(&mut cache.layers[layer_idx]) {
                        let new = &row[columns.first..columns.end()];
                        part[(block * BLOCK_TOKENS + slot) * new.len()..][..new.len()].copy_from_slice(new);
                    }
                }
            }
        });
    }

    fn attention(
        &mut self,
        cache: &Handle<Cache>,
        layer_idx: usize,
        batch: &Handle<BatchInput>,
        queries: AttentionQueries<'_, Self>,
        out: &mut Buffer,
    ) {
        let shape = *queries.shape;
        let AttentionShape { n_heads, n_kv_heads, head_dim, scale, .. } = shape;
        assert_eq!(
            shape,
            AttentionShape::new(n_heads, n_kv_heads, head_dim, scale),
            "attention to all positions"
        );
        let (cache, batch, qkv, out) =
            (cache.clone(), batch.clone(), queries.qkv.rows.clone(), out.rows.clone());
        self.run(move || {
            let (cache, batch, qkv) = (cache.lock(), batch.lock(), qkv.lock());
            let [keys, values] = &cache.layers[layer_idx];
            let mut out = out.lock();
            let mut rows: Vec<&mut [f32]> = out.written(qkv.n_rows()).collect();
            for span in &batch.spans {
                for (i, query) in qkv.iter().skip(span.first_row).take(span.n_rows).enumerate() {
                    for (head, out) in rows[span.first_row + i].chunks_exact_mut(head_dim).enumerate() {
                        let query = &query[head * head_dim..][..head_dim];
                        let at = |position| {
                            let (block, slot) = batch.slot(span, position);
                            ((block * BLOCK_TOKENS + slot) * n_kv_heads + head * n_kv_heads / n_heads)
                                * head_dim
                        };
                        let score = |position| -> f32 {
                            let key = &keys[at(position)..][..head_dim];
                            query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * scale
                        };
                        let scores: Vec<f32> = (0..=span.start + i).map(score).collect();
                        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
                        out.fill(0.0);
                        for (position, score) in scores.iter().enumerate() {
                            let weight = (score - most).exp() / sum;
                            let value = &values[at(position)..][..head_dim];
                            out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
                        }
                    }
                }
            }
        });
    }

    fn glu(&mut self, gate_up: &Buffer, activation: Activation, out: &mut Buffer) {
        assert_eq!(activation, Activation::Silu, "an activation that the device does not have");
        let (gate_up, out) = (gate_up.rows.clone(), out.rows.clone());
        self.run(move || {
            let gate_up = gate_up.lock();
            for (gate_up, out) in gate_up.iter().zip(out.lock().written(gate_up.n_rows())) {
                let (gate, up) = gate_up.split_at(out.len());
                let silu = |x: f32| x / (1.0 + (-x).exp());
                out.iter_mut().zip(gate).zip(up).for_each(|((out, gate), up)| *out = silu(*gate) * up);
            }
        });
    }

    fn add(&mut self, x: &mut Buffer, y: &Buffer, multiplier: f32) {
        let (x, y) = (x.rows.clone(), y.rows.clone());
        self.run(move || {
            x.lock().data.iter_mut().zip(&y.lock().data).for_each(|(x, y)| *x += y * multiplier)
        });
    }

    fn gather_logit_rows(
        &mut self,
        x: &Buffer,
        batch: &Handle<BatchInput>,
        wanted: Range<usize>,
        out: &mut Buffer,
    ) {
        let (x, batch, out) = (x.rows.clone(), batch.clone(), out.rows.clone());
        self.run(move || {
            let (x, batch) = (x.lock(), batch.lock());
            let tokens = &batch.logit_tokens[wanted.clone()];
            for (&token, out) in tokens.iter().zip(out.lock().written(tokens.len())) {
                out.copy_from_slice(&x.data[token as usize * x.cols..][..x.cols]);
            }
        });
    }
}

impl RecurrentOps for LlamaBackend {
    type States = Infallible;
}

impl Backend for LlamaBackend {
    fn begin_layers(&mut self, shape: StepShape) -> bool {
        if let Some(operations) = self.recorded.get(&shape).filter(|_| !self.runs_anew) {
            operations.iter().for_each(|operation| operation());
            self.counts.n_replayed.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        self.recording = Some((shape, Vec::new()));
        false
    }

    fn end_layers(&mut self) {
        self.counts.n_recorded.fetch_add(1, Ordering::Relaxed);
        self.recorded.extend(self.recording.take());
    }
}
