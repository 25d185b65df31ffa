//! A device that takes weights and holds nothing of them. It has no buffers, so that no operation can be
//! called.

use std::convert::Infallible;
use std::ops::Range;

use throng_core::batch::SlotCopy;
use throng_kernels::low_rank::LowRankPart;
use throng_kernels::quant::Format;

use crate::backend::{
    AttentionQueries, AttentionShape, Backend, BackendError, BlockCopy, Columns, Conv, DeltaNet,
    DeviceMemory, DeviceOps, Expert, HeadColumns, LayerStates, MatrixRole, Norm, RecurrentOps, Router,
    RowGroups, StateSpace,
};
use crate::batch_input::BatchInput;
use crate::config::{Activation, RopeStyle, RopeTable};
use crate::kv_cache::KvLayout;
use crate::state_cache::StateLayout;
use crate::weights::TensorView;

/// The device.
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

    fn low_rank(
        &self,
        _cols: usize,
        _parts: &[LowRankPart<'_>],
        _format: Format,
    ) -> Result<Infallible, BackendError> {
        nothing()
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

    fn norm_columns(&mut self, x: &mut Infallible, _columns: Columns, _norm: Norm<'_, Self>) {
        match *x {}
    }

    fn add_low_rank<'a>(
        &mut self,
        x: &Infallible,
        _groups: &'a RowGroups,
        _of: &dyn Fn(usize) -> Option<&'a Infallible>,
        _out: &mut Infallible,
    ) {
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

    fn copy_columns(
        &mut self,
        (x, _): (&Infallible, HeadColumns),
        _out: (&mut Infallible, HeadColumns),
        _n: usize,
        _width: usize,
    ) {
        match *x {}
    }

    fn matmul_heads(
        &mut self,
        (x, _): (&Infallible, HeadColumns),
        _w: &[()],
        _out: (&mut Infallible, HeadColumns),
    ) {
        match *x {}
    }

    fn gate_rows(&mut self, x: &mut Infallible, _gate: &Infallible) {
        match *x {}
    }

    fn gate_columns(&mut self, x: &mut Infallible, _gates: &Infallible, _first_col: usize) {
        match *x {}
    }

    fn mixture_of_experts(
        &mut self,
        x: &Infallible,
        _router: Router<'_, Self>,
        _experts: &(),
        _activation: Activation,
        _out: &mut Infallible,
    ) {
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

    fn scale_and_cap(&mut self, x: &mut Infallible, _scale: f32, _softcap: Option<f32>) {
        match *x {}
    }
}

impl RecurrentOps for NoDevice {
    type States = Infallible;

    fn states(&self, _layout: &StateLayout) -> Result<Infallible, BackendError> {
        nothing()
    }

    fn copy_states(&mut self, states: &mut Infallible, _copies: &[SlotCopy]) {
        match *states {}
    }

    fn short_conv(
        &mut self,
        _states: LayerStates<'_, Self>,
        batch: &Infallible,
        _x: &Infallible,
        _conv: &Conv<Self>,
        _out: &mut Infallible,
    ) {
        match *batch {}
    }

    fn gated_delta_net(
        &mut self,
        _states: LayerStates<'_, Self>,
        batch: &Infallible,
        _x: &mut Infallible,
        _net: &DeltaNet<Self>,
        _out: &mut Infallible,
    ) {
        match *batch {}
    }

    fn state_space(
        &mut self,
        _states: LayerStates<'_, Self>,
        batch: &Infallible,
        _x: &mut Infallible,
        _model: &StateSpace<Self>,
        _out: &mut Infallible,
    ) {
        match *batch {}
    }
}

impl Backend for NoDevice {}
