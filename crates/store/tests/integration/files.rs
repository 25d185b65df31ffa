//! What holds for SQLite files: their copies, their secrecy, and which are refused.

use std::path::Path;
use std::sync::Arc;

use throng_store::{LimitKind, NewKey, Store, StoreError, open};

async fn store_at(path: &Path) -> Arc<dyn Store> {
    open(path.to_str().expect("UTF-8")).await.expect("a database")
}

fn new_key(organisation: &str, project: &str) -> NewKey {
    NewKey { organisation: organisation.to_owned(), project: project.to_owned(), ..NewKey::default() }
}

#[tokio::test]
async fn no_file_has_a_key_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store_at(&folder.path().join("throng.db")).await;
    let created = store.create_key(new_key("acme", "search")).await.expect("made");
    store.revoke_key(&created.key.id).await.expect("revoked");
    let secret = &created.secret().as_bytes()[created.key.prefix.len()..];
    for entry in std::fs::read_dir(folder.path()).expect("a folder") {
        let bytes = std::fs::read(entry.expect("a file").path()).expect("readable");
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
}

#[tokio::test]
async fn a_backup_is_a_whole_database_and_overwrites_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("throng.db"), folder.path().join("copy.db"));
    let store = store_at(&path).await;
    store.create_key(new_key("acme", "search")).await.expect("made");
    store.check().await.expect("whole");
    store.backup(&copy).await.expect("copied");
    assert!(matches!(store.backup(&copy).await, Err(StoreError::BackupExists { .. })));
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&copy.metadata().expect("there").permissions());
        assert_eq!(mode & 0o777, 0o600, "only its owner may read the copy");
    }
    let copied = store_at(&copy).await;
    copied.check().await.expect("whole");
    assert_eq!(copied.keys().await.expect("read").keys, store.keys().await.expect("read").keys);
}

#[tokio::test]
async fn files_that_are_not_ours_or_newer_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("text"), "not a database, but long enough to be looked at as one".repeat(20))
        .expect("written");
    assert!(open(at("text").to_str().expect("UTF-8")).await.is_err());

    // The version stands in the file's header at byte 60, the program's number at byte 68.
    let store = store_at(&at("newer")).await;
    store.close().await;
    let mut bytes = std::fs::read(at("newer")).expect("readable");
    bytes[60..64].copy_from_slice(&1000_u32.to_be_bytes());
    std::fs::write(at("newer"), &bytes).expect("written");
    let refused = open(at("newer").to_str().expect("UTF-8")).await.expect_err("newer");
    assert!(matches!(refused, StoreError::NewerSchema { found: 1000, .. }), "{refused}");
    bytes[60..64].copy_from_slice(&1_u32.to_be_bytes());
    bytes[68..72].copy_from_slice(&5_u32.to_be_bytes());
    std::fs::write(at("foreign"), &bytes).expect("written");
    let refused = open(at("foreign").to_str().expect("UTF-8")).await.expect_err("foreign");
    assert!(matches!(refused, StoreError::Foreign { .. }), "{refused}");
    let refused = open("mysql://user:password@host/db").await.expect_err("not supported");
    assert!(
        matches!(refused, StoreError::UnsupportedDatabase { .. })
            && !refused.to_string().contains("password")
    );
    assert!(matches!(open("sqlite:").await, Err(StoreError::EmptyPath)));
}

#[tokio::test]
async fn limits_of_an_older_schema_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("old.db");
    std::fs::write(&path, include_bytes!("../schema_1.db")).expect("written");
    let key = &store_at(&path).await.keys().await.expect("read").keys[0];
    let kinds = [LimitKind::RequestsPerMinute, LimitKind::TokensPerMinute, LimitKind::ConcurrentRequests];
    assert_eq!(kinds.map(|kind| key.limits.get(kind)), [Some(7), None, Some(2)]);
    assert_eq!((key.organisation.as_str(), key.project.as_str()), ("acme", "search"));
}
