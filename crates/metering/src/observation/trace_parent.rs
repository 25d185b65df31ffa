//! The `traceparent` header of W3C's Trace Context, which identifies a request's trace. Does not store
//! traces.

use http::HeaderMap;

/// Span of the caller, the parent of the request's span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace.
    pub trace_id: u128,
    /// Id of the caller's span.
    pub span_id: u64,
    /// Whether the caller samples the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses the header (<https://www.w3.org/TR/trace-context/#traceparent-header>); `None` if it is
    /// absent, repeated or invalid.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut sent = headers.get_all("traceparent").iter();
        let (Some(value), None) = (sent.next(), sent.next()) else { return None };
        let text = value.to_str().ok()?;
        let (version, rest) = text.split_at_checked(2)?;
        let version = hex(version, 2)?;
        // Later versions may append fields.
        let is_right_length = text.len() == 55 || (version > 0 && text.as_bytes().get(55) == Some(&b'-'));
        if version == 0xff || !is_right_length {
            return None;
        }
        let mut fields = rest.strip_prefix('-')?.split('-');
        let trace_id = hex(fields.next()?, 32)?;
        let span_id = u64::try_from(hex(fields.next()?, 16)?).ok()?;
        let flags = hex(fields.next()?, 2)?;
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

/// Parses a number of `n` lower-case hexadecimal digits.
fn hex(digits: &str, n: usize) -> Option<u128> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == n && digits.as_bytes().iter().all(is_hex))
        .then(|| u128::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_headers_are_read() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", value.parse().expect("a header value"));
            TraceParent::of(&headers)
        };
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let parent = read(&format!("00-{ids}-01")).expect("the example of the specification");
        assert_eq!(parent.trace_id, 0x0af7651916cd43dd8448eb211c80319c);
        assert_eq!((parent.span_id, parent.sampled), (0xb7ad6b7169203331, true));
        assert!(!read(&format!("00-{ids}-00")).expect("valid").sampled);
        assert!(read(&format!("01-{ids}-01-more")).is_some());
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        for bad in [
            "",
            "00",
            &format!("ff-{ids}-01"),
            &format!("00-{ids}-01-more"),
            &format!("00-{}-01", ids.to_uppercase()),
            &format!("00-{ids}-0"),
            &zero_trace,
            &zero_span,
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
