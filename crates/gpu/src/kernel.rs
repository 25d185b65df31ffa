//! The kernels, and the source of each. Does not know who runs them.

use throng_model::shapes::KvDtype;

use crate::template::{Values, fill};

/// Number of candidates for a token of a row: more than this number of tokens is never listed.
pub(crate) const N_CANDIDATES: usize = 64;
/// Number of logits that a workgroup sorts.
const CHUNK: usize = 1024;

/// Number of chunks of a row, or of the candidates that are left of it.
pub(crate) fn n_chunks(n: usize) -> usize {
    n.div_ceil(CHUNK)
}

/// Layout of weights on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names are those of the formats")]
pub(crate) enum WeightLayout {
    F32,
    F16,
    BF16,
    /// Codes, then f16 scales.
    Q8_0,
    /// Nibbles, then f16 scales.
    Q4_0,
    /// Nibbles, then pairs of scale and min.
    Q4_1,
    /// Fifth bits and nibbles, then f16 scales.
    Q5_0,
    /// Fifth bits and nibbles, then pairs of scale and min.
    Q5_1,
    /// Superblocks as the file stores them.
    Q4_K,
    /// Superblocks as the file stores them.
    Q5_K,
    /// Codes and scales of superblocks, then their f16 scales.
    Q6_K,
    /// Nibbles, then exponents.
    MXFP4,
}

impl WeightLayout {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &["F32"],
            Self::F16 => &["F16"],
            Self::BF16 => &["BF16"],
            Self::Q8_0 => &["Q8_0", "HALVES"],
            Self::Q4_0 => &["Q4_0", "HALVES", "NIBBLES"],
            Self::Q4_1 => &["Q4_1", "NIBBLES"],
            Self::Q5_0 => &["Q5_0", "HALVES", "FIVE_BITS"],
            Self::Q5_1 => &["Q5_1", "FIVE_BITS"],
            Self::Q4_K => &["Q4_K", "K_HEAD"],
            Self::Q5_K => &["Q5_K", "K_HEAD"],
            Self::Q6_K => &["Q6_K", "HALVES"],
            Self::MXFP4 => &["MXFP4", "NIBBLES"],
        }
    }
}

/// Layout of keys and values on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PanelLayout {
    pub(crate) dtype: KvDtypeKey,
    /// Number of elements of a head, in fours.
    pub(crate) dim4: u32,
}

/// [`KvDtype`] as a part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names are those of the formats")]
pub(crate) enum KvDtypeKey {
    F32,
    F16,
    BF16,
    Q8_0,
}

impl From<KvDtype> for KvDtypeKey {
    fn from(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32,
            KvDtype::F16 => Self::F16,
            KvDtype::BF16 => Self::BF16,
            KvDtype::Q8_0 => Self::Q8_0,
        }
    }
}

impl PanelLayout {
    /// Number of words of a panel: the keys or the values of a block and a head.
    pub(crate) fn panel_words(self) -> usize {
        let dim4 = self.dim4 as usize;
        match self.dtype {
            KvDtypeKey::F32 => dim4 * 64,
            KvDtypeKey::F16 | KvDtypeKey::BF16 => dim4 * 32,
            KvDtypeKey::Q8_0 => dim4 * 16 + dim4 / 8 * 16,
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self.dtype {
            KvDtypeKey::F32 => &["KV_F32"],
            KvDtypeKey::F16 => &["KV_F16", "KV_HALVES"],
            KvDtypeKey::BF16 => &["KV_BF16", "KV_HALVES"],
            KvDtypeKey::Q8_0 => &["KV_Q8_0"],
        }
    }
}

/// Operation on each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ElementOp {
    Add,
    GateRows,
    GateColumns,
    Scale,
}

/// A kernel, with the parameters by which it is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Embed(WeightLayout),
    /// Products of few rows, this many at a time.
    Few {
        weights: WeightLayout,
        n_tokens: u32,
        in_vectors: bool,
    },
    /// Products of many rows, sixteen times this number at a time.
    Many {
        weights: WeightLayout,
        n_tokens: u32,
        in_vectors: bool,
    },
    /// Products of a row and the matrix of an expert.
    Routed {
        weights: WeightLayout,
        in_vectors: bool,
    },
    Norm {
        in_place: bool,
    },
    Glu,
    Element(ElementOp),
    Copy {
        chosen: bool,
    },
    Rope,
    Store {
        layout: PanelLayout,
        is_key: bool,
    },
    /// Attention, with one split a workgroup if splits are joined later.
    Attend {
        layout: PanelLayout,
        n_queries: u32,
        value4: u32,
        values_in_keys: bool,
        in_parts: bool,
    },
    /// The splits of each query, joined.
    Join {
        value4: u32,
    },
    /// Attention over chosen positions, of values that are in keys.
    AttendChosen {
        layout: PanelLayout,
        n_queries: u32,
        value4: u32,
    },
    /// The choice of positions.
    Choose {
        layout: PanelLayout,
    },
    /// Attention with scores by distance.
    AttendRelative {
        n_queries: u32,
        dim4: u32,
    },
    CopyBlocks,
    Route {
        n_experts: u32,
    },
    Combine,
    LowRank {
        shrinks: bool,
    },
    Conv {
        is_short: bool,
    },
    Scan {
        is_delta: bool,
    },
    GatedNorm,
    /// The first of the largest logits of each row.
    Largest,
    /// The first candidates of each chunk of a row: of its logits, or of the candidates of the pass before.
    Candidates {
        is_first: bool,
    },
    /// Logits at some places.
    Gather,
}

