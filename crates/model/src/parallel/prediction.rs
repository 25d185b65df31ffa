//! Expected effect of dividing a model: the time of a token of one user, from the bytes that are read for it
//! and the measured times of memory and exchanges. Does not know how these are measured.

use std::time::Duration;

use super::Grid;
use crate::config::{DecoderConfig, FeedForward, LayerConfig, Mixer};

/// Measurement made while all ranks read memory at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurements {
    /// Bytes of the weights of each rank.
    pub weight_bytes: Vec<u64>,
    /// Bytes a second that each rank reads.
    pub bytes_per_s: Vec<f64>,
    /// NUMA node of each rank.
    pub nodes: Vec<usize>,
    /// Time to sum one row over the ranks that share a layer; `None` where each has whole layers.
    pub sum: Option<Duration>,
    /// Time until a row is at the next stage.
    pub message: Duration,
}

/// Expected times of a divided model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Time of a token, in seconds.
    pub divided_s: f64,
    /// Share of the time in exchanges.
    pub exchanging: f64,
    /// Time of a token in one process, whose memory is on one NUMA node.
    pub whole_s: f64,
}

/// Sums over ranks for each token: one of the embedding, one after each mixer and each feed-forward block.
pub fn n_sums(config: &DecoderConfig) -> usize {
    let of_layer = |layer: &LayerConfig| {
        usize::from(layer.mixer != Mixer::None) + usize::from(layer.feed_forward != FeedForward::None)
    };
    1 + config.layers.iter().map(of_layer).sum::<usize>()
}

impl Prediction {
    /// The stages work at the same time, each on a token of its own, so the slowest one counts.
    pub fn of(grid: Grid, n_sums: usize, measured: &Measurements) -> Self {
        let Measurements { weight_bytes, bytes_per_s, nodes, sum, message } = measured;
        let reading = |rank: usize| weight_bytes[rank] as f64 / bytes_per_s[rank].max(1.0);
        let stage = |place: usize| {
            (place * grid.n_ranks..(place + 1) * grid.n_ranks).map(reading).fold(0.0, f64::max)
        };
        let slowest = (0..grid.n_stages).map(stage).fold(0.0, f64::max);
        let sums = n_sums as f64 / grid.n_stages as f64 * sum.map_or(0.0, |sum| sum.as_secs_f64());
        let messages = if grid.n_stages > 1 { message.as_secs_f64() } else { 0.0 };
        let on_node = |node: usize| -> f64 {
            bytes_per_s.iter().zip(nodes).filter(|(_, of)| **of == node).map(|(bytes, _)| bytes).sum()
        };
        let of_one_node = nodes.iter().map(|&node| on_node(node)).fold(1.0, f64::max);
        let divided_s = slowest + sums + messages;
        Self {
            divided_s,
            exchanging: (sums + messages) / divided_s.max(f64::MIN_POSITIVE),
            whole_s: weight_bytes.iter().sum::<u64>() as f64 / of_one_node,
        }
    }

    /// Refuses a division that is expected to be slower than one process, unless it is forced.
    ///
    /// # Errors
    /// The expected times, if the division is refused.
    pub fn check(&self, is_forced: bool) -> Result<(), SlowerDivided> {
        if self.divided_s <= self.whole_s || is_forced {
            return Ok(());
        }
        Err(SlowerDivided { divided_ms: self.divided_s * 1e3, whole_ms: self.whole_s * 1e3 })
    }
}

/// A division that is expected to be slower than one process.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "divided over these processes the model is expected to be slower than in one: {divided_ms:.2} ms a token \
     instead of {whole_ms:.2} ms. Leave out --tensor-parallel-size and --pipeline-parallel-size, or add --force"
)]
pub struct SlowerDivided {
    /// Time of a token, divided.
    pub divided_ms: f64,
    /// Time of a token in one process.
    pub whole_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(nodes: &[usize], bytes_per_s: f64, sum_us: u64) -> Measurements {
        Measurements {
            weight_bytes: vec![1 << 30; nodes.len()],
            bytes_per_s: vec![bytes_per_s; nodes.len()],
            nodes: nodes.to_vec(),
            sum: Some(Duration::from_micros(sum_us)),
            message: Duration::from_micros(10),
        }
    }

    #[test]
    fn dividing_over_nodes_pays_and_within_one_node_it_does_not() {
        let grid = Grid { n_ranks: 2, n_stages: 1 };
        let over_nodes = Prediction::of(grid, 57, &measured(&[0, 1], 1e10, 5));
        assert!((over_nodes.whole_s / over_nodes.divided_s - 2.0).abs() < 0.01, "{over_nodes:?}");
        assert!(over_nodes.exchanging < 0.01 && over_nodes.check(false).is_ok());
        // Two ranks share the memory of a node: together they read as fast as one process.
        let within_one = Prediction::of(grid, 57, &measured(&[0, 0], 5e9, 5));
        assert!(within_one.divided_s > within_one.whole_s, "{within_one:?}");
        let refused = within_one.check(false).expect_err("slower").to_string();
        assert!(refused.contains("--force"), "{refused}");
        assert!(within_one.check(true).is_ok());
        // Slow exchanges eat up what two nodes bring.
        let slow = Prediction::of(grid, 57, &measured(&[0, 1], 1e10, 2_000));
        assert!(slow.check(false).is_err() && slow.exchanging > 0.5, "{slow:?}");
    }

    #[test]
    fn the_slowest_stage_counts() {
        let grid = Grid { n_ranks: 1, n_stages: 2 };
        let mut stages = measured(&[0, 1], 1e10, 0);
        stages.sum = None;
        stages.weight_bytes = vec![1 << 30, 3 << 30];
        let prediction = Prediction::of(grid, 57, &stages);
        assert!((prediction.divided_s - (3_u64 << 30) as f64 / 1e10 - 1e-5).abs() < 1e-9, "{prediction:?}");
    }
}
