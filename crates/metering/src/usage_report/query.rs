//! Queries to OpenAI's usage and cost APIs, parsed strictly from a URL. Does not know the caller.

use throng_store::{UsageGroup, UsageQuery};

use throng_api::ApiError;

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;
/// Latest accepted time, in seconds since the epoch: the year 9999.
const MAX_TIME_S: u64 = 253_402_300_799;
/// Maximum number of names in all lists of a query.
const MAX_NAMES: usize = 100;
const MAX_NAME_BYTES: usize = 512;

/// The usage or the cost API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageKind {
    /// Usage: requests and tokens.
    Completions,
    /// Costs of requests.
    Costs,
}

/// A query and the form of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuestion {
    /// Database query for the buckets of one page.
    pub query: UsageQuery,
    /// End of the buckets of all pages, in seconds since the epoch.
    pub end_unix_s: u64,
    /// Whether the response is comma-separated values.
    pub is_csv: bool,
}

/// The parameters as given in the URL.
#[derive(Debug, Default)]
struct Given {
    start_time: Option<u64>,
    end_time: Option<u64>,
    width: Option<u64>,
    limit: Option<u64>,
    page: Option<u64>,
    format: Option<bool>,
    group_by: Vec<UsageGroup>,
    only: Vec<(UsageGroup, Vec<String>)>,
}

impl UsageQuestion {
    /// Parses a URL's query. `accepts_csv`: the client prefers CSV. `now_unix_s`: default end of the time
    /// range.
    ///
    /// # Errors
    /// A 400 for an unknown or missing parameter, and for a value out of its range.
    pub fn parse(kind: UsageKind, query: &str, accepts_csv: bool, now_unix_s: u64) -> Result<Self, ApiError> {
        let mut given = Given::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            given.take(kind, name.strip_suffix("[]").unwrap_or(&name), &value)?;
        }
        let start = given.start_time.ok_or_else(|| ApiError::missing_required_parameter("start_time"))?;
        let end = given.end_time.unwrap_or(now_unix_s + 1);
        if end <= start {
            return Err(ApiError::invalid_value(
                "end_time",
                "Invalid 'end_time': it must be after 'start_time'.",
            ));
        }
        let width = given.width.unwrap_or(DAY_S);
        let (default_limit, max_limit) = match (kind, width) {
            (UsageKind::Costs, _) => (7, 180),
            (_, MINUTE_S) => (60, 1440),
            (_, HOUR_S) => (24, 168),
            _ => (7, 31),
        };
        let limit = given.limit.unwrap_or(default_limit);
        if !(1..=max_limit).contains(&limit) {
            let reason =
                format!("Invalid 'limit': it must be from 1 to {max_limit} for this 'bucket_width'.");
            return Err(ApiError::invalid_value("limit", reason));
        }
        // Buckets of all queries are aligned.
        let first = given.page.unwrap_or(start).max(start) / width * width;
        let query = UsageQuery {
            start_unix_s: first,
            end_unix_s: end.min(first + limit * width),
            bucket_width_s: width,
            group_by: given.group_by,
            only: given.only,
        };
        Ok(Self { query, end_unix_s: end, is_csv: given.format.unwrap_or(accepts_csv) })
    }
}

impl Given {
    fn take(&mut self, kind: UsageKind, name: &str, value: &str) -> Result<(), ApiError> {
        match name {
            "start_time" => once(name, &mut self.start_time, time(name, value)?),
            "end_time" => once(name, &mut self.end_time, time(name, value)?),
            "limit" => once(name, &mut self.limit, number(name, value)?),
            "page" => {
                let page = value
                    .strip_prefix("page_")
                    .ok_or_else(|| invalid(name, "the 'next_page' of an answer"))?;
                once(name, &mut self.page, time(name, page)?)
            }
            "bucket_width" => {
                let width = match value {
                    "1d" => DAY_S,
                    "1h" if kind == UsageKind::Completions => HOUR_S,
                    "1m" if kind == UsageKind::Completions => MINUTE_S,
                    _ if kind == UsageKind::Costs => return Err(invalid(name, "'1d'")),
                    _ => return Err(invalid(name, "'1m', '1h' or '1d'")),
                };
                once(name, &mut self.width, width)
            }
            "format" => {
                let is_csv = match value {
                    "csv" => true,
                    "json" => false,
                    _ => return Err(invalid(name, "'json' or 'csv'")),
                };
                once(name, &mut self.format, is_csv)
            }
            "group_by" => {
                for name in value.split(',') {
                    let group = group_of(kind, name)
                        .ok_or_else(|| invalid("group_by", "names of what the API tells apart"))?;
                    if !self.group_by.contains(&group) {
                        self.group_by.push(group);
                    }
                }
                Ok(())
            }
            "project_ids" => self.only(name, UsageGroup::Project, value),
            "api_key_ids" => self.only(name, UsageGroup::Key, value),
            "user_ids" if kind == UsageKind::Completions => self.only(name, UsageGroup::User, value),
            "models" if kind == UsageKind::Completions => self.only(name, UsageGroup::Model, value),
            other => Err(ApiError::unknown_parameter(other)),
        }
    }

