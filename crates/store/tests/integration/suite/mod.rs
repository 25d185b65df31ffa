//! What every store promises, whichever database it is. Each function gets the URL of an empty database.

use std::sync::Arc;

use throng_store::{
    AnswerClaim, AuditEvent, AuditLine, AuditQuery, ClaimBeat, Claimed, Cost, KeptAnswer, KeyChange,
    LedgerEntry, LimitKind, LimitScope, Limits, NewKey, Outcome, Prices, Store, StoreError, UsageGroup,
    UsageQuery, UsageRow, digest_of, open,
};

/// Calls a macro with some arguments and the names of the promises that every store is tested for alike.
macro_rules! for_every_promise {
    ($run:ident, $($first:tt)*) => {
        $run!(
            $($first)*
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
        );
    };
}

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
    let totals = store.daily_totals(4..99).await.expect("read");
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
    let raw = raw(url).await;
    for change in ["DELETE FROM residency_audit", "UPDATE residency_audit SET region = 'us'"] {
        let refused = sqlx::query(change).execute(&raw).await.expect_err("refused");
        assert!(refused.to_string().contains("the audit is only appended to"), "{refused}");
    }
    assert_eq!(store.audit(&AuditQuery { limit: 1_000, ..query_all() }).await.expect("read").len(), 120);
}

fn query_all() -> AuditQuery {
    AuditQuery { end_unix_ms: u64::MAX, ..AuditQuery::default() }
}

/// The database without its rules.
pub async fn raw(url: &str) -> sqlx::AnyPool {
    sqlx::any::install_default_drivers();
    let plain = match url.strip_prefix("sqlite:") {
        Some(path) => {
            let escaped = [("%", "%25"), (" ", "%20"), ("?", "%3F"), ("#", "%23")];
            let path = escaped.iter().fold(path.to_owned(), |path, (c, code)| path.replace(c, code));
            format!("sqlite://{path}?mode=rwc")
        }
        None => format!("{url}?options=-c%20search_path%3Dthrong"),
    };
    let options = sqlx::any::AnyPoolOptions::new().max_connections(1);
    options.connect(&plain).await.expect("a connection")
}

/// Every text and number that an entry may have from others.
fn odd(id: usize) -> LedgerEntry {
    let text = "a\0b\u{1}\u{7f}\u{85}\"'\\é🎉".repeat(60);
    LedgerEntry {
        id: format!("odd\0{id}"),
        request_id: text.clone(),
        at_unix_s: 1_000,
        organisation_id: text.clone(),
        project_id: text.clone(),
        key_id: text.clone(),
        user: text.clone(),
        model: text,
        prompt_tokens: u64::MAX,
        cached_tokens: u64::MAX,
        generated_tokens: u64::MAX,
        prices: Prices { prompt: u64::MAX, cached: u64::MAX, generated: u64::MAX },
        latency_ms: u64::MAX,
        outcome: Outcome::Stop,
    }
}

pub async fn odd_texts_and_numbers_are_written_within_bounds(url: &str) {
    let store = store_at(url).await;
    store.append(&[odd(1)]).await.expect("written");
    store.append(&[LedgerEntry { at_unix_s: u64::MAX, ..odd(2) }]).await.expect("at the end of time");
    let with_nul = LedgerEntry { user: "a\0b".to_owned(), ..entry(3, 2_000) };
    store.append(&[with_nul]).await.expect("written");
    let by_user = UsageQuery {
        end_unix_s: u64::MAX,
        group_by: vec![UsageGroup::User],
        only: vec![(UsageGroup::User, vec!["a\0b".to_owned()])],
        ..UsageQuery::default()
    };
    let rows = store.usage(&by_user).await.expect("read");
    assert_eq!((rows.len(), rows[0].user.as_str(), rows[0].n_requests), (1, "a\u{fffd}b", 1));
    let mut line = line(1, AuditEvent::Placed, "a\0b");
    line.request_id = "\0".repeat(10_000);
    store.append_audit(&[line]).await.expect("written");
    let of_organisation = AuditQuery { organisation: Some("a\0b".to_owned()), limit: 5, ..query_all() };
    assert_eq!(store.audit(&of_organisation).await.expect("read").len(), 1);
    assert!(matches!(store.revoke_key("a\0b").await, Err(StoreError::UnknownKey(_))));
    assert!(matches!(store.create_key(new_key("a\0b", "p")).await, Err(StoreError::Invalid { .. })));
    let scope = LimitScope::Organisation("a\0b".to_owned());
    assert!(matches!(store.limit(&scope, Vec::new()).await, Err(StoreError::UnknownScope(_))));
    let claim = AnswerClaim {
        tenant: "t\0".to_owned(),
        key: "k\0".to_owned(),
        request: "r\0".to_owned(),
        owner: "o\0".to_owned(),
        expires_unix_s: u64::MAX,
    };
    let answer = KeptAnswer { content_type: "x\0".to_owned(), body: vec![0] };
    assert_eq!(store.claim_answer(&claim, 0, None).await.expect("claimed"), Claimed::Granted);
    assert!(store.beat_answer(&claim).await.expect("beaten"));
    assert!(store.keep_answer(&claim, &answer).await.expect("kept"));
    let kept = store.claim_answer(&claim, 0, None).await.expect("read");
    assert!(matches!(kept, Claimed::Answered(kept) if kept.body == answer.body));
    store.check().await.expect("totals and entries agree");
    assert_eq!(store.write_fault(), None);
}

