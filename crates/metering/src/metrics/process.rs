//! The usual metrics of Prometheus client libraries about their process, read from `/proc` at each scrape.
//! Empty on systems without `/proc`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// Collector that reads `/proc` at each scrape.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    #[cfg(target_os = "linux")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        linux::encode(&mut encoder)
    }

    #[cfg(not(target_os = "linux"))]
    fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fmt;

    use procfs::process::{LimitValue, Process};
    use procfs::{ProcResult, boot_time_secs, page_size, ticks_per_second};
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::metrics::counter::ConstCounter;

    /// Figures about this process in `/proc`.
    struct Figures {
        cpu_s: f64,
        started_unix_s: f64,
        virtual_bytes: i64,
        resident_bytes: i64,
        n_threads: i64,
        n_open_descriptors: i64,
        max_descriptors: Option<i64>,
    }

    /// Encodes the figures. If one cannot be read, leaves out all of them.
    pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(figures) = read() else { return Ok(()) };
        let help = "User and system CPU time in seconds";
        let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(figures.cpu_s).encode(metric)?;
        let help = "Start time since the Unix epoch in seconds";
        let name = "process_start_time_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&figures.started_unix_s)?;
        let gauges = [
            ("process_virtual_memory_bytes", "Virtual memory in bytes", Some(figures.virtual_bytes)),
            ("process_resident_memory_bytes", "Resident memory in bytes", Some(figures.resident_bytes)),
            ("process_threads", "Threads", Some(figures.n_threads)),
            ("process_open_fds", "Open file descriptors", Some(figures.n_open_descriptors)),
            ("process_max_fds", "Most open file descriptors", figures.max_descriptors),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn read() -> ProcResult<Figures> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = ticks_per_second() as f64;
        let max_descriptors = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as i64),
            LimitValue::Unlimited => None,
        };
        Ok(Figures {
            cpu_s: (stat.utime + stat.stime) as f64 / ticks,
            started_unix_s: boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
            virtual_bytes: stat.vsize as i64,
            resident_bytes: (stat.rss * page_size()) as i64,
            n_threads: stat.num_threads,
            n_open_descriptors: process.fd_count()? as i64,
            max_descriptors,
        })
    }
}
