//! Kept responses that turns go on from: the same from memory and from the database, and never what is gone.

use std::sync::Arc;

use serde_json::json;
use throng_api::responses::{Item, StateParameters};
use throng_state::responses::{Gathered, KeptResponse, Past, RecentPasts, ResponseRecord, Responses};
use throng_store::open;

const TENANT: &str = "proj_1";

/// A server's responses, and the memory that it has of them.
struct Server {
    responses: Responses,
    recent: Arc<RecentPasts>,
}

impl Server {
    async fn at(folder: &tempfile::TempDir) -> Self {
        let store =
            open(&format!("sqlite:{}", folder.path().join("throng.db").display())).await.expect("opened");
        let recent = Arc::new(RecentPasts::default());
        Self { responses: Responses::new(store, recent.clone(), None), recent }
    }

    /// Keeps a response that goes on from others.
    async fn keep(&self, id: &str, before: &[&str]) -> KeptResponse {
        self.responses.keep(TENANT, id, &Self::record(id, before)).await.expect("kept")
    }

    fn record(id: &str, before: &[&str]) -> ResponseRecord {
        let said = |id: String, role: &str, kind: &str| -> Item {
            let content = json!([{"type": kind, "text": format!("text of {id}")}]);
            let item =
                json!({"type": "message", "id": id, "status": "completed", "role": role, "content": content});
            serde_json::from_value(item).expect("an item")
        };
        ResponseRecord {
            response: serde_json::value::to_raw_value(&json!({"id": id})).expect("JSON"),
            input: vec![said(format!("in_{id}"), "user", "input_text")],
            output: vec![said(format!("out_{id}"), "assistant", "output_text")],
            previous: before.last().map(|&id| id.to_owned()),
            ancestors: before.iter().map(|&id| id.to_owned()).collect(),
            conversation: None,
            trail: None,
            request: None,
        }
    }

    async fn gather(&self, tenant: &str, previous: &str) -> Result<Gathered, throng_api::ApiError> {
        let parameters =
            StateParameters { previous: Some(previous.to_owned()), ..StateParameters::default() };
        self.responses.gather(tenant, &parameters, None).await
    }
}

fn ids(gathered: &Gathered) -> Vec<String> {
    gathered.context.history.iter().map(|item| item.id().to_owned()).collect()
}

#[tokio::test]
async fn a_conversation_in_memory_is_that_of_the_database_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (Server::at(&folder).await, Server::at(&folder).await);
    let first = here.keep("a", &[]).await;
    let second = here.keep("b", &["a"]).await;
    let read = here.gather(TENANT, "b").await.expect("kept");
    assert_eq!(ids(&read), ["in_a", "out_a", "in_b", "out_b"]);
    assert_eq!(read.kept, Some(vec![first, second]));
    assert!(here.recent.find(TENANT, "b").is_some(), "it was remembered");
    let again = here.gather(TENANT, "b").await.expect("kept");
    assert_eq!((ids(&again), &again.kept, again.n_bytes), (ids(&read), &read.kept, read.n_bytes));

    // A response that another server deletes is not found here either, and the error names it.
    there.responses.delete(TENANT, "a").await.expect("deleted");
    let gone = here.gather(TENANT, "b").await.expect_err("gone");
    assert_eq!((gone.code(), gone.message().contains("'a'")), ("previous_response_not_found", true));
    assert!(here.recent.find(TENANT, "b").is_none());
    let stranger = here.gather("proj_2", "b").await.expect_err("another tenant's");
    assert_eq!(stranger.code(), "previous_response_not_found");
}

#[tokio::test]
async fn what_is_remembered_is_used_instead_of_reading() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::at(&folder).await;
    let kept = server.keep("a", &[]).await;
    let marked = |kept: KeptResponse, has_conversation| Past {
        history: Vec::new().into(),
        trail: Arc::default(),
        kept: Some(vec![kept]),
        has_conversation,
        n_bytes: 7,
    };
    server.responses.remember(TENANT, "a", marked(kept.clone(), false));
    assert_eq!(server.gather(TENANT, "a").await.expect("kept").n_bytes, 7);
    let changed = KeptResponse { version: kept.version + 1, ..kept.clone() };
    server.responses.remember(TENANT, "a", marked(changed, false));
    let read = server.gather(TENANT, "a").await.expect("kept");
    assert_eq!(ids(&read), ["in_a", "out_a"], "another version was remembered");
    server.recent.forget(TENANT, "a");
    server.responses.remember(TENANT, "a", marked(kept, true));
    assert!(server.recent.find(TENANT, "a").is_none(), "its conversation can change");
}