pub async fn totals_are_wide_or_as_large_as_they_can_be(url: &str) {
    let store = store_at(url).await;
    for id in 0..20 {
        store.append(&[odd(id)]).await.expect("written");
    }
    let totals = store.daily_totals(0..9).await.expect("read");
    assert_eq!((totals.len(), totals[0].cost), (1, Cost(i64::MAX as u128)));
    assert_eq!(totals[0].n_tokens, 20 * 2 * throng_store::MAX_ENTRY_TOKENS);
    for bucket_width_s in [0, 60, 3_600, DAY_S] {
        let all = UsageQuery { end_unix_s: DAY_S, bucket_width_s, ..UsageQuery::default() };
        let row = store.usage(&all).await.expect("read").remove(0);
        assert_eq!((row.n_requests, row.prompt_tokens), (20, 20 * throng_store::MAX_ENTRY_TOKENS));
        assert_eq!(row.cost, Cost(20 * i64::MAX as u128), "buckets of {bucket_width_s} s");
    }
    store.check().await.expect("totals and entries agree");
}

/// Sums of some entries' rows, counted here.
fn expected(entries: &[LedgerEntry], query: &UsageQuery) -> Vec<UsageRow> {
    let mut rows: std::collections::BTreeMap<_, UsageRow> = std::collections::BTreeMap::new();
    for entry in entries {
        let name = |group: &UsageGroup| match group {
            UsageGroup::Project => entry.project_id.clone(),
            UsageGroup::User => entry.user.clone(),
            UsageGroup::Key => entry.key_id.clone(),
            UsageGroup::Model => entry.model.clone(),
        };
        let is_asked_for = (query.start_unix_s..query.end_unix_s).contains(&entry.at_unix_s)
            && query.only.iter().all(|(group, names)| names.contains(&name(group)));
        if !is_asked_for {
            continue;
        }
        let [project_id, user, key_id, model] = UsageGroup::ALL
            .map(|group| if query.group_by.contains(&group) { name(&group) } else { String::new() });
        let since = entry.at_unix_s - query.start_unix_s;
        let start_unix_s =
            query.start_unix_s + since.checked_div(query.bucket_width_s).unwrap_or(0) * query.bucket_width_s;
        let key = (start_unix_s, project_id.clone(), user.clone(), key_id.clone(), model.clone());
        let row = rows.entry(key).or_default();
        *row = UsageRow {
            start_unix_s,
            project_id,
            user,
            key_id,
            model,
            n_requests: row.n_requests + 1,
            prompt_tokens: row.prompt_tokens + entry.prompt_tokens,
            cached_tokens: row.cached_tokens + entry.cached_tokens,
            generated_tokens: row.generated_tokens + entry.generated_tokens,
            cost: Cost(row.cost.0 + entry.cost().0),
        };
    }
    rows.into_values().collect()
}

async fn ask_at_random(store: &dyn Store, entries: &[LedgerEntry], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..40 {
        let start_unix_s = match random.u64(0..3) {
            0 => random.u64(0..5) * DAY_S,
            1 => random.u64(0..120) * 3_600,
            _ => random.u64(0..5 * DAY_S),
        };
        let pick = |random: &mut fastrand::Rng| {
            UsageGroup::ALL.into_iter().filter(|_| random.u64(0..3) == 0).collect()
        };
        let mut query = UsageQuery {
            start_unix_s,
            end_unix_s: start_unix_s + 1 + random.u64(0..4 * DAY_S),
            bucket_width_s: [0, 0, 60, 3_600, DAY_S][random.usize(0..5)],
            group_by: pick(&mut random),
            only: Vec::new(),
        };
        if random.bool() {
            query.only.push((UsageGroup::User, vec!["user_1".to_owned(), "user_2".to_owned()]));
        }
        if random.bool() {
            query.only.push((UsageGroup::Model, vec!["large".to_owned()]));
        }
        let seen = store.usage(&query).await.expect("read");
        assert_eq!(seen, expected(entries, &query), "seed {seed}, question {number}: {query:?}");
    }
}

