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
    over_a_server!(
        server,
        keys_are_made_found_changed_and_revoked_across_processes,
        limits_of_every_scope_come_with_the_keys,
        concurrent_writers_lose_nothing,
        usage_is_added_up_by_time_and_group_and_entries_count_once,
        days_are_added_up_for_each_key_beyond_64_bits_in_all,
        an_answer_is_claimed_by_one_kept_once_and_taken_over_from_the_dead,
        the_audit_is_appended_to_read_in_pages_and_never_changed,
        odd_texts_and_numbers_are_written_within_bounds,
        totals_are_wide_or_as_large_as_they_can_be,
        bills_from_totals_are_those_from_rows,
        keys_that_have_changed_are_read_alone,
        objects_are_made_changed_over_a_version_listed_and_deleted,
        items_are_numbered_without_gaps_and_added_once,
        a_tenant_finds_nothing_of_another,
        an_object_is_worked_on_by_one_and_taken_over_from_the_dead,
        expired_objects_are_not_found_and_forgotten,
        a_tenant_has_bounds_and_is_exported_and_deleted,
    );
    let rule = "ALTER TABLE ledger ADD CONSTRAINT refuses CHECK (model <> 'bad')";
    crate::suite::an_entry_that_is_refused_is_told_from_a_database_that_fails(
        &server.new_database("refused"),
        rule,
    )
    .await;
    let old = include_str!("../fixtures/schema_3.postgres.sql");
    crate::suite::an_older_database_is_brought_up_to_date(&server.new_database("old"), old).await;
    let old = include_str!("../fixtures/schema_5.postgres.sql");
    crate::suite::objects_of_an_older_database_are_the_same(&server.new_database("bodies"), old).await;
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
