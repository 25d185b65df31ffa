//! Usage queries in SQL: sums of totals for whole hours and days, and of rows at the edges, in one
//! statement, so that the result is exact. All parts have the same grouping and filters.

use sqlx::any::AnyRow;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::entry::{DAY_S, unsigned};
use super::totals::{self, HOUR_S, PICODOLLARS_PER_MICRODOLLAR};
use crate::bounds::as_i64;
use crate::error::StoreError;
use crate::ledger::{MAX_USAGE_ROWS, UsageGroup, UsageQuery, UsageRow};
use crate::money::Cost;

/// Sums consist of two sums that fit into 64 bits: of millions and of the remainder.
const PART: u128 = 1_000_000;

/// A time range and the source of its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    /// Width of its totals in seconds; `None` for sums of rows.
    width_s: Option<u64>,
    start: u64,
    end: u64,
}

/// Splits a query's time range into days and hours with totals, which exist from `known` on, and rows for
/// the rest. Totals are used only if no bucket starts inside of one.
fn segments(query: &UsageQuery, known: u64) -> Vec<Segment> {
    let is_whole = |width: u64| {
        let bucket = query.bucket_width_s;
        bucket == 0 || bucket.is_multiple_of(width) && query.start_unix_s.is_multiple_of(width)
    };
    let mut segments = Vec::new();
    let mut push = |width_s, start, end| {
        if start < end {
            segments.push(Segment { width_s, start, end });
        }
    };
    let (start, end) = (query.start_unix_s, query.end_unix_s.min(i64::MAX as u64));
    let within = |width: u64, start: u64, end: u64| {
        let first = start.max(known).div_ceil(width).saturating_mul(width);
        let last = end / width * width;
        if is_whole(width) && first < last { (first, last) } else { (end, end) }
    };
    let (first_hour, last_hour) = within(HOUR_S, start, end);
    let (first_day, last_day) = within(DAY_S, first_hour, last_hour);
    push(None, start, first_hour.min(end));
    push(Some(HOUR_S), first_hour, first_day);
    push(Some(DAY_S), first_day, last_day);
    push(Some(HOUR_S), last_day, last_hour);
    push(None, last_hour, end);
    segments
}

fn column(group: UsageGroup) -> &'static str {
    match group {
        UsageGroup::Project => "project_id",
        UsageGroup::User => "user_name",
        UsageGroup::Key => "key_id",
        UsageGroup::Model => "model",
    }
}

pub async fn usage(pool: &AnyPool, query: &UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
    let mut connection = pool.acquire().await?;
    // The value only falls: totals that are complete now stay complete.
    let known = totals::start(&mut connection).await?;
    let segments = segments(query, known);
    if segments.is_empty() {
        return Ok(Vec::new());
    }
    // The SQL contains only column names and numbers; the caller's values are bound. Queries hardly repeat,
    // so none is kept prepared.
    let mut statement = sqlx::query(AssertSqlSafe(sql(query, &segments))).persistent(false);
    for name in query.only.iter().flat_map(|(_, names)| names) {
        statement = statement.bind(super::short_text(name));
    }
    let rows = statement.fetch_all(&mut *connection).await?;
    if rows.len() > MAX_USAGE_ROWS {
        return Err(StoreError::TooManyRows(MAX_USAGE_ROWS));
    }
    rows.iter().map(usage_row).collect()
}

