//! Answers one batch: reads its lines in order, answers a bounded number of them at a time, and writes
//! results together with the counts.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use throng_store::{
    ItemAfter, ItemQuery, MAX_PAGE_ENTRIES, NewItem, ObjectKey, ObjectWrite, Quota, StoreError, StoredObject,
    now_unix_s,
};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::context::{Context, stopped};
use super::input::{InputLine, LineReader};
use super::record::{BatchFault, BatchRecord, Counts, Status};
use super::{BatchForm, LineAnswer, LineFault, LineRequest, MAX_LINES, ReadLine, read_line};
use crate::error::StateError;
use crate::files::of_results;
use crate::id::new_id;
use crate::results::{Outcome, ResultLine, ResultPart, ResultsOf, openai_bytes};
use crate::tenant::TenantState;

/// Shortest and longest pause before a line is tried again.
const RETRY_PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// Number of results for unanswered lines that are written at a time at the end.
const N_UNANSWERED: usize = 200;

/// Reason why the work on a batch stops before its end.
#[derive(Debug)]
enum Stop {
    /// Another runner has claimed the batch, or it was deleted.
    Lost,
    /// The process is ending.
    Ending,
    /// The batch cannot be answered.
    Failed(BatchFault),
    /// The database fails; the batch is resumed later.
    State(StateError),
}

impl From<StateError> for Stop {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Store(StoreError::UnknownObject) => {
                failed("invalid_input_file", "The input is not there any more.")
            }
            other => Self::State(other),
        }
    }
}

fn failed(code: &str, message: &str) -> Stop {
    Stop::Failed(BatchFault { code: code.to_owned(), message: message.to_owned() })
}

/// A line with its result.
struct Finished {
    number: u64,
    line: ResultLine,
    body: Vec<u8>,
}

struct Work {
    context: Context,
    tenant: TenantState,
    form: BatchForm,
    owner: String,
    object: StoredObject,
    record: BatchRecord,
    /// Numbers of the lines that have a result.
    done: HashSet<u64>,
}

/// Answers the lines of the batch whose lease `owner` holds, until it is complete or must stop.
pub(super) async fn work(context: Context, form: BatchForm, key: &ObjectKey, owner: String) {
    let store = context.store.clone();
    match Work::open(context, form, key, owner.clone()).await {
        Ok(Some(mut work)) => work.run().await,
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, batch = key.id, "a batch cannot be read now"),
    }
    // Else its lease is taken over once its beat stands still.
    let _ = store.release_object(key, &owner).await;
}

impl Work {
    /// Reads the batch; `None` if it needs no work.
    async fn open(
        context: Context,
        form: BatchForm,
        key: &ObjectKey,
        owner: String,
    ) -> Result<Option<Self>, StateError> {
        let quota = context.settings.quota;
        let tenant = TenantState::new(context.store.clone(), key.tenant.as_str().into(), quota);
        let Some(object) = context.store.object(key).await? else { return Ok(None) };
        let Ok(record) = BatchRecord::read(&object) else {
            tracing::error!(batch = key.id, "what is kept of a batch cannot be read; it is left alone");
            let body = object.body.clone();
            context.store.write_objects(&[ObjectWrite::replace(&object, body).pending(false)]).await?;
            return Ok(None);
        };
        if record.status.is_final() {
            return Ok(None);
        }
        let mut query = ItemQuery::new(key.clone(), MAX_PAGE_ENTRIES);
        let mut done = HashSet::new();
        loop {
            let page = context.store.item_ids(&query).await?;
            let Some((last, _)) = page.last() else { break };
            query.after = Some(ItemAfter::Number(*last));
            done.extend(page.iter().filter_map(|(_, id)| id.parse::<u64>().ok()));
        }
        Ok(Some(Self { context, tenant, form, owner, object, record, done }))
    }

