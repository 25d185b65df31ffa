//! Batches: each line has one result, whatever happens to its runners.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use throng_state::batches::{
    self, Answerer, Batch, BatchForm, LineAnswer, LineRequest, MessageResults, NewBatch, NewMessageBatch,
    Runner, RunnerSettings, Status,
};
use throng_state::files::{self, NewFile, Upload};
use throng_state::{StateError, TenantState};
use throng_store::{Quota, Store, open};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const ENDPOINT: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers with the body that it gets, after a moment; now and then it has no room at first.
#[derive(Debug, Default)]
struct Echo {
    n_answered: Mutex<HashMap<String, usize>>,
    /// Answers nothing.
    is_stuck: bool,
}

impl Answerer for Echo {
    fn answer(&self, request: LineRequest) -> BoxFuture<'static, LineAnswer> {
        let mut n_answered = self.n_answered.lock().expect("no panic");
        let n = n_answered.entry(request.request_id.clone()).or_default();
        *n += 1;
        let is_late = *n == 1 && request.request_id.ends_with('7');
        let (is_stuck, status) = (self.is_stuck, if request.body.contains(&b'!') { 400 } else { 200 });
        async move {
            if is_stuck {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..3))).await;
            match is_late {
                true => LineAnswer::Later { after: Duration::from_millis(1) },
                false => LineAnswer::Answered { status, body: request.body },
            }
        }
        .boxed()
    }
}

struct Place {
    _folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    tenant: TenantState,
}

