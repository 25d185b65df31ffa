//! What every store promises, whichever database it is. Each function gets the URL of an empty database.

use std::sync::Arc;

use throng_store::{
    AnswerClaim, AuditEvent, AuditLine, AuditQuery, ClaimBeat, Claimed, Cost, KeptAnswer, KeyChange,
    LedgerEntry, LimitKind, LimitScope, Limits, NewKey, Outcome, Prices, Store, StoreError, UsageGroup,
    UsageQuery, digest_of, open,
};

const DAY_S: u64 = 86_400;

async fn store_at(url: &str) -> Arc<dyn Store> {
    open(url).await.expect("a database")
}

pub fn new_key(organisation: &str, project: &str) -> NewKey {
    NewKey { organisation: organisation.to_owned(), project: project.to_owned(), ..NewKey::default() }
}

pub async fn keys_are_made_found_changed_and_revoked_across_processes(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let mut wanted = new_key("acme", "search");
    wanted.models = Some(vec!["small".to_owned()]);
    wanted.limits = Limits::of([(LimitKind::RequestsPerMinute, 7)]);
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

pub async fn limits_of_every_scope_come_with_the_keys(url: &str) {
    let store = store_at(url).await;
    let key = store.create_key(new_key("acme", "search")).await.expect("made").key;
    let other = store.create_key(new_key("acme", "chat")).await.expect("made").key;
    let (organisation, project) = ("acme".to_owned(), "search".to_owned());
    let whole = LimitScope::Organisation(organisation.clone());
    let part = LimitScope::Project { organisation: organisation.clone(), project: project.clone() };
    let users = LimitScope::EachUser { organisation: organisation.clone(), project };
    let most = i64::MAX as u64;
    store.limit(&whole, vec![(LimitKind::CostPerMonth, Some(most))]).await.expect("limited");
    store
        .limit(&part, vec![(LimitKind::TokensPerDay, Some(5)), (LimitKind::CostPerDay, Some(6))])
        .await
        .expect("limited");
    let left = store.limit(&part, vec![(LimitKind::CostPerDay, None)]).await.expect("limited");
    assert_eq!(left, Limits::of([(LimitKind::TokensPerDay, 5)]));
    store.limit(&users, vec![(LimitKind::RequestsPerMinute, Some(3))]).await.expect("limited");
    let change = KeyChange { limits: vec![(LimitKind::TokensPerMonth, Some(4))], ..KeyChange::default() };
    store.change_key(&key.id, change).await.expect("changed");
    let keys = store.keys().await.expect("read").keys;
    let of = |id: &str| keys.iter().find(|key| key.id == id).expect("there");
    assert_eq!(of(&key.id).limits, Limits::of([(LimitKind::TokensPerMonth, 4)]));
    assert_eq!(of(&key.id).project_limits, left);
    assert_eq!(of(&key.id).user_limits, Limits::of([(LimitKind::RequestsPerMinute, 3)]));
    assert!(of(&other.id).project_limits.is_empty() && of(&other.id).limits.is_empty());
    for key in [of(&key.id), of(&other.id)] {
        assert_eq!(key.organisation_limits, Limits::of([(LimitKind::CostPerMonth, most)]));
    }
    let unknown = LimitScope::Project { organisation, project: "x".to_owned() };
    assert!(matches!(store.limit(&unknown, Vec::new()).await, Err(StoreError::UnknownScope(_))));
    let too_large = store.limit(&whole, vec![(LimitKind::TokensPerDay, Some(u64::MAX))]).await;
    assert!(matches!(too_large, Err(StoreError::Invalid { .. })));
}

pub async fn concurrent_writers_lose_nothing(url: &str) {
    let stores = [store_at(url).await, store_at(url).await];
    let work = (0..24).map(|number| {
        let store = stores[number % 2].clone();
        tokio::spawn(async move {
            let name = format!("p{}", number % 5);
            store.create_key(new_key("acme", &name)).await.expect("made");
            let again = [entry(number, 10), entry(number / 2, 10)];
            store.append(&again).await.expect("written");
        })
    });
    for made in work.collect::<Vec<_>>() {
        made.await.expect("no panic");
    }
    let keys = stores[0].keys().await.expect("read").keys;
    let projects: std::collections::BTreeSet<_> = keys.iter().map(|key| &key.project_id).collect();
    assert_eq!((keys.len(), projects.len()), (24, 5));
    let all = UsageQuery { end_unix_s: 100, ..UsageQuery::default() };
    assert_eq!(stores[1].usage(&all).await.expect("read")[0].n_requests, 24, "each entry once");
    stores[1].check().await.expect("totals and entries agree");
}

/// An entry with 10 + 3 tokens, 4 of them cached.
fn entry(id: usize, at_unix_s: u64) -> LedgerEntry {
    LedgerEntry {
        id: format!("{id:032x}"),
        request_id: format!("req_{id}"),
        at_unix_s,
        organisation_id: "org_1".to_owned(),
        project_id: format!("proj_{}", id % 2),
        key_id: format!("key_{}", id % 4),
        user: "' OR 1=1 --".to_owned(),
        model: if id < 3 { "small" } else { "large" }.to_owned(),
        prompt_tokens: 10,
        cached_tokens: 4,
        generated_tokens: 3,
        prices: Prices { prompt: 1_000_000, cached: 100_000, generated: 2_000_000 },
        latency_ms: 5,
        outcome: Outcome::Stop,
    }
}

pub async fn usage_is_added_up_by_time_and_group_and_entries_count_once(url: &str) {
    let store = store_at(url).await;
    let entries: Vec<LedgerEntry> = (0..8).map(|id| entry(id, 1000 + id as u64 * 60)).collect();
    store.append(&entries).await.expect("written");
    store.append(&entries[2..5]).await.expect("written again");
    store.append(&[]).await.expect("nothing");
    let cost = Cost(6 * 1_000_000 + 4 * 100_000 + 3 * 2_000_000);
    let all = UsageQuery { start_unix_s: 1000, end_unix_s: 5000, ..UsageQuery::default() };
    let rows = store.usage(&all).await.expect("read");
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row.n_requests, row.prompt_tokens, row.cached_tokens, row.generated_tokens), (8, 80, 32, 24));
    assert_eq!((row.start_unix_s, row.cost), (1000, Cost(cost.0 * 8)));

    let mut by_model = UsageQuery { bucket_width_s: 120, group_by: vec![UsageGroup::Model], ..all.clone() };
    let rows = store.usage(&by_model).await.expect("read");
    let seen: Vec<_> =
        rows.iter().map(|row| (row.start_unix_s, row.model.as_str(), row.n_requests)).collect();
    assert_eq!(
        seen,
        [(1000, "small", 2), (1120, "large", 1), (1120, "small", 1), (1240, "large", 2), (1360, "large", 2)]
    );
    by_model.only = vec![
        (UsageGroup::Model, vec!["small".to_owned()]),
        (UsageGroup::Key, vec!["key_2".to_owned(), "key_9".to_owned()]),
    ];
    assert_eq!(store.usage(&by_model).await.expect("read").len(), 1);
    by_model.only = vec![(UsageGroup::User, vec!["' OR 1=1 --".to_owned()])];
    assert_eq!(store.usage(&by_model).await.expect("read").len(), 5);
    by_model.only = vec![(UsageGroup::User, Vec::new())];
    assert!(store.usage(&by_model).await.expect("read").is_empty(), "none of them");
    let before = UsageQuery { end_unix_s: 1000, ..UsageQuery::default() };
    assert!(store.usage(&before).await.expect("read").is_empty());
}