pub async fn bills_from_totals_are_those_from_rows(url: &str) {
    let store = store_at(url).await;
    let mut random = fastrand::Rng::with_seed(1);
    let made = |id: usize, random: &mut fastrand::Rng| LedgerEntry {
        user: format!("user_{}", random.u64(0..5)),
        prompt_tokens: random.u64(0..5_000),
        generated_tokens: random.u64(0..1 << 40),
        ..entry(id, random.u64(0..5 * DAY_S))
    };
    let mut entries: Vec<LedgerEntry> = (0..600).map(|id| made(id, &mut random)).collect();
    for some in entries.chunks(70) {
        store.append(some).await.expect("written");
    }
    ask_at_random(&*store, &entries, 2).await;
    store.check().await.expect("totals and entries agree");
    // As an older version has left them, with entries that come while hours are added up.
    let raw = raw(url).await;
    for change in ["DELETE FROM usage_totals", "UPDATE usage_totals_start SET unix_s = 432000"] {
        sqlx::query(change).execute(&raw).await.expect("changed");
    }
    let mut seed = 3;
    loop {
        let has_more = store.make_earlier_totals().await.expect("added up");
        if !has_more || seed % 16 == 0 {
            let late = made(10_000 + seed as usize, &mut random);
            store.append(std::slice::from_ref(&late)).await.expect("written");
            entries.push(late);
            ask_at_random(&*store, &entries, seed).await;
            store.check().await.expect("totals and entries agree");
        }
        if !has_more {
            break;
        }
        seed += 1;
    }
    assert!(!store.make_earlier_totals().await.expect("nothing to do"));
    // As a server of an older version writes.
    let (at, lost) = (entries[7].at_unix_s, "DELETE FROM usage_totals WHERE start_unix_s = ");
    sqlx::query(sqlx::AssertSqlSafe(format!("{lost}{}", at / 3_600 * 3_600)))
        .execute(&raw)
        .await
        .expect("changed");
    store.check().await.expect_err("an hour differs");
    assert!(store.repair_totals(at).await.expect("repaired"));
    assert!(!store.repair_totals(at).await.expect("nothing to do"));
    ask_at_random(&*store, &entries, 1_000).await;
    store.check().await.expect("totals and entries agree");
    assert!(seed > 60, "hours were added up one by one");
}

pub async fn keys_that_have_changed_are_read_alone(url: &str) {
    let (store, other) = (store_at(url).await, store_at(url).await);
    let mut ids = Vec::new();
    for number in 0..6 {
        let project = format!("p{}", number % 2);
        ids.push(store.create_key(new_key("acme", &project)).await.expect("made").key.id);
    }
    store.create_key(new_key("umbrella", "p0")).await.expect("made");
    let mut known = other.keys().await.expect("read").revision;
    assert!(other.changed_keys(known).await.expect("read").keys.is_empty());
    let mut changed = async |expected: &[usize]| {
        let table = other.changed_keys(known).await.expect("read");
        assert!(table.revision > known);
        known = table.revision;
        let seen: Vec<&str> = table.keys.iter().map(|key| key.id.as_str()).collect();
        let expected: Vec<&str> = expected.iter().map(|at| ids[*at].as_str()).collect();
        assert_eq!(seen, expected);
        // They are as a reader of all of them sees them.
        let all = other.keys().await.expect("read").keys;
        assert!(table.keys.iter().all(|key| all.contains(key)));
    };
    store.revoke_key(&ids[3]).await.expect("revoked");
    changed(&[3]).await;
    let change = KeyChange { limits: vec![(LimitKind::TokensPerDay, Some(7))], ..KeyChange::default() };
    store.change_key(&ids[0], change).await.expect("changed");
    changed(&[0]).await;
    let organisation = "acme".to_owned();
    let of_project = LimitScope::Project { organisation: organisation.clone(), project: "p0".to_owned() };
    let of_users = LimitScope::EachUser { organisation: organisation.clone(), project: "p1".to_owned() };
    let limit = || vec![(LimitKind::RequestsPerMinute, Some(3))];
    store.limit(&of_project, limit()).await.expect("limited");
    changed(&[0, 2, 4]).await;
    store.limit(&of_users, limit()).await.expect("limited");
    changed(&[1, 3, 5]).await;
    store.limit(&LimitScope::Organisation(organisation), limit()).await.expect("limited");
    changed(&[0, 1, 2, 3, 4, 5]).await;
}

