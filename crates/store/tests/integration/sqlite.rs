//! The suite of every store, over a SQLite file.

macro_rules! over_a_file {
    ($($promise:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $promise() {
                let folder = tempfile::tempdir().expect("a folder");
                // A name with characters that mean something in URLs.
                let path = folder.path().join("100 % ?#.db");
                crate::suite::$promise(&format!("sqlite:{}", path.display())).await;
            }
        )*
    };
}

over_a_file!(
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

fn url(folder: &tempfile::TempDir) -> String {
    format!("sqlite:{}", folder.path().join("throng.db").display())
}

#[tokio::test]
async fn an_entry_that_is_refused_is_told_from_a_database_that_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let rule = "CREATE TRIGGER refuses BEFORE INSERT ON ledger WHEN NEW.model = 'bad'
        BEGIN SELECT RAISE(ABORT, 'a bad model'); END";
    crate::suite::an_entry_that_is_refused_is_told_from_a_database_that_fails(&url(&folder), rule).await;
}

#[tokio::test]
async fn an_older_database_is_brought_up_to_date() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = include_str!("../fixtures/schema_4.sqlite.sql");
    crate::suite::an_older_database_is_brought_up_to_date(&url(&folder), old).await;
}

#[tokio::test]
async fn objects_of_an_older_database_are_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let old = include_str!("../fixtures/schema_6.sqlite.sql");
    crate::suite::objects_of_an_older_database_are_the_same(&url(&folder), old).await;
}
