//! The output of `throng bench`: lines of JSON, or a table. Does not measure.

use comfy_table::{Table, presets};
use serde::Serialize;

use super::limits::{Binding, Limits};
use crate::kv_budget::show;
use crate::process::memory;
use crate::running::RunningModel;
use crate::step_shares::StepShares;

/// One line of the result.
#[derive(Debug, Serialize)]
pub struct Measured {
    pub concurrency: u32,
    pub prompt_tokens: u32,
    pub generate_tokens: u32,
    pub shared_prefix: u32,
    /// Seconds of the prefill: until the last user has its first token.
    pub prefill_s: f64,
    pub prefill_tokens_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_limit: Option<Share>,
    /// Seconds of the decode phase.
    pub decode_s: f64,
    pub decode_tokens_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_limit: Option<Share>,
    pub total_s: f64,
    pub total_tokens_per_s: f64,
    /// Parts of a decode step with all users; absent if there was no such step.
    pub decode_step: Option<StepShares>,
}

/// The machine's limit for a figure.
#[derive(Debug, Serialize)]
pub struct Share {
    /// The least work.
    pub int8_operations: f64,
    pub bf16_operations: f64,
    pub f32_operations: f64,
    pub bytes: f64,
    /// The resource that determines the least time.
    pub binding: Binding,
    /// Tokens per second at the least time.
    pub tokens_per_s: f64,
    /// Share of the limit that the figure reaches.
    pub share: f64,
}

/// The fields of every line.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    #[serde(flatten)]
    pub measured: Measured,
    pub start_up: StartUp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<&'a Limits>,
}

/// Start-up time and memory of the model.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StartUp {
    /// Bytes of all tensors as stored in the file.
    pub stored_bytes: u64,
    /// Bytes of all tensors in memory; differs from `stored_bytes` if weights were quantized.
    pub weights_bytes: u64,
    /// Seconds until the weights were packed in memory.
    pub load_s: f64,
    /// Seconds until the model accepted requests.
    pub ready_s: f64,
    pub load_bytes_per_s: f64,
    /// Peak memory of the process in bytes until the model was ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
}

impl StartUp {
    /// Start-up figures of a model that has just become ready.
    pub fn of(running: &RunningModel) -> Self {
        let stored_bytes = running.model.stored_summary().n_bytes;
        let load_s = running.start_up.load.as_secs_f64();
        Self {
            stored_bytes,
            weights_bytes: running.model.weight_summary().n_bytes,
            load_s,
            ready_s: running.start_up.ready.as_secs_f64(),
            load_bytes_per_s: stored_bytes as f64 / load_s,
            peak_memory_bytes: memory::peak_bytes(),
        }
    }

    /// One line for the operator.
    pub fn describe(&self) -> String {
        let peak = self.peak_memory_bytes.map_or_else(String::new, |peak| {
            let times = peak as f64 / self.weights_bytes as f64;
            format!("; {} of memory at most, {times:.2} times the weights", show(peak))
        });
        format!(
            "ready in {:.2} s, {:.2} s of them for {} of weights ({:.2} GB/s){peak}",
            self.ready_s,
            self.load_s,
            show(self.stored_bytes),
            self.load_bytes_per_s / 1e9,
        )
    }
}

/// One line for the operator.
pub fn describe(limits: &Limits) -> String {
    format!(
        "limits: {:.0} GOP/s int8 ({}), {:.0} GOP/s bf16 ({}), {:.0} GOP/s f32 ({}), {:.1} GB/s read ({})",
        limits.int8_operations_per_s / 1e9,
        limits.int8_instructions,
        limits.bf16_operations_per_s / 1e9,
        limits.bf16_instructions,
        limits.f32_operations_per_s / 1e9,
        limits.f32_instructions,
        limits.read_bytes_per_s / 1e9,
        show(limits.read_bytes as u64),
    )
}

/// The table's header.
pub fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "users",
        "prefill s",
        "prefill tok/s",
        "of limit",
        "decode s",
        "decode tok/s",
        "of limit",
        "total tok/s",
        "decode step ms",
        "not forward %",
    ]);
    table
}

/// One row of the table.
pub fn row(measured: &Measured) -> [String; 10] {
    let of_limit = |share: &Option<Share>| {
        let text = |share: &Share| format!("{:.0} % ({})", 100.0 * share.share, share.binding.name());
        share.as_ref().map_or_else(|| "-".to_owned(), text)
    };
    [
        measured.concurrency.to_string(),
        format!("{:.2}", measured.prefill_s),
        format!("{:.1}", measured.prefill_tokens_per_s),
        of_limit(&measured.prefill_limit),
        format!("{:.2}", measured.decode_s),
        format!("{:.1}", measured.decode_tokens_per_s),
        of_limit(&measured.decode_limit),
        format!("{:.1}", measured.total_tokens_per_s),
        measured.decode_step.map_or_else(String::new, |step| format!("{:.2}", step.step_ms)),
        measured.decode_step.map_or_else(String::new, |step| format!("{:.2}", step.not_forward_percent)),
    ]
}