/// `rule` makes the database refuse the model `bad`.
pub async fn an_entry_that_is_refused_is_told_from_a_database_that_fails(url: &str, rule: &'static str) {
    let store = store_at(url).await;
    let raw = raw(url).await;
    sqlx::raw_sql(rule).execute(&raw).await.expect("a rule");
    let bad = LedgerEntry { model: "bad".to_owned(), ..entry(1, 10) };
    let refused = store.append(&[entry(0, 10), bad.clone()]).await.expect_err("refused");
    assert!(matches!(refused, StoreError::Refused(_)), "{refused:?}");
    assert_eq!(store.write_fault(), None, "the database can be written");
    assert!(
        store.usage(&UsageQuery { end_unix_s: 100, ..UsageQuery::default() }).await.expect("read").is_empty()
    );
    store.append(&[entry(0, 10)]).await.expect("written");
    sqlx::raw_sql("DROP TABLE daily_totals").execute(&raw).await.expect("damaged");
    let failed = store.append(&[entry(2, 10)]).await.expect_err("no table");
    assert!(matches!(failed, StoreError::Database(_)), "{failed:?}");
    assert!(store.write_fault().is_some());
    store.probe_write().await.expect("another table can be written");
    assert_eq!(store.write_fault(), None);
}

/// `old` makes a database as a version before this one has left it, with totals that cannot grow.
pub async fn an_older_database_is_brought_up_to_date(url: &str, old: &'static str) {
    let raw = raw(url).await;
    sqlx::raw_sql(old).execute(&raw).await.expect("an old database");
    let store = store_at(url).await;
    let table = store.keys().await.expect("read");
    assert_eq!((table.revision, table.keys.len()), (9, 2));
    assert_eq!(table.keys[0].limits, Limits::of([(LimitKind::RequestsPerMinute, 7)]));
    assert_eq!(table.keys[0].user_limits, Limits::of([(LimitKind::RequestsPerMinute, 3)]));
    assert_eq!(table.keys[1].organisation_limits, Limits::of([(LimitKind::TokensPerDay, 1_000)]));
    let large = LedgerEntry { prices: Prices { prompt: 1, ..Prices::default() }, ..odd(1) };
    store.append(&[LedgerEntry { at_unix_s: 300_002, ..large }, entry(2, 300_003)]).await.expect("written");
    let old_key = LedgerEntry {
        at_unix_s: 300_004,
        key_id: "key_1".to_owned(),
        project_id: "proj_1".to_owned(),
        ..odd(3)
    };
    store.append(&[old_key]).await.expect("its total stays as large as it can be");
    let totals = store.daily_totals(0..9).await.expect("read");
    let of_key =
        totals.iter().find(|total| (total.day, total.key_id.as_str()) == (3, "key_1")).expect("there");
    assert_eq!((of_key.n_tokens, of_key.cost), (i64::MAX as u64, Cost(i64::MAX as u128)));
    let by_key =
        UsageQuery { end_unix_s: 9 * DAY_S, group_by: vec![UsageGroup::Key], ..UsageQuery::default() };
    let of_rows = store.usage(&by_key).await.expect("read");
    let key_2 = of_rows.iter().find(|row| row.key_id == "key_2").expect("there");
    assert_eq!((key_2.prompt_tokens, key_2.cost), (20 + 10, Cost(32_000_000 + entry(2, 0).cost().0)));
    let key_1 = of_rows.iter().find(|row| row.key_id == "key_1").expect("there");
    assert_eq!(key_1.prompt_tokens, u64::MAX, "as many as can be shown");
    let mut n_hours = 0;
    while store.make_earlier_totals().await.expect("added up") {
        n_hours += 1;
    }
    assert_eq!(n_hours, 3, "27, 52 and 83");
    let of_totals = store.usage(&by_key).await.expect("read");
    let shown = |rows: &[UsageRow]| {
        let others = rows.iter().filter(|row| row.key_id != "key_1").cloned();
        others.collect::<Vec<_>>()
    };
    assert_eq!(shown(&of_totals), shown(&of_rows));
    store.check().await.expect("totals and entries agree");
}
