//! The recurrence that the gated delta rule and the state space model share: a matrix that decays with every
//! token, gets a product of a key and an update, and is multiplied with a query. Divides groups and heads of
//! all sequences among threads. Does not know where keys, values and gates come from, nor how a head is
//! computed.

use super::block::{HeadRows, HeadRun, HeadState};
use super::gates::GateScratch;
use super::keys::{BlockKeys, KeyProducts, MultiplyKeys};
use super::state::{BLOCK, StateLayer, StateLayerShape, StateSpan, StateWriter, sequences};
use crate::disjoint::Disjoint;
use crate::rows::for_each_row;
use crate::threads::ThreadPool;

/// Places of the heads of all tokens in a row.
pub(super) struct Scan<'a> {
    /// Number of columns of a row.
    pub(super) stride: usize,
    /// The first columns of all queries, keys and values.
    pub(super) query_col: usize,
    pub(super) key_col: usize,
    pub(super) value_col: usize,
    /// Function from a head to its head of queries and keys.
    pub(super) key_head: &'a (dyn Fn(usize) -> usize + Sync),
    /// Factor of the value that is added to the output, a head; none for the delta rule, which subtracts the
    /// state's present value for the key from the value.
    pub(super) skip: Option<&'a [f32]>,
}

/// Runs the recurrence: one output `[value_dim]` a row and head.
pub(super) fn scan(
    layer: &mut StateLayer,
    spans: &[StateSpan],
    heads: &Scan<'_>,
    x: &[f32],
    scratch: &mut GateScratch,
    out: &mut [f32],
    pool: &ThreadPool,
) {
    let (shape, n_rows) = (*layer.shape(), x.len() / heads.stride);
    let (states, sequences) = (layer.write(spans), sequences(spans));
    let mut products = std::mem::take(&mut scratch.products);
    if products.len() < n_rows * shape.n_key_heads {
        products.resize(n_rows * shape.n_key_heads, KeyProducts::default());
    }
    let groups = Groups { shape, states: &states, heads, x };
    let n_items = sequences.len() * shape.n_key_heads;
    let cost = n_rows.div_ceil(sequences.len().max(1)) * shape.key_dim;
    let sequence_and_group = |item: usize| (sequences[item / shape.n_key_heads], item % shape.n_key_heads);
    let to_fill = Disjoint::new(&mut products);
    for_each_row(n_items, cost * BLOCK / 2, pool, |item| {
        let (spans, group) = sequence_and_group(item);
        let multiply = MultiplyKeys {
            // SAFETY: nothing writes keys until all products and heads are computed.
            keys: unsafe { groups.keys(spans, group) },
            n_rows: spans.iter().map(|span| span.n_rows).sum(),
            products: &to_fill,
            n_groups: shape.n_key_heads,
            group,
            of_keys: heads.skip.is_none(),
        };
        // SAFETY: the sequence's rows, in the group, belong to this call.
        unsafe { pool.isa().run(multiply) };
    });
    run_heads(&groups, &sequences, &products, scratch, &Disjoint::new(out), pool);
    for_each_row(n_items, cost.min(BLOCK * shape.key_dim), pool, |item| {
        let (spans, group) = sequence_and_group(item);
        // SAFETY: the heads, which read keys, are computed; the sequence's rows, in the group, belong to this call.
        unsafe { groups.keep(spans, group) };
    });
    scratch.products = products;
}

/// Runs every head of every sequence.
fn run_heads(
    groups: &Groups<'_>,
    sequences: &[&[StateSpan]],
    products: &[KeyProducts],
    gates: &GateScratch,
    out: &Disjoint<'_, f32>,
    pool: &ThreadPool,
) {
    let Groups { shape, states, heads, .. } = groups;
    pool.for_each(sequences.len() * shape.n_heads, |item| {
        let (spans, head) = (sequences[item / shape.n_heads], item % shape.n_heads);
        let group = (heads.key_head)(head);
        let rows = HeadRows {
            // SAFETY: nothing writes keys until all heads are computed.
            keys: unsafe { groups.keys(spans, group) },
            products: &|row| &products[row * shape.n_key_heads + group],
            value_col: heads.value_col + head * shape.value_dim,
            gates: &|row| gates.of(row, head),
            skip: heads.skip.map(|skip| skip[head]),
            out,
            out_stride: shape.n_heads * shape.value_dim,
            out_col: head * shape.value_dim,
        };
        for span in spans {
            let [block_part, matrix_part] = shape.head_parts(head);
            // SAFETY: the head of the sequence belongs to this call.
            let (block, matrix) =
                unsafe { (states.begin(span, block_part), states.begin(span, matrix_part)) };
            let state = HeadState::new(block, matrix, shape);
            let span = span.first_row..span.first_row + span.n_rows;
            // SAFETY: the sequence's rows, in the columns of the head, belong to this call.
            unsafe { pool.isa().run(HeadRun { rows: &rows, span, state }) };
        }
    });
}

/// Groups of heads that share keys and queries.
struct Groups<'a> {
    shape: StateLayerShape,
    states: &'a StateWriter<'a>,
    heads: &'a Scan<'a>,
    x: &'a [f32],
}

impl Groups<'_> {
    /// The keys of a sequence's block and new tokens.
    ///
    /// # Safety
    /// Nothing may write the keys of the group in the slot that the sequence begins from while they are in
    /// use.
    unsafe fn keys(&self, spans: &[StateSpan], group: usize) -> BlockKeys<'_> {
        let (heads, key_dim) = (self.heads, self.shape.key_dim);
        // SAFETY: by the caller.
        let from = spans[0].from.map(|slot| unsafe { self.states.read(slot, self.shape.group_part(group)) });
        BlockKeys {
            kept: from.unwrap_or(&[]),
            n_kept: from.map_or(0, BlockKeys::count),
            key_dim,
            x: self.x,
            stride: heads.stride,
            key_col: heads.key_col + group * key_dim,
            query_col: heads.query_col + group * key_dim,
            first_row: spans[0].first_row,
        }
    }

    /// Keeps the keys of the sequence's unfinished blocks.
    ///
    /// # Safety
    /// Nothing else may use the keys of the group in the slots of the sequence.
    unsafe fn keep(&self, spans: &[StateSpan], group: usize) {
        // SAFETY: by the caller. Nothing is read from the kept keys after this: a state's own part has them.
        let keys = unsafe { BlockKeys { kept: &[], ..self.keys(spans, group) } };
        for span in spans {
            // SAFETY: by the caller.
            keys.keep(span, unsafe { self.states.begin(span, self.shape.group_part(group)) });
        }
    }
}