pub async fn days_are_added_up_for_each_key_beyond_64_bits_in_all(url: &str) {
    let store = store_at(url).await;
    let dear = |id: usize| LedgerEntry {
        prices: Prices { generated: 1_000_000_000, ..Prices::default() },
        generated_tokens: 4_000_000_000,
        ..entry(id, id as u64 * DAY_S)
    };
    let entries: Vec<LedgerEntry> = (0..6).map(dear).collect();
    store.append(&entries).await.expect("written");
    let totals = store.daily_totals(4).await.expect("read");
    assert_eq!(totals.iter().map(|total| total.day).collect::<Vec<_>>(), [4, 5]);
    assert_eq!((totals[0].n_tokens, totals[0].cost), (4_000_000_010, Cost(4_000_000_000_000_000_000)));
    let all = UsageQuery { end_unix_s: 9 * DAY_S, ..UsageQuery::default() };
    assert_eq!(store.usage(&all).await.expect("read")[0].cost, Cost(24_000_000_000_000_000_000));
}

pub async fn an_answer_is_claimed_by_one_kept_once_and_taken_over_from_the_dead(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let claim = |owner: &str, request: &str| AnswerClaim {
        tenant: "tenant".to_owned(),
        key: "key".to_owned(),
        request: request.to_owned(),
        owner: owner.to_owned(),
        expires_unix_s: 1_000,
    };
    let (first, second) = (claim("first", "request"), claim("second", "request"));
    let answer = KeptAnswer { content_type: "text/plain".to_owned(), body: vec![0, 255, b'a'] };
    assert_eq!(store.claim_answer(&first, 10, None).await.expect("claimed"), Claimed::Granted);
    let Claimed::Taken(beat) = other.claim_answer(&second, 10, None).await.expect("read") else {
        panic!("it is taken");
    };
    assert_eq!(beat.owner, "first");
    let stranger = AnswerClaim { tenant: "stranger".to_owned(), ..second.clone() };
    assert_eq!(other.claim_answer(&stranger, 10, None).await.expect("claimed"), Claimed::Granted);
    other.release_answer(&stranger).await.expect("released");
    assert_eq!(
        other.claim_answer(&claim("x", "another"), 10, None).await.expect("read"),
        Claimed::OtherRequest
    );

    // A living owner's claim cannot be taken over, a dead one's can, once, and its answer counts no more.
    assert!(store.beat_answer(&first).await.expect("beaten"));
    assert!(matches!(
        other.claim_answer(&second, 10, Some(&beat)).await.expect("read"),
        Claimed::Taken(found) if found != beat
    ));
    let dead = ClaimBeat { beat: beat.beat + 1, ..beat };
    assert_eq!(other.claim_answer(&second, 10, Some(&dead)).await.expect("taken"), Claimed::Granted);
    let third = claim("third", "request");
    assert!(matches!(store.claim_answer(&third, 10, Some(&dead)).await.expect("read"), Claimed::Taken(_)));
    assert!(!store.beat_answer(&first).await.expect("refused"));
    assert!(!store.keep_answer(&first, &answer).await.expect("refused"));
    store.release_answer(&first).await.expect("nothing to do");
    assert!(other.keep_answer(&second, &answer).await.expect("kept"));
    assert!(!other.keep_answer(&second, &answer).await.expect("refused"), "once");
    other.release_answer(&second).await.expect("nothing to do");
    let kept = store.claim_answer(&third, 10, None).await.expect("read");
    assert_eq!(kept, Claimed::Answered(answer));

    // What has expired is forgotten, one by one and all at once.
    assert_eq!(store.forget_answers(999).await.expect("forgotten"), 0);
    assert_eq!(store.claim_answer(&third, 1_000, None).await.expect("claimed"), Claimed::Granted);
    assert_eq!(store.forget_answers(1_000).await.expect("forgotten"), 1);
    store.release_answer(&third).await.expect("nothing to do");
    let callers = (0..8).map(|i| {
        let (store, claim) =
            (if i % 2 == 0 { store.clone() } else { other.clone() }, claim(&i.to_string(), "r"));
        tokio::spawn(async move { store.claim_answer(&claim, 10, None).await.expect("an answer") })
    });
    let mut n_granted = 0;
    for caller in callers.collect::<Vec<_>>() {
        n_granted += usize::from(caller.await.expect("no panic") == Claimed::Granted);
    }
    assert_eq!(n_granted, 1, "one of several callers at a time");
}

