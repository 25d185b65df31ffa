//! Metrics of texts stopped by moderation. Does not know the rules.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::AtScrape;

/// Counts of stopped texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModerationCounts {
    /// Number of requests with refused prompts.
    pub n_prompts: u64,
    /// Number of choices cut by moderation.
    pub n_answers: u64,
    /// Number of texts that the classifier failed to judge.
    pub n_failures: u64,
}

/// Collector that reads the counts at each scrape.
#[derive(Debug)]
pub(super) struct ModerationCollector(pub AtScrape<ModerationCounts>);

impl Collector for ModerationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(counts) = self.0.list().pop() else { return Ok(()) };
        for (name, help, count) in [
            (
                "throng_moderated_prompts",
                "Requests whose prompts were refused by moderation",
                counts.n_prompts,
            ),
            (
                "throng_moderated_answers",
                "Choices that ended before a text that must not be sent",
                counts.n_answers,
            ),
            (
                "throng_classifier_failures",
                "Questions that the classifier of moderation did not answer",
                counts.n_failures,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(metric)?;
        }
        Ok(())
    }
}
