//! `throng batch`: answers the requests of a file without a server. After an interruption it continues with
//! the lines without a result.

mod output;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use throng_core::request::TenantId;
use throng_gateway::{Gateway, GatewayConfig, Loading};
use throng_state::batches::{
    ENDPOINTS, LineAnswer, LineFault, LineRequest, MESSAGES, Outcome, ReadLine, ResultLine, openai_result,
    read_line,
};

use self::output::Output;
use super::serve::{process_facts, served_model};
use crate::args::BatchArgs;
use crate::config::{EngineSection, ModelSection};
use crate::process::output::{line, note};
use crate::running;

/// Maximum length of a line in bytes.
const MAX_LINE_BYTES: usize = 8 << 20;

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or written, or the model cannot be loaded.
pub async fn run(arguments: &BatchArgs) -> Result<()> {
    let mut output = Output::open(&arguments.output)?;
    let n_lines = count_lines(&arguments.input)?;
    let section = ModelSection::of(&arguments.model);
    let running = running::start(&section, &EngineSection::of(&arguments.model))?;
    if let Some(text) = running.describe_quantizing() {
        note(text);
    }
    let engine = running.engine.clone();
    let isa = running::isa(&section).map_or_else(|| "none".to_owned(), |isa| isa.name().to_ascii_lowercase());
    let (_gateway, loading) = Gateway::loading(GatewayConfig::default(), process_facts(isa))?;
    loading.finish(vec![served_model(running, &section)])?;
    let bar = progress_bar(n_lines, output.n_done());
    let (n_before, answered) = (output.n_done(), answer(arguments, &loading, &mut output, &bar).await);
    bar.finish_and_clear();
    engine.shutdown();
    let n_failed = answered?;
    output.sync()?;
    let n_answered = output.n_done() - n_before;
    Ok(line(format!(
        "{n_answered} lines answered, {n_failed} of them with an error; {n_before} had been answered before"
    ))?)
}

/// Answers all lines that have no result. Returns the number of failed ones.
async fn answer(
    arguments: &BatchArgs,
    loading: &Loading,
    output: &mut Output,
    bar: &ProgressBar,
) -> Result<u64> {
    let mut lines = Lines::open(&arguments.input)?;
    let mut running = FuturesUnordered::new();
    let (mut n_failed, mut has_more) = (0, true);
    loop {
        while has_more && running.len() < arguments.concurrency {
            let Some((number, bytes)) = lines.next()? else {
                has_more = false;
                break;
            };
            let request_id = format!("line_{number}");
            if !output.has(&request_id) {
                running.push(answer_line(loading, request_id, bytes));
            }
        }
        let Some((result, body)) = running.next().await else { return Ok(n_failed) };
        n_failed += u64::from(result.outcome != Outcome::Succeeded);
        output.write(&result.request_id, &openai_result(&result, &body))?;
        bar.inc(1);
    }
}

async fn answer_line(loading: &Loading, request_id: String, bytes: Vec<u8>) -> (ResultLine, Vec<u8>) {
    let (endpoint, line) = match read(&bytes) {
        Ok(read) => read,
        Err(fault) => {
            let result =
                ResultLine { custom_id: fault.custom_id, outcome: Outcome::Errored, status: 0, request_id };
            let body = serde_json::json!({"code": fault.code, "message": fault.message});
            return (result, body.to_string().into_bytes());
        }
    };
    let request = LineRequest {
        tenant: TenantId::anonymous().0.to_string(),
        principal: Loading::nobody(),
        endpoint,
        request_id: request_id.clone(),
        body: line.body,
    };
    loop {
        match loading.answer_line(request.clone()).await {
            LineAnswer::Answered { status, body } => {
                return (ResultLine::answered(line.custom_id, status, request_id), body);
            }
            LineAnswer::Later { after } => tokio::time::sleep(after).await,
        }
    }
}

/// Parses a line and determines its endpoint.
fn read(bytes: &[u8]) -> Result<(String, throng_state::batches::Line), LineFault> {
    #[derive(Deserialize)]
    struct Head {
        url: Option<String>,
    }
    if bytes.len() > MAX_LINE_BYTES {
        let message = format!("A line has at most {MAX_LINE_BYTES} bytes.");
        return Err(LineFault { custom_id: None, code: "line_too_long", message });
    }
    let url = serde_json::from_slice(bytes).ok().and_then(|Head { url }| url);
    let known = ENDPOINTS.iter().chain([&MESSAGES]).find(|known| url.as_deref() == Some(**known));
    let endpoint = known.unwrap_or(&ENDPOINTS[0]);
    let line: ReadLine = read_line(bytes, endpoint);
    line.map(|line| ((*endpoint).to_owned(), line))
}

/// The lines of the input that are not empty, with their numbers.
struct Lines {
    reader: BufReader<File>,
    number: u64,
}

impl Lines {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { reader: BufReader::new(file), number: 0 })
    }

    fn next(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        loop {
            let mut bytes = Vec::new();
            if self.reader.read_until(b'\n', &mut bytes).context("cannot read the input")? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let line = bytes.trim_ascii();
            if !line.is_empty() {
                return Ok(Some((self.number, line.to_vec())));
            }
        }
    }
}

fn count_lines(path: &Path) -> Result<u64> {
    let (mut lines, mut n) = (Lines::open(path)?, 0);
    while lines.next()?.is_some() {
        n += 1;
    }
    if n == 0 {
        bail!("{} has no lines", path.display());
    }
    Ok(n)
}

fn progress_bar(n_lines: u64, n_done: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} lines, {eta} left");
    let bar = ProgressBar::new(n_lines);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_position(n_done);
    // Lines of an earlier run must not count for the speed.
    bar.reset_eta();
    bar
}
