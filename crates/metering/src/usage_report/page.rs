//! Responses of OpenAI's usage and cost APIs: a page of buckets as JSON, or its rows as comma-separated
//! values. Amounts of money are exact decimal numbers.

use serde::Serialize;
use serde_json::value::RawValue;
use throng_store::{Cost, UsageGroup, UsageQuery, UsageRow, csv_field};

use super::query::{UsageKind, UsageQuestion};

#[derive(Serialize)]
struct Page<'a> {
    object: &'static str,
    data: Vec<Bucket<'a>>,
    has_more: bool,
    next_page: Option<String>,
}

#[derive(Serialize)]
struct Bucket<'a> {
    object: &'static str,
    start_time: u64,
    end_time: u64,
    results: Vec<Item<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Usage(Usage<'a>),
    Costs(Costs<'a>),
}

#[derive(Serialize)]
struct Usage<'a> {
    object: &'static str,
    input_tokens: u64,
    output_tokens: u64,
    input_cached_tokens: u64,
    input_audio_tokens: u64,
    output_audio_tokens: u64,
    num_model_requests: u64,
    project_id: Option<&'a str>,
    user_id: Option<&'a str>,
    api_key_id: Option<&'a str>,
    model: Option<&'a str>,
    batch: Option<bool>,
}

#[derive(Serialize)]
struct Costs<'a> {
    object: &'static str,
    amount: Amount,
    line_item: Option<&'a str>,
    project_id: Option<&'a str>,
    api_key_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Amount {
    value: Box<RawValue>,
    currency: &'static str,
}

/// Formats a page as JSON. Buckets without requests are included, with empty results.
pub fn json(kind: UsageKind, question: &UsageQuestion, rows: &[UsageRow]) -> Vec<u8> {
    let UsageQuery { start_unix_s, end_unix_s, bucket_width_s, group_by, .. } = &question.query;
    let starts = (*start_unix_s..*end_unix_s).step_by(usize::try_from(*bucket_width_s).unwrap_or(usize::MAX));
    let mut rows = rows.iter().peekable();
    let bucket = |start: u64| {
        let mut results = Vec::new();
        while let Some(row) = rows.next_if(|row| row.start_unix_s == start) {
            results.push(item(kind, group_by, row));
        }
        let end_time = (start + bucket_width_s).min(question.end_unix_s);
        Bucket { object: "bucket", start_time: start, end_time, results }
    };
    let data = starts.map(bucket).collect();
    let has_more = *end_unix_s < question.end_unix_s;
    let next_page = has_more.then(|| format!("page_{end_unix_s}"));
    serde_json::to_vec(&Page { object: "page", data, has_more, next_page }).unwrap_or_default()
}

fn item<'a>(kind: UsageKind, group_by: &[UsageGroup], row: &'a UsageRow) -> Item<'a> {
    let named = |group: UsageGroup| group_by.contains(&group).then(|| name(row, group));
    match kind {
        UsageKind::Completions => Item::Usage(Usage {
            object: "organization.usage.completions.result",
            input_tokens: row.prompt_tokens,
            output_tokens: row.generated_tokens,
            input_cached_tokens: row.cached_tokens,
            input_audio_tokens: 0,
            output_audio_tokens: 0,
            num_model_requests: row.n_requests,
            project_id: named(UsageGroup::Project),
            user_id: named(UsageGroup::User),
            api_key_id: named(UsageGroup::Key),
            model: named(UsageGroup::Model),
            batch: None,
        }),
        UsageKind::Costs => Item::Costs(Costs {
            object: "organization.costs.result",
            amount: Amount { value: decimal(row.cost), currency: "usd" },
            line_item: named(UsageGroup::Model),
            project_id: named(UsageGroup::Project),
            api_key_id: named(UsageGroup::Key),
        }),
    }
}

fn decimal(cost: Cost) -> Box<RawValue> {
    RawValue::from_string(cost.to_string()).expect("a decimal number is JSON")
}

fn name(row: &UsageRow, group: UsageGroup) -> &str {
    match group {
        UsageGroup::Project => &row.project_id,
        UsageGroup::User => &row.user,
        UsageGroup::Key => &row.key_id,
        UsageGroup::Model => &row.model,
    }
}

/// Formats the rows of a page as comma-separated values, with a header line.
pub fn csv(question: &UsageQuestion, rows: &[UsageRow]) -> String {
    let groups = &question.query.group_by;
    let mut text = "start_time".to_owned();
    groups.iter().for_each(|group| text += &format!(",{}", group.name()));
    text += ",num_model_requests,input_tokens,input_cached_tokens,output_tokens,cost_usd\r\n";
    for row in rows {
        text += &row.start_unix_s.to_string();
        groups.iter().for_each(|group| text += &format!(",{}", csv_field(name(row, *group))));
        text += &format!(
            ",{},{},{},{},{}\r\n",
            row.n_requests, row.prompt_tokens, row.cached_tokens, row.generated_tokens, row.cost
        );
    }
    text
}
