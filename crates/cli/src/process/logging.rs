//! The output to standard error: the log, panics and the last error, all through one [`LineQueue`], so that
//! no state of standard error blocks a thread or ends the process. Does not know the content of the log.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::process::line_queue::{LineFormat, LineQueue};
use crate::process::output;
use crate::process::wrapping::{terminal_width, wrapped};
use crate::usage_error::UsageError;

/// The environment variable with the filter, in the syntax of tracing's `EnvFilter`.
const VARIABLE: &str = "THRONG_LOG";
/// Filter before the configured one, which can replace it. The SDK of MCP logs errors with the URLs of
/// servers, which may hold secrets of the operator; each error is in the answer of its request, without them.
const QUIET: &str = "rmcp=off";
/// Maximum time that the process waits at exit until the last lines are written.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// Maximum time that a panicking thread waits until its message is written, in case the process is about to
/// abort.
const PANIC_LIMIT: Duration = Duration::from_millis(100);

static QUEUE: OnceLock<LineQueue> = OnceLock::new();

/// Starts the log with the filter `THRONG_LOG`, else `default`, and logs panics. Called once.
///
/// # Errors
/// When `THRONG_LOG` is not a valid filter, or no thread can be started.
pub fn start(default: &str, format: LineFormat) -> Result<()> {
    let filter = filter(std::env::var_os(VARIABLE).as_deref(), default)?;
    let queue = LineQueue::start("throng-log", format, output::unlocked_stderr());
    let queue = queue.context("cannot start a thread")?;
    let queue = QUEUE.get_or_init(|| queue);
    std::panic::set_hook(Box::new(|panic| tell_panic(queue, panic)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Line(queue))
        .with_target(false)
        .with_ansi(false)
        // tracing-subscriber reports its own errors with `eprintln!`, which panics if standard error cannot be written.
        .log_internal_errors(false);
    match format {
        LineFormat::Text => log.init(),
        LineFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).init()
        }
    }
    Ok(())
}

/// Number of log lines that could not be written.
pub fn n_dropped() -> u64 {
    QUEUE.get().map_or(0, LineQueue::n_dropped)
}

/// Logs the reason for exiting, one line for each line of `text`, and waits briefly until the log is
/// written.
pub fn last_words(text: &str) {
    match QUEUE.get() {
        Some(queue) => {
            let shown = wrapped(text, terminal_width(&io::stderr()));
            shown.lines().for_each(|line| queue.push_message("ERROR", line));
        }
        None => output::note(text),
    }
    finish();
}

/// Waits briefly until the log is written.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(EXIT_LIMIT);
    }
}

fn filter(asked: Option<&OsStr>, default: &str) -> Result<EnvFilter, UsageError> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
        return Ok(EnvFilter::new(format!("{QUIET},{default}")));
    };
    let text = asked.to_str().ok_or_else(|| UsageError(format!("{VARIABLE} is not UTF-8")))?;
    EnvFilter::try_new(format!("{QUIET},{text}")).map_err(|error| {
        UsageError(format!(
            "{VARIABLE}={text:?} is no filter ({error}): name a level (error, warn, info, debug, trace, off) or \
             target=level pairs separated by commas"
        ))
    })
}

fn tell_panic(queue: &LineQueue, panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = panic.payload_as_str().unwrap_or("no message");
    queue.push_message("ERROR", &format!("thread {name} panicked at {place}: {message}"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        backtrace.to_string().lines().for_each(|line| queue.push_message("ERROR", line));
    }
    queue.flush(PANIC_LIMIT);
}

/// One event of the log.
struct Line<'a>(&'a LineQueue);

impl Write for Line<'_> {
    /// Queues a whole event at once: tracing-subscriber writes each event with one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(event);
        self.0.push(line.strip_suffix('\n').unwrap_or(&line));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_read_is_an_error() {
        let read = |text: &str| filter(Some(OsStr::new(text)), "warn").map(|filter| filter.to_string());
        assert_eq!(
            filter(None, "warn").map(|filter| filter.to_string()).ok().as_deref(),
            Some("rmcp=off,warn")
        );
        assert_eq!(read("").ok().as_deref(), Some("rmcp=off,warn"));
        assert_eq!(read("throng=debug").ok().as_deref(), Some("throng=debug,rmcp=off"));
        assert_eq!(read("rmcp=debug").ok().as_deref(), Some("rmcp=debug"), "it can be asked for");
        for bad in ["throng=loud", "a=b=c", "info,,[{"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.starts_with("THRONG_LOG=") && error.contains("is no filter"), "{error}");
        }
    }
}
