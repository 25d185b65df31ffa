//! What every store promises of kept objects.

use std::sync::Arc;

use throng_store::{
    ClaimBeat, ENTRY_BYTES, ItemAfter, ItemQuery, Lease, ListOrder, MAX_PAGE_BYTES, NewItem, ObjectKey,
    ObjectKind, ObjectQuery, ObjectState, ObjectUsage, ObjectWrite, Quota, Store, StoreError, StoredObject,
    Written,
};

use super::store_at;

const FAR_UNIX_S: u64 = 1 << 40;

fn key(tenant: &str, id: &str) -> ObjectKey {
    ObjectKey::new(tenant, ObjectKind::Conversation, id)
}

fn items(range: std::ops::Range<usize>) -> Vec<NewItem> {
    range.map(|n| NewItem { id: format!("item_{n}"), body: format!("body {n}").into_bytes() }).collect()
}

async fn write(store: &Arc<dyn Store>, write: ObjectWrite) -> Result<Written, StoreError> {
    store.write_objects(&[write]).await.map(|mut written| written.remove(0))
}

async fn read(store: &Arc<dyn Store>, key: &ObjectKey) -> StoredObject {
    store.object(key).await.expect("read").expect("there")
}

fn ids(objects: &[StoredObject]) -> Vec<&str> {
    objects.iter().map(|object| object.key.id.as_str()).collect()
}

pub async fn objects_are_made_changed_over_a_version_listed_and_deleted(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let first = key("proj_1", "conv_1");
    let made =
        ObjectWrite::create(first.clone(), 7, b"\0\xff one".to_vec()).with_parent(Some("p".to_owned()));
    assert_eq!(write(&store, made.clone()).await.expect("made").version, 1);
    assert!(matches!(write(&store, made).await, Err(StoreError::Conflict)), "its id is taken");
    let found = read(&other, &first).await;
    assert_eq!((found.version, found.created_unix_s, found.expires_unix_s), (1, 7, None));
    assert_eq!((found.parent.as_deref(), &found.body[..]), (Some("p"), &b"\0\xff one"[..]));
    let changed = ObjectWrite::replace(&found, b"two".to_vec()).expiring(Some(FAR_UNIX_S)).pending(true);
    assert_eq!(write(&store, changed.clone()).await.expect("changed").version, 2);
    let state = other.object_state(&first).await.expect("read");
    assert_eq!(state, Some(ObjectState { version: 2, is_pending: true, n_items: 0 }));
    for absent in [key("proj_1", "conv_none"), key("proj_2", "conv_1"), key("proj_1", "\0")] {
        assert_eq!(store.object_state(&absent).await.expect("read"), None);
    }
    assert!(matches!(write(&other, changed).await, Err(StoreError::Conflict)), "another was faster");
    let found = read(&other, &first).await;
    assert_eq!((found.version, &found.body[..], found.is_pending), (2, &b"two"[..], true));
    assert_eq!((found.parent.as_deref(), found.expires_unix_s), (Some("p"), Some(FAR_UNIX_S)));

    for n in 2..6 {
        let parent = (n % 2 == 0).then(|| "even".to_owned());
        let made = ObjectWrite::create(key("proj_1", &format!("conv_{n}")), n, vec![1]).with_parent(parent);
        write(&store, made).await.expect("made");
    }
    let versions = async |tenant: &str, ids: &[&str]| {
        store.object_versions(tenant, ObjectKind::Conversation, ids).await.expect("read")
    };
    let asked = ["conv_3", "conv_1", "conv_none", "conv_3", "\u{0}"];
    assert_eq!(versions("proj_1", &asked[..4]).await, [Some(1), Some(2), None, Some(1)]);
    assert_eq!(versions("proj_1", &asked).await, [None; 5], "one of them is no id");
    assert_eq!(versions("proj_2", &asked[..1]).await, [None]);
    assert!(versions("proj_1", &[]).await.is_empty());
    let mut query = ObjectQuery::new("proj_1", ObjectKind::Conversation, 3);
    assert_eq!(ids(&store.objects(&query).await.expect("read")), ["conv_1", "conv_2", "conv_3"]);
    query.after = Some("conv_3".to_owned());
    assert_eq!(ids(&store.objects(&query).await.expect("read")), ["conv_4", "conv_5"]);
    query.order = ListOrder::Descending;
    assert_eq!(ids(&store.objects(&query).await.expect("read")), ["conv_2", "conv_1"]);
    (query.after, query.parent) = (None, Some("even".to_owned()));
    assert_eq!(ids(&store.objects(&query).await.expect("read")), ["conv_4", "conv_2"]);
    query.after = Some("conv_9".to_owned());
    assert!(matches!(store.objects(&query).await, Err(StoreError::UnknownObject)));
    query = ObjectQuery::new("proj_1", ObjectKind::File, 3);
    assert!(store.objects(&query).await.expect("read").is_empty());

    // Two writes are one transaction.
    let both = [
        ObjectWrite::create(key("proj_1", "conv_6"), 1, vec![1]),
        ObjectWrite::replace(&StoredObject { version: 1, ..read(&store, &first).await }, vec![2]),
    ];
    assert!(matches!(store.write_objects(&both).await, Err(StoreError::Conflict)));
    assert_eq!(store.object(&key("proj_1", "conv_6")).await.expect("read"), None);
    let of_two = [both[0].clone(), ObjectWrite::create(key("proj_2", "conv_6"), 1, vec![1])];
    assert!(matches!(store.write_objects(&of_two).await, Err(StoreError::Invalid { .. })));
    assert!(store.delete_object(&first).await.expect("deleted"));
    assert!(!store.delete_object(&first).await.expect("deleted already"));
    assert_eq!(other.object(&first).await.expect("read"), None);
    for bad in ["", "a\0b", &"x".repeat(513)] {
        let made = write(&store, ObjectWrite::create(key("proj_1", bad), 1, vec![])).await;
        assert!(matches!(made, Err(StoreError::Invalid { .. })), "{bad:?}");
        assert_eq!(store.object(&key("proj_1", bad)).await.expect("read"), None);
        assert!(!store.delete_object(&key("proj_1", bad)).await.expect("nothing"));
    }
    store.check().await.expect("totals and objects agree");
}

