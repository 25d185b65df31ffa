//! The sizes that a model may have: beyond these a file is broken, not large. Does not know files.

use super::ConfigError;
use crate::config::{
    AttentionConfig, DecoderConfig, DeltaShape, FeedForward, HybridConfig, LatentConfig, Mixer, RopeTable,
    RoutingGroups, RoutingScore,
};

/// Largest size of a row (hidden state, feed-forward, vocabulary).
const MAX_WIDTH: usize = 1 << 24;
/// Ids of tokens in all segments are `u32`.
const MAX_TOKEN_IDS: usize = 1 << 31;
const MAX_LAYERS: usize = 4096;
const MAX_HEADS: usize = 4096;
const MAX_HEAD_DIM: usize = 4096;
const MAX_EXPERTS: usize = 65536;
/// Maximum number of elements of the recurrent state of one layer.
const MAX_STATE: usize = 1 << 28;
/// Positions are `u32` and their number of blocks must be, too, with a margin.
const MAX_SEQUENCE_TOKENS: usize = 1 << 28;

/// Refuses a configuration with which later arithmetic could overflow, divide by zero or index out of range.
pub(super) fn check(config: &DecoderConfig) -> Result<(), ConfigError> {
    let learned = config.encoder.and_then(|encoder| encoder.positions);
    let expert_size = config.expert_size.unwrap_or(config.hidden_size);
    let sizes = [
        ("vocabulary size", config.vocabulary_size, MAX_WIDTH),
        ("hidden size", config.hidden_size, MAX_WIDTH),
        ("width of what experts work on", expert_size, MAX_WIDTH),
        ("context length", config.max_sequence_tokens, MAX_SEQUENCE_TOKENS),
        ("number of token ids", config.n_token_ids(), MAX_TOKEN_IDS),
        ("number of positions", learned.map_or(1, |positions| positions.n_rows), MAX_SEQUENCE_TOKENS),
    ];
    for (what, found, most) in sizes {
        in_range(what, found, most)?;
    }
    check_n_layers(config.layers.len())?;
    for rope in &config.ropes {
        let short = rope.short.iter().flat_map(|short| short.frequencies.iter().chain([&short.amplitude]));
        let mut numbers = rope.frequencies.iter().chain([&rope.amplitude]).chain(short);
        let growth =
            rope.growth.is_none_or(|g| g.beta.is_finite() && g.interval.is_finite() && g.interval >= 1.0);
        if !growth || !numbers.all(|number| number.is_finite()) {
            return Err(ConfigError::invalid("rotation", "not a number", "finite frequencies"));
        }
    }
    check_numbers(config)?;
    check_relative(config)?;
    if config.cache_shapes().next().is_none() {
        return Err(ConfigError::invalid("attention", "no layer", "at least one layer with attention"));
    }
    for layer in &config.layers {
        match &layer.mixer {
            Mixer::Attention(attention) => check_attention(attention, &config.ropes)?,
            Mixer::Latent(latent) => check_latent(latent, &config.ropes)?,
            Mixer::Hybrid(HybridConfig { attention, input_scales, state_scale, .. }) => {
                check_attention(attention, &config.ropes)?;
                check_recurrent(&layer.mixer, config.hidden_size)?;
                for factor in input_scales.iter().chain([state_scale]) {
                    check_number("factor of a state space model", *factor)?;
                }
            }
            recurrent => check_recurrent(recurrent, config.hidden_size)?,
        }
        check_feed_forward(&layer.feed_forward)?;
    }
    Ok(())
}

/// Refuses an impossible head size; called before a table of that length is made.
pub(super) fn check_head_dim(head_dim: usize) -> Result<(), ConfigError> {
    in_range("head size", head_dim, MAX_HEAD_DIM)
}

/// Refuses an impossible number of layers; called before they are allocated.
pub(super) fn check_n_layers(n_layers: usize) -> Result<(), ConfigError> {
    in_range("number of layers", n_layers, MAX_LAYERS)
}

