//! The suite of every store, over a real PostgreSQL server, and what holds when that server is killed or
//! frozen.

use std::time::{Duration, Instant};

use throng_store::{StoreError, open};
use throng_testkit::postgres::Postgres;

macro_rules! over_a_server {
    ($server:expr, $($promise:ident),* $(,)?) => {
        $(crate::suite::$promise(&$server.new_database(stringify!($promise))).await;)*
    };
}

/// PostgreSQL cuts names at 63 bytes.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_every_promise_and_survives_kills_and_freezes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut server) = Postgres::start(folder.path()) else { return };
    for_every_promise!(over_a_server, server,);
    let rule = "ALTER TABLE ledger ADD CONSTRAINT refuses CHECK (model <> 'bad')";
    crate::suite::an_entry_that_is_refused_is_told_from_a_database_that_fails(
        &server.new_database("refused"),
        rule,
    )
    .await;
    let old = include_str!("../fixtures/schema_3.postgres.sql");
    crate::suite::an_older_database_is_brought_up_to_date(&server.new_database("old"), old).await;
    let url = server.new_database("killed");
    // Several processes may bring one schema up to date.
    let (first, second) = tokio::join!(open(&url), open(&url));
    let (store, _) = (first.expect("a database"), second.expect("a database"));
    let key = store.create_key(crate::suite::new_key("acme", "search")).await.expect("made").key;
    for _ in 0..3 {
        server.kill_and_restart();
        // The first statements may find a connection that has ended.
        let mut answer = store.keys().await;
        for _ in 0..5 {
            if answer.is_err() {
                answer = store.keys().await;
            }
        }
        assert_eq!(answer.expect("answers again").keys, std::slice::from_ref(&key));
    }
    server.freeze();
    let begun = Instant::now();
    let frozen = store.keys().await;
    assert!(frozen.is_err(), "{frozen:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for a frozen server");
    server.thaw();
    let mut answer = store.keys().await;
    for _ in 0..5 {
        if answer.is_err() {
            answer = store.keys().await;
        }
    }
    assert_eq!(answer.expect("answers again").keys, [key]);
    server.stop();
    assert!(store.keys().await.is_err() && open(&url).await.is_err());
    let refused = open("postgres://user:canary@[").await.expect_err("not a URL");
    assert!(matches!(refused, StoreError::BadUrl) && !format!("{refused:?}").contains("canary"));
}