#[tokio::test]
async fn a_response_without_its_client_is_pending_until_it_ends_or_is_cancelled() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (Server::at(&folder).await, Server::at(&folder).await);
    for ends in [true, false] {
        let (id, events) = (format!("ends_{ends}"), || vec![b"event".to_vec(), b"event".to_vec()]);
        let record = Server::record(&id, &[]);
        let response = here.responses.begin(TENANT, &id, &record).await.expect("begun");
        assert!(here.responses.append_events(&response, 0, events()).await.expect("written"));
        assert!(here.responses.is_pending(&response).await.expect("read"), "events do not end it");
        assert!(there.responses.is_pending(&response).await.expect("read"));
        if ends {
            here.responses.finish(&response, 2, events(), &record).await.expect("ended");
            assert_eq!(there.responses.events(TENANT, &id, Some(1)).await.expect("read").last, Some(3));
        } else {
            there.responses.cancel(TENANT, &id).await.expect("cancelled");
        }
        assert!(!here.responses.is_pending(&response).await.expect("read"), "{id}");
        there.responses.delete(TENANT, &id).await.expect("deleted");
        assert!(!here.responses.is_pending(&response).await.expect("read"), "it is gone");
    }
}

/// Bytes that this process has read from files and written to them.
#[cfg(target_os = "linux")]
fn transferred() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").expect("counters");
    let of = |name: &str| -> u64 {
        let line = counters.lines().find_map(|line| line.strip_prefix(name)).expect("a counter");
        line.trim().parse().expect("a number")
    };
    of("rchar:") + of("wchar:")
}

/// A stream of N looks over a record of B bytes transfers what is new, and not N times B.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn following_a_stored_stream_transfers_what_is_new_alone() {
    const RECORD_BYTES: usize = 8 << 20;
    const LOOKS: u64 = 100;
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (Server::at(&folder).await, Server::at(&folder).await);
    let mut record = Server::record("long", &[]);
    let content = json!([{"type": "input_text", "text": "x".repeat(RECORD_BYTES)}]);
    let long = json!({"type": "message", "id": "in_long", "status": "completed", "role": "user", "content": content});
    record.input = vec![serde_json::from_value(long).expect("an item")];
    let response = here.responses.begin(TENANT, "long", &record).await.expect("begun");
    let before = transferred();
    let mut after = None;
    for number in 0..LOOKS {
        let idle = there.responses.events(TENANT, "long", after).await.expect("read");
        assert!((idle.events.is_empty(), idle.last, idle.is_running) == (true, None, true), "{number}");
        let event = || vec![format!("event {number}").into_bytes()];
        assert!(here.responses.append_events(&response, number, event()).await.expect("written"));
        assert!(here.responses.beat(&response).await.expect("renewed"));
        let page = there.responses.events(TENANT, "long", after).await.expect("read");
        assert_eq!((page.events, page.last, page.is_running), (event(), Some(number), true));
        after = page.last;
    }
    let n_bytes = transferred() - before;
    // Room for checkpoints of the log, and for tests beside this one.
    assert!(n_bytes < LOOKS * RECORD_BYTES as u64 / 8, "{n_bytes} bytes for {LOOKS} events");
    here.responses.finish(&response, LOOKS, vec![b"end".to_vec()], &record).await.expect("ended");
    let page = there.responses.events(TENANT, "long", after).await.expect("read");
    assert_eq!((page.events, page.last, page.is_running), (vec![b"end".to_vec()], Some(LOOKS), false));
    let page = there.responses.events(TENANT, "long", page.last).await.expect("read");
    assert_eq!((page.events.len(), page.last, page.is_running), (0, None, false));
    let shown = there.responses.shown(TENANT, "long").await.expect("kept");
    assert_eq!(shown.get(), record.response.get());
    let stranger = there.responses.shown("proj_2", "long").await.expect_err("another tenant's");
    assert_eq!(stranger.code(), "response_not_found");
}