pub async fn items_are_numbered_without_gaps_and_added_once(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let owner = key("proj_1", "conv_1");
    let early = write(&store, ObjectWrite::append(owner.clone(), items(0..1))).await;
    assert!(matches!(early, Err(StoreError::UnknownObject)));
    let made = ObjectWrite::create(owner.clone(), 1, vec![1]).with_items(items(0..3));
    let written = write(&store, made).await.expect("made with its items");
    assert_eq!(
        written.items.iter().map(|item| (item.number, item.is_new)).collect::<Vec<_>>(),
        [(0, true), (1, true), (2, true)]
    );
    let written = write(&other, ObjectWrite::append(owner.clone(), items(1..5))).await.expect("appended");
    assert_eq!(written.version, 1, "its body is the same");
    assert_eq!(
        written.items.iter().map(|item| (item.number, item.is_new)).collect::<Vec<_>>(),
        [(1, false), (2, false), (3, true), (4, true)]
    );
    // Many writers at once leave no gap and add nothing twice.
    let writers = (0..12_usize).map(|writer| {
        let (store, owner) = ([store.clone(), other.clone()][writer % 2].clone(), owner.clone());
        tokio::spawn(async move {
            let some = items(5 + writer / 2 * 5..10 + writer / 2 * 5);
            write(&store, ObjectWrite::append(owner, some)).await.expect("appended");
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let all = store.item_ids(&ItemQuery::new(owner.clone(), 1_000)).await.expect("read");
    assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..35).collect::<Vec<_>>());
    assert_eq!(read(&store, &owner).await.n_items, 35);

    let mut query = ItemQuery::new(owner.clone(), 2);
    query.after = Some(ItemAfter::Id("item_1".to_owned()));
    let page = store.items(&query).await.expect("read");
    assert_eq!(page.iter().map(|item| item.number).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(page[0].body, b"body 2");
    (query.after, query.order) = (Some(ItemAfter::Number(2)), ListOrder::Descending);
    let page = store.items(&query).await.expect("read");
    assert_eq!(page.iter().map(|item| item.number).collect::<Vec<_>>(), [1, 0]);
    query.after = Some(ItemAfter::Id("item_99".to_owned()));
    assert!(matches!(store.items(&query).await, Err(StoreError::UnknownObject)));
    assert_eq!(store.item(&owner, "item_3").await.expect("read").expect("there").number, 3);
    assert!(store.delete_item(&owner, "item_3").await.expect("deleted"));
    assert!(!store.delete_item(&owner, "item_3").await.expect("deleted already"));
    assert_eq!(store.item(&owner, "item_3").await.expect("read"), None);
    let again = write(&store, ObjectWrite::append(owner.clone(), items(3..4))).await.expect("appended");
    assert_eq!((again.items[0].number, again.items[0].is_new), (35, true), "no number is given twice");

    // A page ends where it becomes large.
    let large = ObjectWrite::create(key("proj_1", "large"), 1, vec![]).with_items(
        (0..3).map(|n| NewItem { id: n.to_string(), body: vec![n; MAX_PAGE_BYTES as usize / 2] }).collect(),
    );
    write(&store, large).await.expect("made");
    let page = store.items(&ItemQuery::new(key("proj_1", "large"), 100)).await.expect("read");
    assert_eq!(page.len(), 2);
    store.check().await.expect("totals and objects agree");
    let n_bytes = store.object_usage("proj_1").await.expect("read").n_bytes;
    assert!(n_bytes > 3 * MAX_PAGE_BYTES / 2);
    assert!(store.delete_object(&key("proj_1", "large")).await.expect("deleted"));
    assert!(store.delete_object(&owner).await.expect("deleted with its items"));
    assert_eq!(store.object_usage("proj_1").await.expect("read"), ObjectUsage::default());
    assert!(matches!(store.items(&ItemQuery::new(owner, 2)).await, Err(StoreError::UnknownObject)));
    store.check().await.expect("no item is left");
}

pub async fn a_tenant_finds_nothing_of_another(url: &str) {
    let store = store_at(url).await;
    let (mine, theirs) = (key("proj_1", "conv_1"), key("key-1", "conv_1"));
    let made = ObjectWrite::create(mine.clone(), 1, b"secret".to_vec()).with_items(items(0..2));
    write(&store, made).await.expect("made");
    assert_eq!(store.object(&theirs).await.expect("read"), None);
    assert!(!store.delete_object(&theirs).await.expect("nothing"));
    assert_eq!(store.item(&theirs, "item_0").await.expect("read"), None);
    assert!(!store.delete_item(&theirs, "item_0").await.expect("nothing"));
    assert!(matches!(store.items(&ItemQuery::new(theirs.clone(), 9)).await, Err(StoreError::UnknownObject)));
    assert!(matches!(
        store.item_ids(&ItemQuery::new(theirs.clone(), 9)).await,
        Err(StoreError::UnknownObject)
    ));
    assert_eq!(store.claim_object(&theirs, "x", None).await.expect("read"), Lease::Missing);
    assert!(!store.beat_object(&theirs, "").await.expect("nothing"));
    let appended = write(&store, ObjectWrite::append(theirs.clone(), items(5..6))).await;
    assert!(matches!(appended, Err(StoreError::UnknownObject)));
    let replaced = StoredObject { key: theirs.clone(), ..read(&store, &mine).await };
    let replaced = write(&store, ObjectWrite::replace(&replaced, vec![])).await;
    assert!(matches!(replaced, Err(StoreError::UnknownObject)));
    let query = ObjectQuery::new("key-1", ObjectKind::Conversation, 9);
    assert!(store.objects(&query).await.expect("read").is_empty());
    let after = ObjectQuery { after: Some("conv_1".to_owned()), ..query };
    assert!(matches!(store.objects(&after).await, Err(StoreError::UnknownObject)));
    assert!(store.export_objects("key-1", 0, 9).await.expect("read").is_empty());
    assert_eq!(store.delete_objects("key-1").await.expect("nothing"), 0);
    // The same id may be another tenant's and another kind's.
    write(&store, ObjectWrite::create(theirs.clone(), 1, b"theirs".to_vec())).await.expect("made");
    let file = ObjectKey { kind: ObjectKind::File, ..mine.clone() };
    write(&store, ObjectWrite::create(file.clone(), 1, b"file".to_vec())).await.expect("made");
    assert_eq!(store.delete_objects("key-1").await.expect("deleted"), 1);
    assert_eq!(read(&store, &mine).await.body, b"secret");
    assert_eq!(ids(&store.export_objects("proj_1", 0, 9).await.expect("read")), ["conv_1", "conv_1"]);
    store.check().await.expect("totals and objects agree");
}

pub async fn an_object_is_worked_on_by_one_and_taken_over_from_the_dead(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let batch = |id: &str| ObjectKey::new("proj_1", ObjectKind::Batch, id);
    for id in ["a", "b", "c"] {
        let made = ObjectWrite::create(batch(id), 1, vec![]).pending(id != "b");
        write(&store, made).await.expect("made");
    }
    let pending = other.pending_objects(ObjectKind::Batch, 0, 9).await.expect("read");
    let found: Vec<_> = pending.iter().map(|found| (found.key.id.as_str(), &found.beat)).collect();
    assert_eq!(found, [("a", &None), ("c", &None)]);
    let after = other.pending_objects(ObjectKind::Batch, pending[0].number, 9).await.expect("read");
    assert_eq!(after, pending[1..]);
    assert!(other.pending_objects(ObjectKind::File, 0, 9).await.expect("read").is_empty());

    let a = batch("a");
    assert_eq!(store.claim_object(&a, "first", None).await.expect("claimed"), Lease::Granted);
    let Lease::Taken(beat) = other.claim_object(&a, "second", None).await.expect("read") else {
        panic!("it is taken");
    };
    assert_eq!(beat.owner, "first");
    assert!(store.beat_object(&a, "first").await.expect("beaten"));
    let late = other.claim_object(&a, "second", Some(&beat)).await.expect("read");
    assert!(matches!(late, Lease::Taken(found) if found.beat > beat.beat));
    let dead = ClaimBeat { beat: beat.beat + 1, ..beat };
    let pending = other.pending_objects(ObjectKind::Batch, 0, 1).await.expect("read");
    assert_eq!(pending[0].beat.as_ref(), Some(&dead));
    assert_eq!(other.claim_object(&a, "second", Some(&dead)).await.expect("taken"), Lease::Granted);
    assert!(matches!(store.claim_object(&a, "third", Some(&dead)).await.expect("read"), Lease::Taken(_)));

    // Who has lost the lease writes nothing.
    assert!(!store.beat_object(&a, "first").await.expect("refused"));
    let append = ObjectWrite::append(a.clone(), items(0..1));
    let late = write(&store, append.clone().owned_by("first")).await;
    assert!(matches!(late, Err(StoreError::LeaseLost)));
    store.release_object(&a, "first").await.expect("nothing to do");
    write(&other, append.owned_by("second")).await.expect("appended");
    other.release_object(&a, "second").await.expect("released");
    assert_eq!(store.claim_object(&a, "third", None).await.expect("claimed"), Lease::Granted);
    assert_eq!(store.claim_object(&batch("x"), "third", None).await.expect("read"), Lease::Missing);
}

pub async fn expired_objects_are_not_found_and_forgotten(url: &str) {
    let store = store_at(url).await;
    for (tenant, id, expires) in [("t1", "old", 5), ("t2", "older", 3), ("t1", "new", FAR_UNIX_S)] {
        let made = ObjectWrite::create(key(tenant, id), 1, vec![7]).with_items(items(0..2));
        write(&store, made.expiring(Some(expires)).pending(true)).await.expect("made");
    }
    let old = key("t1", "old");
    assert_eq!(store.object(&old).await.expect("read"), None);
    assert_eq!(store.item(&old, "item_0").await.expect("read"), None);
    assert_eq!(store.claim_object(&old, "x", None).await.expect("read"), Lease::Missing);
    let query = ObjectQuery::new("t1", ObjectKind::Conversation, 9);
    assert_eq!(ids(&store.objects(&query).await.expect("read")), ["new"]);
    assert_eq!(ids(&store.export_objects("t1", 0, 9).await.expect("read")), ["new"]);
    let mut n_forgotten = 0;
    loop {
        match store.forget_objects().await.expect("forgotten") {
            0 => break,
            n => n_forgotten += n,
        }
    }
    assert_eq!(n_forgotten, 2);
    assert_eq!(store.object_usage("t2").await.expect("read"), ObjectUsage::default());
    assert_eq!(store.object_usage("t1").await.expect("read").n_objects, 1);
    store.check().await.expect("totals and objects agree");
}

pub async fn a_tenant_has_bounds_and_is_exported_and_deleted(url: &str) {
    let store = store_at(url).await;
    let quota = Quota { max_objects: 3, max_bytes: 10 * ENTRY_BYTES };
    let make = |id: &str| ObjectWrite::create(key("t", id), 1, vec![0; 10]).within(quota);
    for id in ["1", "2", "3"] {
        write(&store, make(id)).await.expect("made");
    }
    assert!(matches!(write(&store, make("4")).await, Err(StoreError::Full)));
    let append = |range| ObjectWrite::append(key("t", "1"), items(range)).within(quota);
    write(&store, append(0..4)).await.expect("appended");
    assert!(matches!(write(&store, append(4..8)).await, Err(StoreError::Full)));
    let before = store.object_usage("t").await.expect("read");
    assert_eq!((before.n_objects, before.n_bytes), (3, 7 * ENTRY_BYTES + 30 + 4 * 6));
    let smaller = ObjectWrite::replace(&read(&store, &key("t", "2")).await, vec![]);
    let none = Quota { max_objects: 0, max_bytes: 0 };
    write(&store, smaller.within(none)).await.expect("what becomes smaller is not refused");
    write(&store, ObjectWrite::create(key("u", "1"), 1, vec![])).await.expect("another tenant has room");

    let (mut exported, mut after) = (Vec::new(), 0);
    loop {
        let page = store.export_objects("t", after, 2).await.expect("read");
        let Some(last) = page.last() else { break };
        after = last.number;
        exported.extend(page);
    }
    assert_eq!(ids(&exported), ["1", "2", "3"]);
    while store.delete_objects("t").await.expect("deleted") > 0 {}
    assert_eq!(store.object_usage("t").await.expect("read"), ObjectUsage::default());
    assert_eq!(store.object_usage("u").await.expect("read").n_objects, 1);
    store.check().await.expect("totals and objects agree");
}

pub async fn objects_of_an_older_database_are_the_same(url: &str, old: &'static str) {
    let raw = super::raw(url).await;
    sqlx::raw_sql(old).execute(&raw).await.expect("an old database");
    let store = store_at(url).await;
    let first = key("proj_1", "conv_1");
    let found = read(&store, &first).await;
    assert_eq!((found.version, found.created_unix_s, found.n_items), (3, 7, 2));
    assert_eq!((found.parent.as_deref(), &found.body[..]), (Some("p"), &b"\0\xffone "[..]));
    let items = store.items(&ItemQuery::new(first.clone(), 9)).await.expect("read");
    let bodies: Vec<&[u8]> = items.iter().map(|item| &item.body[..]).collect();
    assert_eq!(bodies, [&b"body 0"[..], b"body"]);
    let pending = store.pending_objects(ObjectKind::Response, 0, 9).await.expect("read");
    let beat = ClaimBeat { owner: "one".to_owned(), beat: 4 };
    assert_eq!(pending.iter().map(|pending| pending.beat.clone()).collect::<Vec<_>>(), [Some(beat)]);
    let empty = read(&store, &ObjectKey::new("proj_1", ObjectKind::Response, "resp_1")).await;
    assert!(empty.body.is_empty() && empty.is_pending);
    store.check().await.expect("totals and objects agree");
    write(&store, ObjectWrite::replace(&found, b"new".to_vec())).await.expect("changed");
    assert_eq!(read(&store, &first).await.body, b"new");
    assert!(store.delete_object(&first).await.expect("deleted"));
    store.check().await.expect("totals and objects agree");
}