    fn only(&mut self, parameter: &str, group: UsageGroup, name: &str) -> Result<(), ApiError> {
        let n_names: usize = self.only.iter().map(|(_, names)| names.len()).sum();
        if n_names == MAX_NAMES || name.len() > MAX_NAME_BYTES {
            return Err(invalid(parameter, "at most 100 names of at most 512 bytes"));
        }
        match self.only.iter_mut().find(|(known, _)| *known == group) {
            Some((_, names)) => names.push(name.to_owned()),
            None => self.only.push((group, vec![name.to_owned()])),
        }
        Ok(())
    }
}

/// The dimension for a group of costs: a line item of a bill is a model.
fn group_of(kind: UsageKind, name: &str) -> Option<UsageGroup> {
    match (kind, name) {
        (UsageKind::Costs, "line_item") => Some(UsageGroup::Model),
        (UsageKind::Costs, "model" | "user_id") => None,
        _ => UsageGroup::ALL.into_iter().find(|group| group.name() == name),
    }
}

fn once<T>(name: &str, place: &mut Option<T>, value: T) -> Result<(), ApiError> {
    if place.replace(value).is_some() {
        return Err(ApiError::invalid_value(name, format!("Invalid '{name}': it stands there twice.")));
    }
    Ok(())
}

fn time(name: &str, value: &str) -> Result<u64, ApiError> {
    number(name, value)
        .ok()
        .filter(|time| *time <= MAX_TIME_S)
        .ok_or_else(|| invalid(name, "seconds since 1970"))
}

fn number(name: &str, value: &str) -> Result<u64, ApiError> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| invalid(name, "a whole number"))
}

fn invalid(name: &str, expected: &str) -> ApiError {
    ApiError::invalid_value(name, format!("Invalid '{name}': it must be {expected}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: UsageKind, query: &str) -> Result<UsageQuestion, (&'static str, Option<String>)> {
        UsageQuestion::parse(kind, query, false, 1_000_000)
            .map_err(|error| (error.code(), error.param().map(str::to_owned)))
    }

    #[test]
    fn questions_are_read_strictly() {
        let kind = UsageKind::Completions;
        let asked = parse(
            kind,
            "start_time=90000&group_by=model&group_by[]=project_id&models=a%2Cb&limit=2&format=csv",
        );
        let asked = asked.expect("a question");
        assert_eq!((asked.query.start_unix_s, asked.query.end_unix_s), (86_400, 86_400 * 3));
        assert_eq!((asked.end_unix_s, asked.is_csv), (1_000_001, true));
        assert_eq!(asked.query.group_by, [UsageGroup::Model, UsageGroup::Project]);
        assert_eq!(asked.query.only, [(UsageGroup::Model, vec!["a,b".to_owned()])]);
        let second = parse(kind, "start_time=90000&page=page_259200&limit=2").expect("a question");
        assert_eq!(second.query.start_unix_s, 259_200);
        for (query, code, param) in [
            ("", "missing_required_parameter", "start_time"),
            ("start_time=-1", "invalid_value", "start_time"),
            ("start_time=1.5", "invalid_value", "start_time"),
            ("start_time=99999999999999999999", "invalid_value", "start_time"),
            ("start_time=1&start_time=2", "invalid_value", "start_time"),
            ("start_time=5&end_time=5", "invalid_value", "end_time"),
            ("start_time=1&bucket_width=2d", "invalid_value", "bucket_width"),
            ("start_time=1&limit=32", "invalid_value", "limit"),
            ("start_time=1&limit=0", "invalid_value", "limit"),
            ("start_time=1&group_by=batch2", "invalid_value", "group_by"),
            ("start_time=1&page=7", "invalid_value", "page"),
            ("start_time=1&colour=red", "unknown_parameter", "colour"),
        ] {
            assert_eq!(parse(kind, query), Err((code, Some(param.to_owned()))), "{query}");
        }
        let costs = parse(UsageKind::Costs, "start_time=1&group_by=line_item&limit=180").expect("a question");
        assert_eq!(costs.query.group_by, [UsageGroup::Model]);
        for bad in ["start_time=1&bucket_width=1h", "start_time=1&group_by=model", "start_time=1&models=a"] {
            assert!(parse(UsageKind::Costs, bad).is_err(), "{bad}");
        }
    }
}