fn check_attention(attention: &AttentionConfig, ropes: &[RopeTable]) -> Result<(), ConfigError> {
    let &AttentionConfig { n_heads, n_kv_heads, head_dim, .. } = attention;
    in_range("number of attention heads", n_heads, MAX_HEADS)?;
    in_range("number of key-value heads", n_kv_heads, MAX_HEADS)?;
    check_head_dim(head_dim)?;
    if !n_heads.is_multiple_of(n_kv_heads) {
        let expected = format!("a divisor of the {n_heads} attention heads");
        return Err(ConfigError::invalid("number of key-value heads", n_kv_heads, expected));
    }
    for rope_idx in [attention.rope_idx, attention.query_rope_idx].into_iter().flatten() {
        let n_rotated = 2 * ropes[rope_idx].frequencies.len();
        if n_rotated == 0 || n_rotated > head_dim {
            let expected = format!("between 2 and the head size {head_dim}");
            return Err(ConfigError::invalid("rotated part of a head", n_rotated, expected));
        }
    }
    for reach in [attention.sliding_window, attention.chunk].into_iter().flatten() {
        in_range("sliding window", reach, MAX_SEQUENCE_TOKENS)?;
    }
    check_number("attention scale", attention.scale)?;
    check_number("value scale", attention.value_scale)?;
    check_number("attention cap", attention.softcap.unwrap_or(1.0))
}

/// Maximum number of tokens of a convolution that is kept in registers.
const MAX_CONV_TOKENS: usize = 8;

fn check_recurrent(mixer: &Mixer, hidden_size: usize) -> Result<(), ConfigError> {
    match *mixer {
        Mixer::GatedDelta(DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, .. }) => {
            in_range("number of key heads", n_key_heads, MAX_HEADS)?;
            in_range("number of value heads", n_value_heads, MAX_HEADS)?;
            in_range("size of a key head", key_dim, MAX_HEAD_DIM)?;
            in_range("size of a value head", value_dim, MAX_HEAD_DIM)?;
            if !n_value_heads.is_multiple_of(n_key_heads) {
                let expected = format!("a divisor of the {n_value_heads} value heads");
                return Err(ConfigError::invalid("number of key heads", n_key_heads, expected));
            }
        }
        Mixer::StateSpace(shape) | Mixer::Hybrid(HybridConfig { state_space: shape, .. }) => {
            in_range("number of state space heads", shape.n_heads, MAX_HEADS)?;
            in_range("size of a state space head", shape.head_dim, MAX_HEAD_DIM)?;
            in_range("state size", shape.state_dim, MAX_HEAD_DIM)?;
            for (what, n_groups) in [("groups", shape.n_groups), ("norm groups", shape.n_norm_groups.max(1))]
            {
                in_range(what, n_groups, shape.n_heads)?;
                if !shape.n_heads.is_multiple_of(n_groups) {
                    let expected = format!("a divisor of the {} heads", shape.n_heads);
                    return Err(ConfigError::invalid(what, n_groups, expected));
                }
            }
            let [least, most] = shape.time_limits;
            if least.is_nan() || most.is_nan() || least > most {
                return Err(ConfigError::invalid(
                    "limits of time",
                    format!("{least} and {most}"),
                    "an interval",
                ));
            }
        }
        Mixer::ShortConv { .. } | Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => {}
    }
    let Some(state) = mixer.state(hidden_size) else { return Ok(()) };
    if !(2..=MAX_CONV_TOKENS).contains(&state.kernel) {
        return Err(ConfigError::invalid("tokens of the convolution", state.kernel, "between 2 and 8"));
    }
    if state.n_elements().is_none_or(|n| n > MAX_STATE) {
        return Err(ConfigError::invalid(
            "size of a recurrent state",
            "more",
            format!("at most {MAX_STATE}"),
        ));
    }
    Ok(())
}

fn check_latent(latent: &LatentConfig, ropes: &[RopeTable]) -> Result<(), ConfigError> {
    in_range("number of attention heads", latent.n_heads, MAX_HEADS)?;
    let dims = [
        ("rank of queries", latent.query_rank.unwrap_or(1)),
        ("rank of keys and values", latent.rank),
        ("elements of a head without rotation", latent.nope_dim),
        ("rotated elements of a head", latent.rope_dim),
        ("elements of a value", latent.value_dim),
    ];
    for (what, found) in dims {
        in_range(what, found, MAX_HEAD_DIM)?;
    }
    let n_rotated = 2 * ropes[latent.rope_idx].frequencies.len();
    if n_rotated != latent.rope_dim {
        return Err(ConfigError::invalid("rotated elements of a head", latent.rope_dim, "an even number"));
    }
    if let Some(indexer) = latent.indexer {
        in_range("number of index heads", indexer.n_heads, MAX_HEADS)?;
        check_head_dim(indexer.head_dim)?;
        in_range("number of chosen positions", indexer.n_chosen, MAX_SEQUENCE_TOKENS >> 4)?;
        if latent.rope_dim > indexer.head_dim {
            let expected = format!("at least the {} rotated elements", latent.rope_dim);
            return Err(ConfigError::invalid("size of an index head", indexer.head_dim, expected));
        }
    }
    check_number("norm epsilon", latent.norm_eps)?;
    check_number("attention scale", latent.scale)
}

