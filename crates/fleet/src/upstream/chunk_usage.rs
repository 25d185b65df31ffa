//! Removes the usage from a stream's chunks if the client did not request it: engines send it because the
//! gateway requests the usage of the whole request. Other members of a chunk are unchanged.

use std::fmt::Write;

use bytes::Bytes;
use throng_api::json::{MAX_MEMBERS, Node};

use super::events::{contains, data_of};

/// The event of a chunk without its usage, if it has choices beside the usage; `None` if it has none, or the
/// event is not a chunk.
pub fn without_usage(event: &[u8]) -> Option<Bytes> {
    let data = data_of(event).filter(|data| contains(data, b"\"usage\""))?;
    let (mut members, mut has_usage) = (String::with_capacity(data.len()), false);
    let read = Node::body(data).and_then(|chunk| {
        chunk.members(MAX_MEMBERS, |key, value| {
            if key == "usage" {
                has_usage = true;
                return Ok(());
            }
            let separator = if members.is_empty() { "" } else { "," };
            let _ = write!(members, "{separator}{}:{}", serde_json::Value::from(key), value.text());
            Ok(())
        })
    });
    (read.is_ok() && has_usage).then(|| format!("data: {{{members}}}\n\n").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_usage_goes() {
        for (event, left) in [
            (
                r#"data: {"id":"x","choices":[{"delta":{"content":"\u00e9 1.50"}, "usage":1}],"usage":{"a":1},"n":1.50}"#,
                Some(r#"{"id":"x","choices":[{"delta":{"content":"\u00e9 1.50"}, "usage":1}],"n":1.50}"#),
            ),
            (r#"data:{"usage":null,"choices":[]}"#, Some(r#"{"choices":[]}"#)),
            (r#"data: {"choices":[{"delta":{"content":"\"usage\""}}]}"#, None),
            ("data: [DONE]", None),
            (": usage", None),
            (r#"data: {"usage":"#, None),
        ] {
            let told = without_usage(format!("{event}\n\n").as_bytes());
            assert_eq!(told, left.map(|left| Bytes::from(format!("data: {left}\n\n"))), "{event}");
        }
    }
}