fn line(id: usize, event: AuditEvent, organisation: &str) -> AuditLine {
    AuditLine {
        id: format!("{id:032x}"),
        at_unix_ms: 1_000 + id as u64,
        event,
        request_id: format!("req_{id}"),
        organisation: organisation.to_owned(),
        model: "small".to_owned(),
        permitted: "eu,uk".to_owned(),
        replica: "gpu-1:9000".to_owned(),
        region: "eu".to_owned(),
        reason: "' OR 1=1 --".to_owned(),
    }
}

pub async fn the_audit_is_appended_to_read_in_pages_and_never_changed(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let lines: Vec<AuditLine> = (0..120)
        .map(|id| line(id, AuditEvent::ALL[id % 3], if id % 2 == 0 { "acme" } else { "umbrella" }))
        .collect();
    store.append_audit(&lines[..100]).await.expect("written");
    store.append_audit(&lines[90..]).await.expect("those that were not there");
    store.append_audit(&[]).await.expect("nothing");
    let all = AuditQuery { end_unix_ms: 5_000, limit: 50, ..AuditQuery::default() };
    let (mut seen, mut query) = (Vec::new(), all.clone());
    loop {
        let page = other.audit(&query).await.expect("read");
        let Some((last, _)) = page.last() else { break };
        assert!(page.len() <= 50);
        query.after = *last;
        seen.extend(page);
    }
    assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "numbers rise");
    assert_eq!(seen.iter().map(|(_, line)| line.clone()).collect::<Vec<_>>(), lines);

    let part = AuditQuery {
        start_unix_ms: 1_010,
        end_unix_ms: 1_020,
        organisation: Some("acme".to_owned()),
        ..all.clone()
    };
    let found = store.audit(&part).await.expect("read");
    let ids: Vec<_> = found.iter().map(|(_, line)| line.request_id.as_str()).collect();
    assert_eq!(ids, ["req_10", "req_12", "req_14", "req_16", "req_18"]);
    let none = AuditQuery { organisation: Some("' OR 1=1 --".to_owned()), ..all };
    assert!(store.audit(&none).await.expect("read").is_empty());
    // The database itself refuses, whoever asks.
    sqlx::any::install_default_drivers();
    let plain = match url.strip_prefix("sqlite:") {
        Some(path) => {
            let escaped = [("%", "%25"), (" ", "%20"), ("?", "%3F"), ("#", "%23")];
            let path = escaped.iter().fold(path.to_owned(), |path, (c, code)| path.replace(c, code));
            format!("sqlite://{path}")
        }
        None => url.to_owned(),
    };
    let pool = sqlx::AnyPool::connect(&plain).await.expect("a connection");
    let table = if url.starts_with("postgres") { "throng.residency_audit" } else { "residency_audit" };
    for change in [format!("DELETE FROM {table}"), format!("UPDATE {table} SET region = 'us'")] {
        let refused = sqlx::query(sqlx::AssertSqlSafe(change)).execute(&pool).await.expect_err("refused");
        assert!(refused.to_string().contains("the audit is only appended to"), "{refused}");
    }
    assert_eq!(store.audit(&AuditQuery { limit: 1_000, ..query_all() }).await.expect("read").len(), 120);
}

fn query_all() -> AuditQuery {
    AuditQuery { end_unix_ms: u64::MAX, ..AuditQuery::default() }
}
