//! A database whose disk is full refuses what it cannot write, says so, and is as before when there is room
//! again.

use throng_store::{
    AnswerClaim, Claimed, KeptAnswer, LedgerEntry, LimitKind, LimitScope, NewKey, Outcome, Prices,
    StoreError, UsageQuery, open,
};
use throng_testkit::small_disk::SmallDisk;

fn new_key() -> NewKey {
    NewKey { organisation: "acme".to_owned(), project: "p".to_owned(), ..NewKey::default() }
}

fn entry(id: usize) -> LedgerEntry {
    LedgerEntry {
        id: format!("{id:032x}"),
        request_id: format!("req_{id}"),
        at_unix_s: 10,
        organisation_id: "org_1".to_owned(),
        project_id: "proj_1".to_owned(),
        key_id: format!("key_{}", id % 4),
        user: String::new(),
        model: "small".to_owned(),
        prompt_tokens: 10,
        cached_tokens: 4,
        generated_tokens: 3,
        prices: Prices::default(),
        latency_ms: 5,
        outcome: Outcome::Stop,
    }
}

fn claim(number: usize) -> AnswerClaim {
    AnswerClaim {
        tenant: "tenant".to_owned(),
        key: format!("key {number}"),
        request: "request".to_owned(),
        owner: "owner".to_owned(),
        expires_unix_s: 1_000,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_on_a_full_disk_is_written_again_when_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(folder.path(), 4 << 10) else { return };
    let store = open(disk.path("throng.db").to_str().expect("UTF-8")).await.expect("a database");
    store.create_key(new_key()).await.expect("made");
    let scope = LimitScope::Organisation("acme".to_owned());
    let answer = KeptAnswer { content_type: "text/plain".to_owned(), body: vec![0; 1 << 16] };
    let mut n_written = 0;
    for round in 0..3 {
        disk.fill();
        // Its files may have room for some.
        let mut faults = 0;
        for number in 0..2_000 {
            let id = 10_000 * (round + 1) + number;
            match store.append(&[entry(id)]).await {
                Ok(()) => n_written += 1,
                Err(StoreError::Database(_)) => faults += 1,
                Err(other) => panic!("{other:?}"),
            }
            if faults == 5 {
                break;
            }
        }
        assert_eq!(faults, 5, "the disk is full");
        assert!(store.write_fault().is_some());
        for attempt in 0..4 {
            let claim = claim(100 * round + attempt);
            let _ = store.claim_answer(&claim, 0, None).await;
            assert!(!store.keep_answer(&claim, &answer).await.unwrap_or(false), "there is no room");
        }
        // What needs no room is answered.
        assert_eq!(store.keys().await.expect("read").keys.len(), 1 + round);
        let all = UsageQuery { end_unix_s: 100, ..UsageQuery::default() };
        let n_seen = store.usage(&all).await.expect("read").first().map_or(0, |row| row.n_requests);
        assert_eq!(n_seen, n_written, "what was refused is not there");
        disk.free();
        store.probe_write().await.expect("it is written again");
        assert_eq!(store.write_fault(), None);
        // Both of its connections.
        let (made, limited) = tokio::join!(
            store.create_key(new_key()),
            store.limit(&scope, vec![(LimitKind::TokensPerDay, Some(7))])
        );
        made.expect("made");
        limited.expect("limited");
        let claim = claim(100 * round + 99);
        assert_eq!(store.claim_answer(&claim, 0, None).await.expect("claimed"), Claimed::Granted);
        assert!(store.keep_answer(&claim, &answer).await.expect("kept"));
        store.append(&[entry(round)]).await.expect("written");
        n_written += 1;
        store.check().await.expect("whole");
    }
}
