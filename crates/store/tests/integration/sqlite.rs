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

for_every_promise!(over_a_file,);

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
