//! Patterns for formats of strings. Does not know schemas.

/// Formats that llguidance enforces as they are defined.
pub(super) const FORMATS: &[&str] = &["duration", "ipv4", "ipv6", "uri", "uuid"];

/// Formats of JSON Schema that cannot be enforced here. Validators ignore all other unknown formats.
pub(super) const UNSUPPORTED_FORMATS: &[&str] = &["regex", "uri-template"];

/// Existing dates of RFC 3339; times without leap seconds, since most of them would not exist.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Up to 4 labels of at most 63 characters, without hyphens at the ends or next to each other.
const HOST: &str = r"[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31}(?:\.[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,31}){0,3}";
/// Words joined by dots, at most 62 characters.
const MAILBOX: &str = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}(?:\.[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,20}){0,2}";

/// JSON pointers of RFC 6901.
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";

/// The pattern of a format that llguidance lacks, or whose own pattern in llguidance would match other
/// texts.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    Some(match format {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}[tT]{TIME}$"),
        "hostname" | "idn-hostname" => format!("^{HOST}$"),
        "email" | "idn-email" => format!("^{MAILBOX}@{HOST}$"),
        "json-pointer" => format!("^{POINTER}$"),
        "relative-json-pointer" => format!("^(?:0|[1-9][0-9]{{0,3}})(?:#|{POINTER})$"),
        _ => return None,
    })
}

/// A format of llguidance whose texts also are valid texts of `format`.
pub(super) fn narrower(format: &str) -> Option<&'static str> {
    matches!(format, "iri" | "iri-reference" | "uri-reference").then_some("uri")
}

/// The pattern of one of [`FORMATS`] or of a subset of its texts; `None` if the format can only be enforced
/// in JSON.
pub(in crate::grammar) fn text_format(format: &str) -> Option<&'static str> {
    Some(match format {
        "duration" => "P(?:[0-9]{1,4}W|[0-9]{1,4}D(?:T[0-9]{1,4}H)?|T[0-9]{1,4}[HMS])",
        "ipv4" => {
            r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
        }
        "uri" => {
            r"[a-z][a-z0-9+.-]{0,15}://[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}(?::[0-9]{1,4})?(?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]{0,200}){0,20}(?:\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]{0,200})?"
        }
        "uuid" => "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        _ => return None,
    })
}