fn check_groups(groups: RoutingGroups, n_experts: usize, n_used: usize) -> Result<(), ConfigError> {
    in_range("number of groups of experts", groups.n_groups, n_experts)?;
    in_range("number of groups of a token", groups.n_used, groups.n_groups)?;
    let of_group = n_experts / groups.n_groups;
    if !n_experts.is_multiple_of(groups.n_groups) || groups.n_summed > of_group {
        let expected = format!("a divisor of the {n_experts} experts");
        return Err(ConfigError::invalid("number of groups of experts", groups.n_groups, expected));
    }
    in_range("number of experts of a token", n_used, groups.n_used * of_group)
}

fn check_feed_forward(feed_forward: &FeedForward) -> Result<(), ConfigError> {
    match *feed_forward {
        FeedForward::None => Ok(()),
        FeedForward::Dense { width } => in_range("feed-forward size", width, MAX_WIDTH),
        FeedForward::Experts { n_experts, width, routing, shared } => {
            in_range("number of experts", n_experts, MAX_EXPERTS)?;
            in_range("expert size", width, MAX_WIDTH)?;
            in_range("number of experts of a token", routing.n_used, n_experts)?;
            if let Some(groups) = routing.groups {
                check_groups(groups, n_experts, routing.n_used)?;
            }
            if !routing.scale.is_finite() {
                return Err(ConfigError::invalid(
                    "scale of expert weights",
                    routing.scale,
                    "a finite number",
                ));
            }
            if let RoutingScore::SparseMixer { jitter } = routing.score {
                check_number("jitter of the router", jitter)?;
            }
            shared.map_or(Ok(()), |shared| in_range("shared expert size", shared.width, MAX_WIDTH))
        }
    }
}

/// Scores by distance require encoders with equal heads.
fn check_relative(config: &DecoderConfig) -> Result<(), ConfigError> {
    let Some(relative) = &config.relative else { return Ok(()) };
    in_range("number of buckets of distances", relative.n_buckets, usize::from(u16::MAX))?;
    let is_plain = |attention: &AttentionConfig| {
        attention.is_bidirectional
            && attention.n_kv_heads == attention.n_heads
            && attention.sliding_window.is_none()
            && attention.softcap.is_none()
    };
    let mut attentions = config.attentions();
    let first = attentions.next();
    let are_alike = first.is_some_and(is_plain) && attentions.all(|attention| Some(attention) == first);
    if !are_alike || relative.buckets.is_empty() {
        return Err(ConfigError::invalid(
            "attention by distance",
            "other heads",
            "plain heads of an encoder",
        ));
    }
    Ok(())
}

fn check_numbers(config: &DecoderConfig) -> Result<(), ConfigError> {
    let numbers = [
        ("norm epsilon", config.norm_eps),
        ("norm epsilon", config.post_norm_eps),
        ("embedding scale", config.embedding_scale),
        ("residual scale", config.residual_scale),
        ("logits scale", config.logits_scale),
        ("logits cap", config.logits_softcap.unwrap_or(1.0)),
        ("feed-forward scale", config.mlp_scales[0]),
        ("feed-forward scale", config.mlp_scales[1]),
    ];
    numbers.into_iter().try_for_each(|(what, found)| check_number(what, found))
}

fn check_number(what: &str, found: f32) -> Result<(), ConfigError> {
    if !found.is_finite() || found < 0.0 {
        return Err(ConfigError::invalid(what, found, "a finite number that is not negative"));
    }
    Ok(())
}

fn in_range(what: &str, found: usize, most: usize) -> Result<(), ConfigError> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(ConfigError::invalid(what, found, format!("between 1 and {most}")))
}
