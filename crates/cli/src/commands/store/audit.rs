//! `throng store audit`: prints the destinations of requests bound to regions, and the gateways' rules for
//! them.

use anyhow::Result;
use comfy_table::{Table, presets};
use jiff::Timestamp;
use throng_store::{AuditLine, AuditQuery, MAX_AUDIT_LINES, csv_field, now_unix_s, open_existing};

use crate::args::AuditArgs;
use crate::process::output;

const HEADER: [&str; 9] =
    ["TIME", "EVENT", "ORGANISATION", "PERMITTED", "REGION", "REPLICA", "MODEL", "REQUEST", "REASON"];

/// Runs the command. Prints page by page, so that only one page is in memory.
///
/// # Errors
/// When the database cannot be used.
pub async fn run(arguments: &AuditArgs) -> Result<()> {
    let now = now_unix_s();
    let mut query = AuditQuery {
        start_unix_ms: now.saturating_sub(arguments.since) * 1_000,
        end_unix_ms: (now + 1) * 1_000,
        organisation: arguments.organisation.clone(),
        after: 0,
        limit: MAX_AUDIT_LINES,
    };
    let store = open_existing(&arguments.database.database).await?;
    let mut is_first = true;
    loop {
        let lines = store.audit(&query).await?;
        if is_first || !lines.is_empty() {
            output::line(if arguments.csv { csv(&lines, is_first) } else { table(&lines) })?;
        }
        is_first = false;
        match lines.last() {
            Some((number, _)) if lines.len() == MAX_AUDIT_LINES => query.after = *number,
            _ => return Ok(()),
        }
    }
}

fn cells(line: &AuditLine) -> [String; 9] {
    let time = i64::try_from(line.at_unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let time = time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()).unwrap_or_default();
    let texts = [
        line.event.name(),
        &line.organisation,
        &line.permitted,
        &line.region,
        &line.replica,
        &line.model,
        &line.request_id,
        &line.reason,
    ];
    let mut cells = [const { String::new() }; 9];
    cells[0] = time;
    cells[1..].iter_mut().zip(texts).for_each(|(cell, text)| *cell = text.to_owned());
    cells
}

fn table(lines: &[(u64, AuditLine)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(HEADER);
    for (_, line) in lines {
        table.add_row(cells(line));
    }
    table.to_string()
}

fn csv(lines: &[(u64, AuditLine)], has_header: bool) -> String {
    let header = has_header.then(|| HEADER.join(",").to_ascii_lowercase());
    let line = |(_, line): &(u64, AuditLine)| cells(line).map(|cell| csv_field(&cell).to_string()).join(",");
    header.into_iter().chain(lines.iter().map(line)).collect::<Vec<_>>().join("\n")
}