fn sql(query: &UsageQuery, segments: &[Segment]) -> String {
    let mut filter = String::new();
    let mut n_parameters = 0;
    for (group, names) in &query.only {
        let places: Vec<String> = (1..=names.len()).map(|i| format!("${}", n_parameters + i)).collect();
        n_parameters += names.len();
        let places = if places.is_empty() { "NULL".to_owned() } else { places.join(", ") };
        filter += &format!(" AND {} IN ({places})", column(*group));
    }
    let tells_users = query.group_by.contains(&UsageGroup::User)
        || query.only.iter().any(|(group, _)| *group == UsageGroup::User);
    let parts = segments.iter().map(|Segment { width_s, start, end }| match width_s {
        Some(width_s) => format!(
            "SELECT start_unix_s AS moment, project_id, user_name, key_id, model, requests AS n, prompt_tokens, cached_tokens,
             generated_tokens, cost_microdollars, cost_rest FROM usage_totals WHERE width_s = {width_s} AND has_user = {}
             AND start_unix_s >= {start} AND start_unix_s < {end}{filter}",
            u8::from(tells_users)
        ),
        None => format!(
            "SELECT at_unix_s AS moment, project_id, user_name, key_id, model, 1 AS n, prompt_tokens, cached_tokens,
             generated_tokens, cost_picodollars / {PICODOLLARS_PER_MICRODOLLAR} AS cost_microdollars,
             cost_picodollars % {PICODOLLARS_PER_MICRODOLLAR} AS cost_rest FROM ledger
             WHERE at_unix_s >= {start} AND at_unix_s < {end}{filter}"
        ),
    });
    let parts: Vec<String> = parts.collect();
    let columns =
        UsageGroup::ALL.map(|group| if query.group_by.contains(&group) { column(group) } else { "''" });
    let (start, width) = (as_i64(query.start_unix_s), as_i64(query.bucket_width_s));
    let bucket = match width {
        0 => format!("CAST({start} AS BIGINT)"),
        _ => format!("CAST({start} + (moment - {start}) / {width} * {width} AS BIGINT)"),
    };
    let sums = ["n", "prompt_tokens", "cached_tokens", "generated_tokens", "cost_microdollars", "cost_rest"]
        .map(|column| {
            format!("CAST(SUM({column} / {PART}) AS BIGINT), CAST(SUM({column} % {PART}) AS BIGINT)")
        });
    format!(
        "SELECT {bucket} AS bucket, {}, {} FROM ({}) AS parts GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT {}",
        columns.join(", "),
        sums.join(", "),
        parts.join(" UNION ALL "),
        MAX_USAGE_ROWS + 1
    )
}

fn usage_row(row: &AnyRow) -> Result<UsageRow, StoreError> {
    let sum = |column: usize| -> Result<u128, StoreError> {
        Ok(u128::from(unsigned(row, column)?) * PART + u128::from(unsigned(row, column + 1)?))
    };
    let tokens = |column: usize| Ok::<_, StoreError>(u64::try_from(sum(column)?).unwrap_or(u64::MAX));
    let cost = sum(13)?.saturating_mul(PICODOLLARS_PER_MICRODOLLAR as u128).saturating_add(sum(15)?);
    Ok(UsageRow {
        start_unix_s: unsigned(row, 0)?,
        project_id: row.try_get(1)?,
        user: row.try_get(2)?,
        key_id: row.try_get(3)?,
        model: row.try_get(4)?,
        n_requests: tokens(5)?,
        prompt_tokens: tokens(7)?,
        cached_tokens: tokens(9)?,
        generated_tokens: tokens(11)?,
        cost: Cost(cost),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_is_read_once_and_whole_days_as_days() {
        let cut = |start: u64, end: u64, width: u64, known: u64| {
            let query = UsageQuery {
                start_unix_s: start,
                end_unix_s: end,
                bucket_width_s: width,
                ..UsageQuery::default()
            };
            segments(&query, known)
        };
        let seen = |cut: &[Segment]| {
            cut.iter().map(|one| (one.width_s.unwrap_or(1), one.start, one.end)).collect::<Vec<_>>()
        };
        let (day, hour) = (DAY_S, HOUR_S);
        assert_eq!(
            seen(&cut(day - hour - 5, 3 * day + hour + 7, 0, 0)),
            [
                (1, day - hour - 5, day - hour),
                (hour, day - hour, day),
                (day, day, 3 * day),
                (hour, 3 * day, 3 * day + hour),
                (1, 3 * day + hour, 3 * day + hour + 7),
            ]
        );
        assert_eq!(seen(&cut(0, 2 * day, day, day)), [(1, 0, day), (day, day, 2 * day)]);
        assert_eq!(seen(&cut(day, 2 * day, hour, 0)), [(hour, day, 2 * day)], "buckets of hours");
        assert_eq!(seen(&cut(7, 2 * day, day, 0)), [(1, 7, 2 * day)], "days that begin elsewhere");
        assert_eq!(seen(&cut(5, 9, 0, 0)), [(1, 5, 9)]);
        assert_eq!(seen(&cut(0, day, 0, u64::MAX)), [(1, 0, day)], "no totals yet");
        assert!(cut(9, 9, 0, 0).is_empty());
        let mut random = 7_u64;
        let mut draw = move |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        for _ in 0..10_000 {
            let (start, known, width) = (draw(5 * day), draw(6 * day), [0, 60, hour, day][draw(4) as usize]);
            let end = start + draw(5 * day);
            let mut at = start;
            for one in cut(start, end, width, known) {
                assert!(one.start == at && one.end > at);
                let is_known = one.start >= known && one.start.is_multiple_of(one.width_s.unwrap_or(1));
                assert!(
                    one.width_s.is_none() || is_known && one.end.is_multiple_of(one.width_s.unwrap_or(1))
                );
                at = one.end;
            }
            assert_eq!(at, end);
        }
    }
}