    async fn run(&mut self) {
        let ended = match self.answer_lines().await {
            Ok(()) => self.finish().await,
            stopped => stopped,
        };
        let ended = match ended {
            Err(Stop::Failed(fault)) => self.fail(fault).await,
            ended => ended,
        };
        match ended {
            Ok(()) | Err(Stop::Lost | Stop::Ending) => {}
            Err(Stop::State(error)) => {
                tracing::warn!(%error, batch = self.object.key.id, "a batch is taken up again later");
            }
            Err(Stop::Failed(fault)) => {
                tracing::warn!(fault.message, batch = self.object.key.id, "a batch cannot be ended now");
            }
        }
    }

    async fn answer_lines(&mut self) -> Result<(), Stop> {
        if self.record.counts.total == 0 {
            self.record.counts.total = self.count_lines().await?;
        }
        if self.record.status == Status::Validating {
            (self.record.status, self.record.times.began) = (Status::InProgress, Some(now_unix_s()));
            self.save(Vec::new()).await?;
        }
        let mut lines = self.lines();
        let mut custom_ids = HashSet::new();
        let mut running = FuturesUnordered::new();
        let mut beat = interval(self.context.settings.beat_interval());
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = self.context.stop.clone();
        let mut has_more = true;
        while !self.is_to_end() {
            if beat.tick().now_or_never().is_some() {
                self.beat().await?;
            }
            let mut finished = Vec::new();
            while has_more && running.len() + finished.len() < self.context.settings.max_lines {
                let Some(line) = lines.next().await? else {
                    has_more = false;
                    break;
                };
                let read = self.read(&line, &mut custom_ids);
                if self.done.contains(&line.number) {
                    continue;
                }
                match self.begin(line.number, read) {
                    Ok(answering) => running.push(answering),
                    Err(fault) => finished.push(fault),
                }
            }
            if running.is_empty() && finished.is_empty() && !has_more {
                break;
            }
            if finished.is_empty() {
                tokio::select! {
                    Some(answered) = running.next() => finished.push(answered),
                    _ = beat.tick() => self.beat().await?,
                    () = stopped(&mut stop) => return Err(Stop::Ending),
                }
            }
            while let Some(Some(answered)) = running.next().now_or_never() {
                finished.push(answered);
            }
            if !finished.is_empty() {
                self.save(finished).await?;
            }
        }
        Ok(())
    }

    fn lines(&self) -> LineReader {
        LineReader::new(&self.tenant, &self.record.input, self.context.settings.max_line_bytes)
    }

    async fn count_lines(&self) -> Result<u64, Stop> {
        let (mut lines, mut n) = (self.lines(), 0);
        while lines.next().await?.is_some() {
            n += 1;
            if n > MAX_LINES {
                return Err(failed("too_many_tasks", &format!("A batch has at most {MAX_LINES} lines.")));
            }
        }
        if n == 0 { Err(failed("empty_file", "The input file has no lines.")) } else { Ok(n) }
    }

    fn is_to_end(&self) -> bool {
        self.record.status == Status::Cancelling || now_unix_s() >= self.record.due_unix_s
    }

    /// Parses a line. A repeated id is a fault, whether the earlier line was answered or not.
    fn read(&self, line: &InputLine, custom_ids: &mut HashSet<u64>) -> ReadLine {
        let Some(bytes) = &line.bytes else {
            let message = format!("A line has at most {} bytes.", self.context.settings.max_line_bytes);
            return Err(LineFault { custom_id: None, code: "line_too_long", message });
        };
        let read = read_line(bytes, &self.record.endpoint)?;
        let mut hasher = DefaultHasher::new();
        read.custom_id.hash(&mut hasher);
        if custom_ids.insert(hasher.finish()) {
            return Ok(read);
        }
        let message = "A line before this one has the same 'custom_id'.".to_owned();
        Err(LineFault { custom_id: Some(read.custom_id), code: "duplicate_custom_id", message })
    }