impl Place {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        let store = open(&url).await.expect("a database");
        let tenant = TenantState::new(store.clone(), "tenant".into(), Quota::default());
        Self { _folder: folder, store, tenant }
    }

    async fn batch(&self, lines: &str) -> Batch {
        let mut upload = Upload::begin(&self.tenant, u64::MAX).await.expect("begun");
        upload.push(lines.as_bytes()).await.expect("written");
        let (filename, purpose) = ("lines".to_owned(), "batch".to_owned());
        let file = upload.finish(NewFile { filename, purpose, expires_after_s: None }).await.expect("whole");
        let new = NewBatch {
            endpoint: ENDPOINT.to_owned(),
            input_file: file.id,
            metadata: None,
            principal: Value::Null,
        };
        batches::create(&self.tenant, new).await.expect("made")
    }

    /// A runner, and what ends it.
    fn run(&self, answerer: &Arc<Echo>, settings: RunnerSettings) -> (JoinHandle<()>, watch::Sender<bool>) {
        let (stop, stopped) = watch::channel(false);
        let runner = Runner::new(self.store.clone(), answerer.clone(), settings, stopped);
        (tokio::spawn(runner.run()), stop)
    }

    async fn get(&self, form: BatchForm, id: &str) -> Batch {
        batches::get(&self.tenant, form, id).await.expect("there")
    }

    async fn ended(&self, form: BatchForm, id: &str) -> Batch {
        let wait = async {
            loop {
                let batch = self.get(form, id).await;
                if batch.status.is_final() {
                    return batch;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it ends")
    }

    async fn results(&self, file: Option<&String>) -> Vec<Value> {
        let Some(file) = file else { return Vec::new() };
        let (known, mut content) = files::content(&self.tenant, file).await.expect("there");
        let mut read = Vec::new();
        while let Some(piece) = content.next().await.expect("read") {
            read.extend(piece);
        }
        assert_eq!(known.n_bytes, read.len() as u64);
        let text = String::from_utf8(read).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

fn settings() -> RunnerSettings {
    RunnerSettings {
        max_lines: 4,
        max_batches: 2,
        max_line_bytes: 300,
        dead_after: Duration::from_millis(500),
        quota: Quota::default(),
    }
}

fn line(id: impl std::fmt::Display, prompt: &str) -> String {
    format!(r#"{{"custom_id":"{id}","method":"POST","url":"{ENDPOINT}","body":{{"prompt":"{prompt}"}}}}"#)
}

fn lines(n: usize) -> String {
    (0..n).fold(String::new(), |mut text, number| {
        writeln!(text, "{}", line(number, "x")).expect("a string takes everything");
        text
    })
}

fn ids(results: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> =
        results.iter().map(|result| result["custom_id"].as_str().unwrap_or("?").to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_has_one_result_and_a_bad_one_holds_up_nothing() {
    let place = Place::new().await;
    let long = line("long", &"x".repeat(400));
    let text =
        ["", &line("a", "x"), "no JSON", &line("b", "!"), "  ", &long, &line("a", "again"), &line("c", "x")];
    let batch = place.batch(&text.join("\n")).await;
    let (runner, _stop) = place.run(&Arc::default(), settings());
    let done = place.ended(BatchForm::Openai, &batch.id).await;
    assert_eq!((done.status, done.counts.total), (Status::Completed, 6));
    assert_eq!((done.counts.succeeded, done.counts.errored), (2, 4));
    let answers = place.results(done.output_file.as_ref()).await;
    assert_eq!(ids(&answers), ["a", "c"]);
    assert_eq!(answers[0]["response"]["body"]["prompt"], "x");
    let errors = place.results(done.error_file.as_ref()).await;
    assert_eq!(ids(&errors), ["?", "?", "a", "b"]);
    let mut codes: Vec<&str> = errors.iter().filter_map(|error| error["error"]["code"].as_str()).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["duplicate_custom_id", "invalid_json_line", "line_too_long"]);
    runner.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_that_die_lose_and_double_nothing() {
    let place = Place::new().await;
    let batch = place.batch(&lines(400)).await;
    let answerer: Arc<Echo> = Arc::default();
    let mut runners = [place.run(&answerer, settings()), place.run(&answerer, settings())];
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..900))).await;
        let dead = fastrand::usize(..2);
        runners[dead].0.abort();
        runners[dead] = place.run(&answerer, settings());
    }
    let done = place.ended(BatchForm::Openai, &batch.id).await;
    let n = done.counts.succeeded;
    assert_eq!((done.status, done.counts.total, n, done.counts.n_open()), (Status::Completed, 400, 400, 0));
    let answers = place.results(done.output_file.as_ref()).await;
    let mut expected: Vec<String> = (0..400).map(|number: i32| number.to_string()).collect();
    expected.sort();
    assert_eq!(ids(&answers), expected);
    place.store.check().await.expect("whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_is_told_to_end_gives_its_batches_back() {
    let place = Place::new().await;
    let batch = place.batch(&lines(3)).await;
    let stuck = Arc::new(Echo { is_stuck: true, ..Echo::default() });
    let patient = RunnerSettings { dead_after: Duration::from_secs(3_600 * 24), ..settings() };
    let (first, stop) = place.run(&stuck, RunnerSettings { dead_after: patient.dead_after, ..settings() });
    while place.get(BatchForm::Openai, &batch.id).await.status != Status::InProgress {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.send(true).expect("it listens");
    tokio::time::timeout(PATIENCE, first).await.expect("it ends").expect("no panic");
    let (second, _stop) = place.run(&Arc::default(), patient);
    assert_eq!(place.ended(BatchForm::Openai, &batch.id).await.status, Status::Completed);
    second.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_batch_ends_and_a_broken_one_fails() {
    let place = Place::new().await;
    let batch = place.batch(&lines(5)).await;
    let empty = place.batch("\n \n").await;
    let lost = place.batch(&lines(5)).await;
    files::delete(&place.tenant, &lost.input.id).await.expect("deleted");
    let stuck = Arc::new(Echo { is_stuck: true, ..Echo::default() });
    let (runner, _stop) = place.run(&stuck, RunnerSettings { max_batches: 3, ..settings() });
    for (id, code) in [(&empty.id, "empty_file"), (&lost.id, "invalid_input_file")] {
        let failed = place.ended(BatchForm::Openai, id).await;
        assert_eq!((failed.status, failed.fault.expect("told").code.as_str()), (Status::Failed, code));
    }
    batches::cancel(&place.tenant, BatchForm::Openai, &batch.id).await.expect("cancelled");
    let done = place.ended(BatchForm::Openai, &batch.id).await;
    assert_eq!((done.status, done.counts.cancelled, done.output_file), (Status::Cancelled, 5, None));
    let again = batches::cancel(&place.tenant, BatchForm::Openai, &empty.id).await;
    assert!(matches!(again, Err(StateError::Refused(error)) if error.status() == 400));
    runner.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_have_results_of_their_own_form() {
    let place = Place::new().await;
    let params = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).expect("JSON");
    let requests = vec![
        ("good".to_owned(), params("{\n  \"text\": \"x\"\n}")),
        ("bad".to_owned(), params(r#"{"text": "!"}"#)),
        ("streams".to_owned(), params(r#"{"stream": true}"#)),
    ];
    let new = NewMessageBatch { requests, principal: Value::Null };
    let batch = batches::create_messages(&place.tenant, new).await.expect("made");
    let form = BatchForm::Anthropic;
    assert!(MessageResults::open(&place.tenant, &batch.id).await.is_err(), "it has not ended");
    assert!(batches::delete(&place.tenant, form, &batch.id).await.is_err(), "it has not ended");
    let (runner, _stop) = place.run(&Arc::default(), settings());
    let done = place.ended(form, &batch.id).await;
    assert_eq!((done.counts.succeeded, done.counts.errored), (1, 2));
    let mut results = MessageResults::open(&place.tenant, &batch.id).await.expect("ended");
    let mut found = HashMap::new();
    while let Some(line) = results.next().await.expect("read") {
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        found.insert(line["custom_id"].as_str().expect("an id").to_owned(), line["result"].clone());
    }
    assert_eq!(found["good"]["message"]["text"], "x");
    assert_eq!((&found["bad"]["type"], &found["bad"]["error"]["text"]), (&"errored".into(), &"!".into()));
    assert_eq!(found["streams"]["error"]["error"]["type"], "invalid_request_error");
    assert!(
        batches::get(&place.tenant, BatchForm::Openai, &batch.id).await.is_err(),
        "it is none of OpenAI's"
    );
    batches::delete(&place.tenant, form, &batch.id).await.expect("deleted");
    assert_eq!(place.store.object_usage("tenant").await.expect("read").n_objects, 0, "with its requests");
    runner.abort();
}
