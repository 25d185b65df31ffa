//! `throng usage`: prints the usage of keys, projects, users or models from the ledger.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use comfy_table::{Table, presets};
use jiff::Timestamp;
use throng_store::{KeyTable, Store, UsageGroup, UsageQuery, UsageRow, now_unix_s, open_existing};

use crate::args::{UsageArgs, UsageBy};
use crate::process::output;

const DAY_S: u64 = 86_400;
/// Time after which a progress message is printed.
const SAY_AFTER: Duration = Duration::from_secs(2);
const NUMBERS: [&str; 5] = ["REQUESTS", "PROMPT", "CACHED", "GENERATED", "USD"];

/// Runs the command.
///
/// # Errors
/// When the database cannot be used.
pub async fn run(arguments: &UsageArgs) -> Result<()> {
    let now = now_unix_s();
    let start = now.saturating_sub(arguments.since);
    // A table's lines cover the whole time; CSV has a line for each day (UTC).
    let (start_unix_s, bucket_width_s) =
        if arguments.csv { (start - start % DAY_S, DAY_S) } else { (start, 0) };
    let query = UsageQuery {
        start_unix_s,
        end_unix_s: now + 1,
        bucket_width_s,
        group_by: vec![group(arguments.by)],
        only: Vec::new(),
    };
    let store = open_existing(&arguments.database.database).await?;
    add_up(&*store).await?;
    let rows = store.usage_at_leisure(&query).await?;
    let keys = store.keys().await?;
    let names = names(&keys, arguments.by);
    Ok(output::line(if arguments.csv {
        csv(&rows, arguments.by)
    } else {
        table(&rows, arguments.by, &names)
    })?)
}

/// Computes the daily totals that older versions have not written, so that queries need not read all rows.
async fn add_up(store: &dyn Store) -> Result<()> {
    let began = Instant::now();
    let mut has_said = false;
    while store.make_earlier_totals().await? {
        if !has_said && began.elapsed() > SAY_AFTER {
            has_said = true;
            tracing::warn!("adding up the ledger of an older version, once");
        }
    }
    Ok(())
}

fn group(by: UsageBy) -> UsageGroup {
    match by {
        UsageBy::Key => UsageGroup::Key,
        UsageBy::Project => UsageGroup::Project,
        UsageBy::User => UsageGroup::User,
        UsageBy::Model => UsageGroup::Model,
    }
}

/// The key, project, user or model of a row.
fn subject(row: &UsageRow, by: UsageBy) -> &str {
    match by {
        UsageBy::Key => &row.key_id,
        UsageBy::Project => &row.project_id,
        UsageBy::User => &row.user,
        UsageBy::Model => &row.model,
    }
}

/// Readable names by id.
fn names(keys: &KeyTable, by: UsageBy) -> HashMap<&str, String> {
    let of_key = |key: &throng_store::ApiKey| format!("{} {}", key.prefix, key.name).trim().to_owned();
    match by {
        UsageBy::Key => keys.keys.iter().map(|key| (key.id.as_str(), of_key(key))).collect(),
        UsageBy::Project => {
            let name = |key: &throng_store::ApiKey| format!("{}/{}", key.organisation, key.project);
            keys.keys.iter().map(|key| (key.project_id.as_str(), name(key))).collect()
        }
        UsageBy::User | UsageBy::Model => HashMap::new(),
    }
}

fn table(rows: &[UsageRow], by: UsageBy, names: &HashMap<&str, String>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec![group(by).name().to_ascii_uppercase(), "NAME".to_owned()];
    header.extend(NUMBERS.map(str::to_owned));
    table.set_header(header);
    for row in rows {
        let subject = subject(row, by);
        let mut cells = vec![subject.to_owned(), names.get(subject).cloned().unwrap_or_default()];
        cells.extend(numbers(row));
        table.add_row(cells);
    }
    table.to_string()
}

fn csv(rows: &[UsageRow], by: UsageBy) -> String {
    let mut lines = vec![format!("day,{},{}", group(by).name(), NUMBERS.join(",").to_ascii_lowercase())];
    for row in rows {
        let day = i64::try_from(row.start_unix_s).ok().and_then(|s| Timestamp::from_second(s).ok());
        let day = day.map(|day| day.strftime("%Y-%m-%d").to_string()).unwrap_or_default();
        lines.push(format!("{day},{},{}", throng_store::csv_field(subject(row, by)), numbers(row).join(",")));
    }
    lines.join("\n")
}

fn numbers(row: &UsageRow) -> [String; 5] {
    [
        row.n_requests.to_string(),
        row.prompt_tokens.to_string(),
        row.cached_tokens.to_string(),
        row.generated_tokens.to_string(),
        row.cost.to_string(),
    ]
}
