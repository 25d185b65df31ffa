//! Files: what was uploaded is what is read, whole and by its tenant alone.

use std::sync::Arc;

use throng_state::files::{self, CHUNK_BYTES, FileQuery, NewFile, Upload};
use throng_state::{StateError, TenantState};
use throng_store::{ListOrder, Quota, Store, StoreError, open};

async fn store(folder: &tempfile::TempDir) -> Arc<dyn Store> {
    open(&format!("sqlite:{}", folder.path().join("store.db").display())).await.expect("a database")
}

fn new(filename: &str) -> NewFile {
    NewFile { filename: filename.to_owned(), purpose: "batch".to_owned(), expires_after_s: None }
}

fn all() -> FileQuery {
    FileQuery { purpose: None, after: None, order: ListOrder::Ascending, limit: 9 }
}

#[tokio::test]
async fn a_file_is_what_was_uploaded_and_its_tenants_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let mine = TenantState::new(store.clone(), "mine".into(), Quota::default()).keeping_for(Some(1_000));
    let theirs = TenantState::new(store.clone(), "theirs".into(), Quota::default());
    for n_bytes in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5] {
        let bytes: Vec<u8> = (0..n_bytes).map(|n| (n % 251) as u8).collect();
        let mut upload = Upload::begin(&mine, n_bytes as u64).await.expect("begun");
        for piece in bytes.chunks(700_001) {
            upload.push(piece).await.expect("written");
        }
        assert!(files::list(&mine, &all()).await.expect("read").data.is_empty(), "it is not whole");
        let file = upload.finish(new("a.bin")).await.expect("whole");
        assert_eq!((file.n_bytes, file.filename.as_str()), (n_bytes as u64, "a.bin"));
        assert_eq!(file.expires_unix_s, Some(file.created_unix_s + 1_000));
        let (_, mut content) = files::content(&mine, &file.id).await.expect("there");
        let mut read = Vec::new();
        while let Some(piece) = content.next().await.expect("read") {
            read.extend(piece);
        }
        assert!(read == bytes, "{n_bytes}");
        for found in [files::get(&theirs, &file.id).await.map(drop), files::delete(&theirs, &file.id).await] {
            assert!(matches!(found, Err(StateError::NotFound { .. })));
        }
        files::delete(&mine, &file.id).await.expect("deleted");
        assert!(matches!(files::get(&mine, &file.id).await, Err(StateError::NotFound { .. })));
    }
    assert_eq!(store.object_usage("mine").await.expect("read").n_bytes, 0, "nothing is left");
}

#[tokio::test]
async fn a_file_beyond_its_bounds_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let quota = Quota { max_objects: 2, max_bytes: 3 * CHUNK_BYTES as u64 };
    let tenant = TenantState::new(store.clone(), "t".into(), quota);
    let mut upload = Upload::begin(&tenant, 10).await.expect("begun");
    upload.push(&[1; 10]).await.expect("as large as it may be");
    assert!(matches!(upload.push(&[1]).await, Err(StateError::Refused(error)) if error.status() == 413));
    upload.abandon().await;
    let mut upload = Upload::begin(&tenant, u64::MAX).await.expect("begun");
    let pushed = upload.push(&vec![1; 4 * CHUNK_BYTES]).await;
    assert!(matches!(pushed, Err(StateError::Store(StoreError::Full))));
    upload.abandon().await;
    assert_eq!(store.object_usage("t").await.expect("read").n_objects, 0, "nothing is left");
}
