//! Times of large databases: 100,000 keys, and a ledger of `THRONG_ROWS` entries (two million) over 30 days.
//! They are printed and not judged; what is judged is that the work does not grow.
//! `cargo test --release -p throng-store --test large -- --ignored --nocapture`

use std::time::{Duration, Instant};

use throng_store::{NewKey, UsageGroup, UsageQuery, open};
use throng_testkit::postgres::Postgres;

const N_KEYS: u64 = 99_000;
const DAY_S: u64 = 86_400;

fn n_rows() -> u64 {
    std::env::var("THRONG_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000_000)
}

/// Statements that make all of it, in the dialect's words for a series of numbers `n`, random bytes and the
/// remainder.
fn statements(series: impl Fn(u64) -> String, digest: &str) -> Vec<String> {
    let hex = |text: &str| format!("{text} || n");
    vec![
        "INSERT INTO organisations VALUES ('org_1', 'large', 1)".to_owned(),
        "INSERT INTO projects VALUES ('proj_1', 'org_1', 'p', 1)".to_owned(),
        format!(
            "INSERT INTO api_keys (id, project_id, name, prefix, digest, created_unix_s)
             SELECT {}, 'proj_1', '', {}, {digest}, 1 FROM {}",
            hex("'key_'"),
            hex("'sk-'"),
            series(N_KEYS)
        ),
        format!(
            "INSERT INTO ledger SELECT {}, 'req', CAST(n * {} / {} AS BIGINT), 'org_1', 'proj_1', 'key_' || (n * 7919 % 1000), 'user_' ||
             (n * 104729 % 5000), 'model_' || (n % 3), 100, 10, 20, 1000000, 100000, 2000000, 131000000, 5, 'stop' FROM {}",
            hex("'entry_'"),
            30 * DAY_S,
            n_rows(),
            series(n_rows())
        ),
        format!("UPDATE usage_totals_start SET unix_s = {}", 31 * DAY_S),
    ]
}

async fn measure(name: &str, url: &str, raw: &str, statements: Vec<String>) {
    let store = open(url).await.expect("a database");
    let raw = {
        sqlx::any::install_default_drivers();
        sqlx::AnyPool::connect(raw).await.expect("a connection")
    };
    for statement in statements {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&raw).await.expect("made");
    }
    let timed = |what: &str, begun: Instant| println!("{name}: {what}: {:?}", begun.elapsed());
    let begun = Instant::now();
    let known = store.keys().await.expect("read");
    timed(&format!("reading {} keys", known.keys.len()), begun);
    let begun = Instant::now();
    let new = NewKey { organisation: "large".to_owned(), project: "p".to_owned(), ..NewKey::default() };
    let created = store.create_key(new).await.expect("made").key;
    timed("making a key", begun);
    let begun = Instant::now();
    assert!(store.revision().await.expect("read") > known.revision);
    let changed = store.changed_keys(known.revision).await.expect("read");
    timed("noticing and reading it", begun);
    assert_eq!(changed.keys, [created], "no other is read");

    let start = DAY_S / 2 + 1234;
    let by = |group_by: Vec<UsageGroup>| UsageQuery {
        start_unix_s: start,
        end_unix_s: start + 28 * DAY_S,
        group_by,
        ..UsageQuery::default()
    };
    let ask = async |what: &str| {
        for group in [UsageGroup::Project, UsageGroup::Key, UsageGroup::Model, UsageGroup::User] {
            let begun = Instant::now();
            let rows = store.usage_at_leisure(&by(vec![group])).await.expect("read");
            timed(&format!("28 days by {}, {what}, {} rows", group.name(), rows.len()), begun);
        }
        store.usage_at_leisure(&by(vec![UsageGroup::Key, UsageGroup::Model])).await.expect("read")
    };
    let of_rows = ask("from rows").await;
    let begun = Instant::now();
    let (mut n_hours, mut longest) = (0, Duration::ZERO);
    loop {
        let begun = Instant::now();
        let has_more = store.make_earlier_totals().await.expect("added up");
        longest = longest.max(begun.elapsed());
        if !has_more {
            break;
        }
        n_hours += 1;
    }
    timed(&format!("adding up {n_hours} hours, {longest:?} at most"), begun);
    assert_eq!(ask("from totals").await, of_rows);
    let begun = Instant::now();
    let totals = store.daily_totals(0..31).await.expect("read");
    timed(&format!("{} daily totals", totals.len()), begun);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn times_in_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("throng.db");
    let series = |n: u64| {
        format!(
            "(WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {n} - 1) SELECT n FROM s)"
        )
    };
    let file = path.display();
    measure(
        "SQLite",
        &format!("sqlite:{file}"),
        &format!("sqlite://{file}"),
        statements(series, "randomblob(32)"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn times_in_postgres() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = Postgres::start(folder.path()) else { return };
    let url = server.new_database("large");
    let series = |n: u64| format!("(SELECT n FROM generate_series(0, {n} - 1) AS s(n)) AS series");
    let digest = "decode(md5(n::text) || md5('x' || n), 'hex')";
    let raw = format!("{url}?options=-c%20search_path%3Dthrong");
    measure("PostgreSQL", &url, &raw, statements(series, digest)).await;
}
