//! What every store promises about keys, over a real SQLite file.

use std::path::Path;
use std::sync::Arc;

use throng_store::{KeyChange, KeyLimits, NewKey, Store, StoreError, digest_of, open};

async fn store_at(path: &Path) -> Arc<dyn Store> {
    open(path.to_str().expect("UTF-8")).await.expect("a database")
}

fn new_key(organisation: &str, project: &str) -> NewKey {
    NewKey { organisation: organisation.to_owned(), project: project.to_owned(), ..NewKey::default() }
}

#[tokio::test]
async fn keys_are_made_found_changed_and_revoked_across_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("throng.db");
    let (store, other) = (store_at(&path).await, store_at(&path).await);
    let mut wanted = new_key("acme", "search");
    wanted.models = Some(vec!["small".to_owned()]);
    wanted.limits = KeyLimits { requests_per_minute: Some(7), ..KeyLimits::default() };
    let first = store.create_key(wanted).await.expect("made");
    let second = store.create_key(new_key("acme", "search")).await.expect("made");
    let third = store.create_key(new_key("umbrella", "search")).await.expect("made");
    assert_eq!(first.key.project_id, second.key.project_id);
    assert_ne!(first.key.project_id, third.key.project_id, "projects belong to an organisation");
    assert_eq!(first.key.digest, digest_of(first.secret().as_bytes()));

    let seen = other.keys().await.expect("read");
    assert_eq!(seen.keys, [first.key.clone(), second.key.clone(), third.key]);
    let change = KeyChange { models: Some(None), expires_unix_s: Some(Some(99)), ..KeyChange::default() };
    let changed = store.change_key(&first.key.prefix, change).await.expect("changed");
    assert_eq!((changed.models.clone(), changed.expires_unix_s), (None, Some(99)));
    assert_eq!(changed.limits, first.key.limits, "what is not named stays");
    let revoked = store.revoke_key(&second.key.id).await.expect("revoked");
    let again = store.revoke_key(&second.key.id).await.expect("revoked already");
    assert!(revoked.is_revoked());
    assert_eq!(revoked, again);
    assert!(other.revision().await.expect("read") > seen.revision);
    assert_eq!(other.keys().await.expect("read").keys[..2], [changed, revoked]);
    for unknown in ["key_0", "", "' OR 1=1 --", first.secret()] {
        assert!(matches!(store.revoke_key(unknown).await, Err(StoreError::UnknownKey(_))), "{unknown}");
    }
    for bad in ["", "a\nb", &"x".repeat(300)] {
        assert!(matches!(store.create_key(new_key(bad, "p")).await, Err(StoreError::Invalid { .. })));
    }
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
async fn concurrent_writers_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("throng.db");
    let stores = [store_at(&path).await, store_at(&path).await];
    let work = (0..24).map(|number| {
        let store = stores[number % 2].clone();
        tokio::spawn(async move { store.create_key(new_key("acme", &format!("p{}", number % 5))).await })
    });
    for made in work.collect::<Vec<_>>() {
        made.await.expect("no panic").expect("made");
    }
    let keys = stores[0].keys().await.expect("read").keys;
    let projects: std::collections::BTreeSet<_> = keys.iter().map(|key| &key.project_id).collect();
    assert_eq!((keys.len(), projects.len()), (24, 5));
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
    let refused = open("postgres://user:password@host/db").await.expect_err("not supported");
    assert!(
        matches!(refused, StoreError::UnsupportedDatabase { .. })
            && !refused.to_string().contains("password")
    );
    assert!(matches!(open("sqlite:").await, Err(StoreError::EmptyPath)));
}
