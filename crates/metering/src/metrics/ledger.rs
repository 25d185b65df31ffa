//! Metrics of the ledger's queues and losses. Does not know its content.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::ledger::Ledger;

/// Collector that reads the ledger's state at each scrape.
#[derive(Debug)]
pub(super) struct LedgerCollector(pub Arc<Ledger>);

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (n_waiting, n_lost) = self.0.n_waiting_and_lost();
        let help = "Entries of the ledger that wait in the journal for the database";
        let metric =
            encoder.encode_descriptor("throng_ledger_waiting_entries", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(n_waiting).unwrap_or(i64::MAX)).encode(metric)?;
        let help = "Entries of the ledger that the journal could not take";
        let metric =
            encoder.encode_descriptor("throng_ledger_lost_entries", help, None, MetricType::Counter)?;
        ConstCounter::new(n_lost).encode(metric)?;
        let help = "Entries of the ledger and lines of the audit that the database could not take";
        let metric =
            encoder.encode_descriptor("throng_ledger_refused_entries", help, None, MetricType::Counter)?;
        ConstCounter::new(self.0.n_refused()).encode(metric)?;
        let help = "Whether the last write to the database has failed";
        let metric =
            encoder.encode_descriptor("throng_database_write_failing", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(self.0.write_fault().is_some())).encode(metric)?;
        let (n_waiting, n_lost) = self.0.audit_waiting_and_lost();
        let help = "Lines of the audit of residency rules that wait for the database";
        let metric =
            encoder.encode_descriptor("throng_audit_waiting_lines", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(n_waiting).unwrap_or(i64::MAX)).encode(metric)?;
        let help = "Lines of the audit of residency rules that found no room to wait for the database";
        let metric = encoder.encode_descriptor("throng_audit_lost_lines", help, None, MetricType::Counter)?;
        ConstCounter::new(n_lost).encode(metric)
    }
}
