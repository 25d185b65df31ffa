//! A device that accepts weights and keeps none of them. It has no buffers, so that no operation can be
//! called.

use std::convert::Infallible;
use std::ops::Range;

use crate::backend::{
    AttentionQueries, AttentionShape, Backend, BackendError, BlockCopy, Capability, Columns, DeviceMemory,
    DeviceOps, Expert, MatrixRole, Norm, RecurrentOps,
};
use crate::batch_input::BatchInput;
use crate::config::{Activation, RopeStyle, RopeTable};
use crate::kv_cache::KvLayout;
use throng_checkpoint::TensorView;

/// A device without memory and operations, for checks of tensors.
pub(super) struct NoDevice;

fn nothing<T>() -> Result<T, BackendError> {
    Err(BackendError::Unsupported("anything but a check of weights".to_owned()))
}

impl DeviceMemory for NoDevice {
    type Buffer = Infallible;
    type Matrix = ();
    type Experts = ();
    type Vector = ();
    type LowRank = Infallible;
    type RopeTables = Infallible;
    type KvCache = Infallible;
    type Batch = Infallible;

    fn buffer(&self, _max_rows: usize, _cols: usize) -> Result<Infallible, BackendError> {
        nothing()
    }

    fn n_rows(&self, x: &Infallible) -> usize {
        match *x {}
    }

    fn set_rows(&mut self, x: &mut Infallible, _n_rows: usize) {
        match *x {}
    }

    fn matrix(&self, _role: MatrixRole, _parts: &[TensorView<'_>]) -> Result<(), BackendError> {
        Ok(())
    }

    fn experts(&self, _experts: Vec<Expert<Self>>) -> Result<(), BackendError> {
        Ok(())
    }

    fn vector(&self, _values: &[f32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn rope_tables(&self, _ropes: &[RopeTable], _n_positions: usize) -> Result<Infallible, BackendError> {
        nothing()
    }

    fn kv_cache(&self, _layout: &KvLayout) -> Result<Infallible, BackendError> {
        nothing()
    }

    fn copy_blocks(&mut self, cache: &mut Infallible, _copies: &[BlockCopy]) {
        match *cache {}
    }

    fn batch(&self) -> Result<Infallible, BackendError> {
        nothing()
    }

    fn upload(&mut self, _input: &BatchInput, batch: &mut Infallible) {
        match *batch {}
    }

    fn write_rows(&mut self, x: &mut Infallible, _rows: &[f32]) {
        match *x {}
    }

    fn download<'a>(&mut self, x: &'a mut Infallible) -> Result<&'a mut [f32], BackendError> {
        match *x {}
    }
}

impl DeviceOps for NoDevice {
    fn embed(&mut self, _table: &(), batch: &Infallible, _scale: f32, _out: &mut Infallible) {
        match *batch {}
    }

    fn matmul(&mut self, x: &Infallible, _w: &(), _bias: Option<&()>, _out: &mut Infallible) {
        match *x {}
    }

    fn norm_rows(&mut self, x: &Infallible, _norm: Norm<'_, Self>, _out: &mut Infallible) {
        match *x {}
    }

    fn rope(
        &mut self,
        x: &mut Infallible,
        _batch: &Infallible,
        _tables: &Infallible,
        _table_idx: usize,
        _heads: Columns,
        _style: RopeStyle,
    ) {
        match *x {}
    }

    fn store_kv(
        &mut self,
        cache: &mut Infallible,
        _layer_idx: usize,
        _batch: &Infallible,
        _qkv: &Infallible,
        _shape: &AttentionShape,
    ) {
        match *cache {}
    }

    fn attention(
        &mut self,
        cache: &Infallible,
        _layer_idx: usize,
        _batch: &Infallible,
        _queries: AttentionQueries<'_, Self>,
        _out: &mut Infallible,
    ) {
        match *cache {}
    }

    fn glu(&mut self, gate_up: &Infallible, _activation: Activation, _out: &mut Infallible) {
        match *gate_up {}
    }

    fn add(&mut self, x: &mut Infallible, _y: &Infallible, _multiplier: f32) {
        match *x {}
    }

    fn gather_logit_rows(
        &mut self,
        x: &Infallible,
        _batch: &Infallible,
        _wanted: Range<usize>,
        _out: &mut Infallible,
    ) {
        match *x {}
    }
}

impl RecurrentOps for NoDevice {
    type States = Infallible;
}

impl Backend for NoDevice {
    /// Reports every capability, so that weights of any kind are accepted.
    fn has(&self, _capability: Capability) -> bool {
        true
    }
}