fn include(name: &str) -> &'static str {
    match name {
        "math" => include_str!("shaders/math.wgsl"),
        "weights" => include_str!("shaders/products/weights.wgsl"),
        "params" => include_str!("shaders/products/params.wgsl"),
        "keys" => include_str!("shaders/sampling/keys.wgsl"),
        "kv" => include_str!("shaders/attention/kv.wgsl"),
        _ => panic!("no part of a kernel is named {name}"),
    }
}

impl Kernel {
    /// Name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::Few { .. } => "few",
            Self::Many { .. } => "many",
            Self::Routed { .. } => "routed",
            Self::Norm { .. } => "norm",
            Self::Glu => "glu",
            Self::Element(_) => "element",
            Self::Copy { .. } => "copy",
            Self::Rope => "rope",
            Self::Store { .. } => "store",
            Self::Attend { .. } => "attend",
            Self::Join { .. } => "join",
            Self::AttendRelative { .. } => "attend_relative",
            Self::AttendChosen { .. } => "attend_chosen",
            Self::Choose { .. } => "choose",
            Self::CopyBlocks => "copy_blocks",
            Self::Route { .. } => "route",
            Self::Combine => "combine",
            Self::LowRank { .. } => "low_rank",
            Self::Conv { .. } => "conv",
            Self::Scan { .. } => "scan",
            Self::GatedNorm => "gated_norm",
            Self::Largest => "largest",
            Self::Candidates { .. } => "candidates",
            Self::Gather => "gather",
        }
    }

    /// Access to the kernel's buffers: a letter each, `r` for read-only ones.
    pub(crate) fn access(self) -> &'static str {
        match self {
            Self::Embed(_) | Self::Store { .. } | Self::Combine | Self::Join { .. } => "rrw",
            Self::Largest | Self::Gather | Self::Candidates { is_first: true } => "rrw",
            Self::Few { .. } | Self::Many { .. } | Self::Route { .. } | Self::LowRank { shrinks: true } => {
                "rrrw"
            }
            Self::LowRank { shrinks: false } => "rrrrw",
            Self::Conv { is_short: false } => "wrrwr",
            Self::Conv { is_short: true } => "wrrwrw",
            Self::Scan { .. } => "rrrrwrw",
            Self::GatedNorm => "wrr",
            Self::Routed { .. } => "rrrwr",
            Self::Norm { in_place: true } => "wrr",
            Self::Norm { in_place: false } => "rrrw",
            Self::Glu | Self::Copy { chosen: false } | Self::Candidates { is_first: false } => "rw",
            Self::Element(ElementOp::Scale) => "w",
            Self::Element(_) | Self::Rope | Self::CopyBlocks => "wr",
            Self::Copy { chosen: true } => "rwr",
            Self::Attend { .. } => "rrrrrrw",
            Self::AttendRelative { .. } | Self::AttendChosen { .. } => "rrrrrrwr",
            Self::Choose { .. } => "rrrrww",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Embed(_) => include_str!("shaders/products/embed.wgsl"),
            Self::Few { .. } | Self::Routed { .. } => include_str!("shaders/products/few.wgsl"),
            Self::Many { .. } => include_str!("shaders/products/many.wgsl"),
            Self::Norm { .. } => include_str!("shaders/rows/norm.wgsl"),
            Self::Glu => include_str!("shaders/rows/glu.wgsl"),
            Self::Element(_) => include_str!("shaders/rows/elementwise.wgsl"),
            Self::Copy { .. } => include_str!("shaders/rows/copy.wgsl"),
            Self::Rope => include_str!("shaders/rows/rope.wgsl"),
            Self::Store { .. } => include_str!("shaders/attention/store.wgsl"),
            Self::Join { .. } => include_str!("shaders/attention/join.wgsl"),
            Self::Choose { .. } => include_str!("shaders/attention/choose.wgsl"),
            Self::Attend { .. } | Self::AttendRelative { .. } | Self::AttendChosen { .. } => {
                include_str!("shaders/attention/attend.wgsl")
            }
            Self::CopyBlocks => include_str!("shaders/attention/copy_blocks.wgsl"),
            Self::Route { .. } => include_str!("shaders/experts/route.wgsl"),
            Self::Combine => include_str!("shaders/experts/combine.wgsl"),
            Self::LowRank { .. } => include_str!("shaders/experts/low_rank.wgsl"),
            Self::Conv { .. } => include_str!("shaders/recurrent/conv.wgsl"),
            Self::Scan { .. } => include_str!("shaders/recurrent/scan.wgsl"),
            Self::GatedNorm => include_str!("shaders/recurrent/gated_norm.wgsl"),
            Self::Largest => include_str!("shaders/sampling/largest.wgsl"),
            Self::Candidates { .. } => include_str!("shaders/sampling/candidates.wgsl"),
            Self::Gather => include_str!("shaders/sampling/gather.wgsl"),
        }
    }

    fn values(self) -> Values {
        let mut values = Values { constants: Vec::new(), flags: Vec::new() };
        let flags = &mut values.flags;
        match self {
            Self::Embed(weights) => flags.extend(weights.flags()),
            Self::Few { weights, n_tokens, in_vectors } | Self::Many { weights, n_tokens, in_vectors } => {
                flags.extend(weights.flags());
                flags.extend(in_vectors.then_some("VECTORS"));
                values.constants.push(("TOKENS", n_tokens));
            }
            Self::Routed { weights, in_vectors } => {
                flags.extend(weights.flags());
                flags.extend(in_vectors.then_some("VECTORS"));
                flags.push("ROUTED");
                values.constants.push(("TOKENS", 1));
            }
            Self::Norm { in_place } => flags.extend(in_place.then_some("IN_PLACE")),
            Self::Element(op) => flags.extend(match op {
                ElementOp::Add => &["ADD", "HAS_Y"][..],
                ElementOp::GateRows => &["GATE_ROWS", "HAS_Y"],
                ElementOp::GateColumns => &["GATE_COLUMNS", "HAS_Y"],
                ElementOp::Scale => &["SCALE"],
            }),
            Self::Copy { chosen } => flags.extend(chosen.then_some("CHOSEN")),
            Self::Store { layout, is_key } => {
                flags.extend(layout.flags());
                flags.extend(is_key.then_some("IS_KEY"));
                let panel = layout.panel_words() as u32;
                values.constants.extend([("DIM4", layout.dim4), ("PANEL_WORDS", panel)]);
            }
            Self::Join { value4 } => values.constants.push(("VALUE4", value4)),
            Self::Attend { layout, n_queries, value4, values_in_keys, in_parts } => {
                flags.extend(layout.flags());
                flags.extend(in_parts.then_some("PART"));
                flags.extend(values_in_keys.then_some("VALUES_IN_KEYS"));
                flags.extend((n_queries == 1).then_some("ONE_QUERY"));
                let constants = [("DIM4", layout.dim4), ("VALUE4", value4), ("QUERIES", n_queries)];
                values.constants.extend(constants);
            }
            Self::AttendChosen { layout, n_queries, value4 } => {
                flags.extend(layout.flags());
                flags.extend(["VALUES_IN_KEYS", "CHOSEN"]);
                flags.extend((n_queries == 1).then_some("ONE_QUERY"));
                let constants = [("DIM4", layout.dim4), ("VALUE4", value4), ("QUERIES", n_queries)];
                values.constants.extend(constants);
            }
            Self::Choose { layout } => {
                flags.extend(layout.flags());
                flags.push("NO_VALUES");
                values.constants.push(("DIM4", layout.dim4));
            }
            Self::AttendRelative { n_queries, dim4 } => {
                flags.push("RELATIVE");
                flags.extend((n_queries == 1).then_some("ONE_QUERY"));
                values.constants.extend([("DIM4", dim4), ("VALUE4", dim4), ("QUERIES", n_queries)]);
            }
            Self::Route { n_experts } => values.constants.push(("EXPERTS", n_experts)),
            Self::LowRank { shrinks } => flags.extend(shrinks.then_some("SHRINK")),
            Self::Conv { is_short } => flags.extend(is_short.then_some("SHORT")),
            Self::Scan { is_delta } => flags.extend(is_delta.then_some("DELTA")),
            Self::Candidates { is_first } => {
                flags.extend(is_first.then_some("FIRST"));
                let constants = [("CHUNK", CHUNK as u32), ("CANDIDATES", N_CANDIDATES as u32)];
                values.constants.extend(constants);
            }
            Self::Glu | Self::Rope | Self::CopyBlocks | Self::Combine | Self::GatedNorm => {}
            Self::Largest | Self::Gather => {}
        }
        values
    }

    /// The source in WGSL.
    pub(crate) fn source(self) -> String {
        fill(self.text(), &self.values(), &include)
    }
}