    /// Begins to answer a line; an invalid line has its result at once.
    fn begin(&self, number: u64, read: ReadLine) -> Result<BoxFuture<'static, Finished>, Finished> {
        let request_id = format!("{}_{number}", self.object.key.id);
        let line = match read {
            Ok(line) => line,
            Err(fault) => {
                let body = fault_body(&fault);
                let outcome = Outcome::Errored;
                let line = ResultLine { custom_id: fault.custom_id, outcome, status: 0, request_id };
                return Err(Finished { number, line, body });
            }
        };
        let request = LineRequest {
            tenant: self.object.key.tenant.clone(),
            principal: self.record.principal.clone(),
            endpoint: self.record.endpoint.clone(),
            request_id: request_id.clone(),
            body: line.body,
        };
        let answerer = self.context.answerer.clone();
        let answering = async move {
            loop {
                match answerer.answer(request.clone()).await {
                    LineAnswer::Answered { status, mut body } => {
                        // Results are lines, and line breaks only stand between values.
                        body.iter_mut().filter(|byte| b"\r\n".contains(byte)).for_each(|byte| *byte = b' ');
                        let line = ResultLine::answered(line.custom_id, status, request_id);
                        return Finished { number, line, body };
                    }
                    LineAnswer::Later { after } => {
                        sleep(after.clamp(RETRY_PAUSE[0], RETRY_PAUSE[1])).await;
                    }
                }
            }
        };
        Ok(answering.boxed())
    }

    /// Renews the lease, and checks whether the batch must end.
    async fn beat(&mut self) -> Result<(), Stop> {
        let store = self.context.store.clone();
        if !store.beat_object(&self.object.key, &self.owner).await.map_err(StateError::from)? {
            return Err(Stop::Lost);
        }
        self.refresh().await
    }

    /// Reads changes by the client.
    async fn refresh(&mut self) -> Result<(), Stop> {
        let store = self.context.store.clone();
        let found = store.object(&self.object.key).await.map_err(StateError::from)?;
        let object = found.ok_or(Stop::Lost)?;
        if object.version != self.object.version {
            let BatchRecord { status, times, .. } = BatchRecord::read(&object)?;
            self.record.status = status;
            self.record.times.cancelling = times.cancelling;
            self.object = object;
        }
        Ok(())
    }

    /// Writes results with the counts.
    async fn save(&mut self, finished: Vec<Finished>) -> Result<(), Stop> {
        let before = (self.record.counts, self.record.n_output_bytes, self.record.n_error_bytes);
        let mut items = Vec::with_capacity(finished.len());
        for Finished { number, line, body } in finished {
            // A line has one result.
            if !self.done.insert(number) {
                continue;
            }
            let counts = &mut self.record.counts;
            match line.outcome {
                Outcome::Succeeded => counts.succeeded += 1,
                Outcome::Errored => counts.errored += 1,
                Outcome::Cancelled => counts.cancelled += 1,
                Outcome::Expired => counts.expired += 1,
            }
            match openai_bytes(&line, &body) {
                (Some(ResultPart::Output), n) => self.record.n_output_bytes += n,
                (Some(ResultPart::Errors), n) => self.record.n_error_bytes += n,
                (None, _) => {}
            }
            items.push(line.item(number, &body)?);
        }
        let written = self.write(items, Vec::new(), self.context.settings.quota).await;
        if written.is_err() {
            (self.record.counts, self.record.n_output_bytes, self.record.n_error_bytes) = before;
        }
        written
    }

    /// Writes the record, with items of the batch and other objects in the same transaction.
    async fn write(
        &mut self,
        items: Vec<NewItem>,
        others: Vec<ObjectWrite>,
        quota: Quota,
    ) -> Result<(), Stop> {
        let mut writes = others;
        loop {
            let write = ObjectWrite::replace(&self.object, self.record.write()?)
                .with_items(items.clone())
                .pending(!self.record.status.is_final())
                .owned_by(&self.owner)
                .within(quota);
            writes.push(write);
            match self.context.store.write_objects(&writes).await {
                Ok(written) => {
                    self.object.version = written.last().map_or(self.object.version, |last| last.version);
                    return Ok(());
                }
                Err(StoreError::Conflict) => {
                    writes.pop();
                    let (status, ended) = (self.record.status, self.record.times.ended);
                    self.refresh().await?;
                    // What has ended stays so.
                    if status.is_final() {
                        (self.record.status, self.record.times.ended) = (status, ended);
                    }
                }
                Err(StoreError::LeaseLost | StoreError::UnknownObject) => return Err(Stop::Lost),
                Err(StoreError::Full) => {
                    return Err(failed("storage_full", "The results do not fit into what may be kept."));
                }
                Err(error) => return Err(StateError::from(error).into()),
            }
        }
    }

    /// Writes a result with the reason for every line without one, and ends the batch.
    async fn finish(&mut self) -> Result<(), Stop> {
        let unanswered = match self.record.status {
            Status::Cancelling => Some((Status::Cancelled, Outcome::Cancelled)),
            _ if self.record.counts.n_open() > 0 => Some((Status::Expired, Outcome::Expired)),
            _ => None,
        };
        if let Some((_, outcome)) = unanswered {
            self.end_open_lines(outcome).await?;
        }
        let status = unanswered.map_or(Status::Completed, |(status, _)| status);
        self.end(status).await
    }

    async fn end_open_lines(&mut self, outcome: Outcome) -> Result<(), Stop> {
        if self.record.counts.total == 0 {
            self.record.counts.total = self.count_lines().await?;
        }
        let (mut lines, mut finished) = (self.lines(), Vec::new());
        while let Some(line) = lines.next().await? {
            if self.done.contains(&line.number) {
                continue;
            }
            let read = line.bytes.as_deref().map(|bytes| read_line(bytes, &self.record.endpoint));
            let custom_id = match read {
                Some(Ok(line)) => Some(line.custom_id),
                Some(Err(fault)) => fault.custom_id,
                None => None,
            };
            let request_id = format!("{}_{}", self.object.key.id, line.number);
            let result = ResultLine { custom_id, outcome, status: 0, request_id };
            finished.push(Finished { number: line.number, line: result, body: Vec::new() });
            if finished.len() == N_UNANSWERED {
                self.save(std::mem::take(&mut finished)).await?;
                self.beat().await?;
            }
        }
        self.save(finished).await
    }

    async fn fail(&mut self, fault: BatchFault) -> Result<(), Stop> {
        self.record.fault = Some(fault);
        self.end(Status::Failed).await
    }

    /// Writes the final status, with the files of the results.
    async fn end(&mut self, status: Status) -> Result<(), Stop> {
        let now = now_unix_s();
        (self.record.status, self.record.times.ended) = (status, Some(now));
        let mut files = Vec::new();
        if self.form == BatchForm::Openai {
            let Counts { succeeded, errored, expired, .. } = self.record.counts;
            for (part, n_lines, n_bytes) in [
                (ResultPart::Output, succeeded, self.record.n_output_bytes),
                (ResultPart::Errors, errored + expired, self.record.n_error_bytes),
            ] {
                if n_lines == 0 {
                    continue;
                }
                let id = new_id("file-");
                let results = ResultsOf { batch: self.object.key.id.clone(), part };
                let made = of_results(&self.tenant, &id, now, results, n_bytes)?;
                files.push(made.expiring(self.object.expires_unix_s).within(unbounded()));
                match part {
                    ResultPart::Output => self.record.output_file = Some(id),
                    ResultPart::Errors => self.record.error_file = Some(id),
                }
            }
        }
        self.write(Vec::new(), files, unbounded()).await
    }
}

/// Body of the result of an invalid line.
fn fault_body(fault: &LineFault) -> Vec<u8> {
    serde_json::json!({"code": fault.code, "message": fault.message}).to_string().into_bytes()
}

/// Quota for the end of a batch, which is written even if its tenant has no room left.
fn unbounded() -> Quota {
    Quota { max_objects: u64::MAX, max_bytes: u64::MAX }
}
