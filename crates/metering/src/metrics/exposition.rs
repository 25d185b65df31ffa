//! The two text formats of Prometheus metrics: content negotiation, and conversion of the newer format to
//! the older one. Does not know the metrics.

use std::fmt::Write;

use http::{HeaderMap, header};

/// Format of a scrape's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus's text format 0.0.4, supported by all scrapers. The default.
    Text,
    /// OpenMetrics 1.0.0 text.
    OpenMetrics,
}

impl Exposition {
    /// The format that the client's `Accept` prefers.
    pub fn of_request(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<(&str, f32)> = accepted.flat_map(|value| value.split(',')).map(range).collect();
        let weight_of = |media_type: &str| {
            let of_type = ranges.iter().filter(|(name, _)| name.eq_ignore_ascii_case(media_type));
            of_type.map(|&(_, weight)| weight).fold(0.0, f32::max)
        };
        let weight = weight_of("application/openmetrics-text");
        if weight > 0.0 && weight >= weight_of("text/plain") { Self::OpenMetrics } else { Self::Text }
    }

    /// The media type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A media range of `Accept` without its parameters, and its weight.
fn range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=").and_then(|weight| weight.parse().ok()));
    (name, weight.unwrap_or(1.0))
}

/// Converts OpenMetrics to the text format. The two differ in the end mark and in the names in counters'
/// descriptions, which end with `_total` in the text format only.
pub(super) fn text_of(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            break;
        }
        // The line with the type follows the one with the help.
        let typed =
            if line.starts_with("# HELP ") { lines.peek().copied().unwrap_or_default() } else { line };
        let description = typed.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter"));
        let renamed = description.and_then(|name| {
            let start = line.get(.."# HELP ".len())?;
            let rest = line[start.len()..].strip_prefix(name)?;
            write!(text, "{start}{name}_total{rest}").ok()
        });
        if renamed.is_none() {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        let format = |accept: &[&'static str]| {
            let mut headers = HeaderMap::new();
            accept.iter().for_each(|value| {
                headers.append(header::ACCEPT, HeaderValue::from_static(value));
            });
            Exposition::of_request(&headers)
        };
        // `Accept` of Prometheus 2.42, with and without native histograms, and of 3.0.
        let open = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                    text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(format(&[open]), Exposition::OpenMetrics);
        assert_eq!(format(&["application/openmetrics-text"]), Exposition::OpenMetrics);
        assert_eq!(
            format(&["text/plain;q=0.2", "Application/OpenMetrics-Text;q=0.3"]),
            Exposition::OpenMetrics
        );
        for text in [
            "text/plain",
            "text/plain;version=0.0.4;q=1,*/*;q=0.1",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "text/plain, application/openmetrics-text;q=0.5",
            "application/openmetrics-text;q=0",
            ";;,=,q=2",
        ] {
            assert_eq!(format(&[text]), Exposition::Text, "{text}");
        }
        assert_eq!(format(&[]), Exposition::Text);
    }

    #[test]
    fn counters_are_described_under_the_name_of_their_samples() {
        let open = "# HELP a Help of a.\n# TYPE a counter\na_total{b=\"# EOF\"} 1\n# HELP g G.\n# TYPE g gauge\ng 2\n# EOF\n";
        let text = "# HELP a_total Help of a.\n# TYPE a_total counter\na_total{b=\"# EOF\"} 1\n# HELP g G.\n\
                    # TYPE g gauge\ng 2\n";
        assert_eq!(text_of(open), text);
    }
}
