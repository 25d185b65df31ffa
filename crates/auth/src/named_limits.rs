//! Limits as a JSON object of counts and of dollars in strings, by the names of the limits. Does not know
//! scopes.

use serde_json::{Map, Value};
use throng_store::{LimitChange, LimitKind, parse_millionths};

/// Error in an object of limits.
#[derive(Debug, PartialEq, Eq)]
pub enum LimitFault {
    /// No limit has this name.
    Unknown(String),
    /// A value is invalid, with the expected one.
    Invalid(String, &'static str),
}

/// Reads an object of limits; null removes a limit.
///
/// # Errors
/// The first fault.
pub fn read_limits(fields: &Map<String, Value>) -> Result<LimitChange, LimitFault> {
    let read = |(name, value): (&String, &Value)| {
        let kind = LimitKind::of_name(name).ok_or_else(|| LimitFault::Unknown(name.clone()))?;
        let limit = match value {
            Value::Null => return Ok((kind, None)),
            Value::Number(count) if !kind.is_money() => count.as_u64(),
            Value::String(text) if kind.is_money() => parse_millionths(text),
            _ => None,
        };
        let expected = if kind.is_money() { "a text like \"2.50\"" } else { "a positive integer" };
        // The database has signed numbers.
        let limit = limit.filter(|limit| (1..=i64::MAX as u64).contains(limit));
        Ok((kind, Some(limit.ok_or_else(|| LimitFault::Invalid(name.clone(), expected))?)))
    };
    fields.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_numbers_and_money_is_text() {
        let read = |value: Value| read_limits(value.as_object().expect("an object"));
        let all = json!({"requests_per_minute": 1, "cost_per_day": "0.5", "tokens_per_day": null});
        let mut change = read(all).expect("limits");
        change.sort_unstable();
        let expected = [
            (LimitKind::RequestsPerMinute, Some(1)),
            (LimitKind::TokensPerDay, None),
            (LimitKind::CostPerDay, Some(500_000)),
        ];
        assert_eq!(change, expected);
        assert_eq!(read(json!({"colour": 1})), Err(LimitFault::Unknown("colour".to_owned())));
        for wrong in [json!(0), json!(-1), json!(1.5), json!("1"), json!(u64::MAX), json!([]), json!(true)] {
            let result = read(json!({"tokens_per_day": wrong}));
            assert!(matches!(result, Err(LimitFault::Invalid(..))), "{wrong}: {result:?}");
        }
        for wrong in [json!(1), json!("0"), json!("x"), json!("-1")] {
            assert!(matches!(read(json!({"cost_per_day": wrong})), Err(LimitFault::Invalid(..))), "{wrong}");
        }
    }
}
