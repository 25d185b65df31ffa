//! Validates the head of an HTTP/1 request while its bytes arrive: strict syntax of RFC 9112, size, and the
//! framing of the body. Stricter than hyper's parser, so that hyper never refuses a head itself. Does not
//! know routes, and of the fields interprets only those about framing.

use http::{HeaderMap, Method, Uri, header};

use crate::refusal::Violation::{self, Malformed};

/// Maximum length of a request's target, in bytes.
pub const MAX_URI_BYTES: usize = 8 << 10;
/// Maximum number of a request's header fields.
pub const MAX_HEADER_FIELDS: usize = 100;
/// Maximum length of the name and value of one header field, in bytes.
pub const MAX_HEADER_FIELD_BYTES: usize = 16 << 10;
/// Maximum length of the names and values of all header fields, in bytes.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

const MAX_METHOD_BYTES: usize = 32;
/// Bytes reserved for the rest of a request line beside its target: method, spaces, version.
const REQUEST_LINE_ROOM: usize = MAX_METHOD_BYTES + 16;
/// Bytes reserved for the rest of an incomplete field line beside its name and value: the colon and white
/// space.
const FIELD_LINE_ROOM: usize = 256;
/// Maximum bytes of a raw head: those counted by [`MAX_HEADER_BYTES`] and the separators.
const MAX_HEAD_BYTES: usize =
    MAX_URI_BYTES + REQUEST_LINE_ROOM + MAX_HEADER_BYTES + 4 * MAX_HEADER_FIELDS + 4;

/// Framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// A body of this number of bytes; 0 for no body.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

/// A complete head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadEnd {
    /// Number of its bytes, including the empty line.
    pub n_bytes: usize,
    /// Framing of the body.
    pub body: BodyFraming,
    /// Whether the request asks for an upgrade to WebSocket.
    pub asks_for_websocket: bool,
}

/// State of a head's validation. The caller keeps the bytes.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    n_scanned: usize,
    line_start: usize,
    is_http_11: Option<bool>,
    n_fields: usize,
    n_field_bytes: usize,
    content_length: Option<u64>,
    is_chunked: bool,
    asks_for_websocket: bool,
}

impl HeadScan {
    /// Validates the bytes of `head` that are new since the last call; `head` starts with the request line.
    /// `None`: the head is incomplete.
    pub fn advance(&mut self, head: &[u8]) -> Result<Option<HeadEnd>, Violation> {
        while let Some(n) = head[self.n_scanned..].iter().position(|&byte| byte == b'\n') {
            let end = self.n_scanned + n;
            let line = &head[self.line_start..end];
            let line = line.strip_suffix(b"\r").ok_or(Malformed("a line ends with LF instead of CR LF"))?;
            (self.n_scanned, self.line_start) = (end + 1, end + 1);
            check_text(line)?;
            if self.is_http_11.is_none() {
                self.take_request_line(line)?;
            } else if line.is_empty() {
                let (body, asks_for_websocket) = (self.body()?, self.asks_for_websocket);
                return Ok(Some(HeadEnd { n_bytes: end + 1, body, asks_for_websocket }));
            } else {
                self.take_field(line)?;
            }
        }
        // A CR at the end is not scanned until its LF has arrived.
        let rest = &head[self.line_start..];
        let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
        check_text(&rest[(self.n_scanned - self.line_start).min(rest.len())..])?;
        self.n_scanned = self.line_start + rest.len();
        self.check_unfinished(rest, head.len()).map(|()| None)
    }

    /// Whether no byte of the head has arrived.
    pub fn is_untouched(&self) -> bool {
        self.n_scanned == 0
    }

    /// Refuses an incomplete line that cannot become valid.
    fn check_unfinished(&self, line: &[u8], n_head_bytes: usize) -> Result<(), Violation> {
        if self.is_http_11.is_none() {
            let n_method = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
            check_method(&line[..n_method.min(MAX_METHOD_BYTES + 1)])?;
            let is_long = line.len() > MAX_URI_BYTES + REQUEST_LINE_ROOM;
            return if is_long { Err(Violation::TargetTooLong) } else { Ok(()) };
        }
        if line.len() > MAX_HEADER_FIELD_BYTES + FIELD_LINE_ROOM {
            let n_name = line.iter().position(|&byte| byte == b':').unwrap_or(0);
            return Err(too_large(&line[..n_name]));
        }
        if n_head_bytes > MAX_HEAD_BYTES { Err(Violation::FieldsTooLarge) } else { Ok(()) }
    }

    fn take_request_line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let mut parts = line.split(|&byte| byte == b' ');
        let method = parts.next().filter(|method| !method.is_empty()).ok_or(NOT_A_REQUEST_LINE)?;
        check_method(method)?;
        let target = parts.next().filter(|target| !target.is_empty()).ok_or(NOT_A_REQUEST_LINE)?;
        let version = parts.next().ok_or(Malformed("the request line names no HTTP version"))?;
        if parts.next().is_some() {
            return Err(NOT_A_REQUEST_LINE);
        }
        self.is_http_11 = Some(match version {
            b"HTTP/1.1" => true,
            b"HTTP/1.0" => false,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                return Err(Violation::Version);
            }
            _ => return Err(NOT_A_REQUEST_LINE),
        });
        if target.len() > MAX_URI_BYTES {
            return Err(Violation::TargetTooLong);
        }
        Uri::try_from(target).map(drop).map_err(|_| Violation::Target)
    }

    fn take_field(&mut self, line: &[u8]) -> Result<(), Violation> {
        if matches!(line[0], b' ' | b'\t') {
            return Err(Malformed("a header field is folded over several lines"));
        }
        let colon =
            line.iter().position(|&byte| byte == b':').ok_or(Malformed("a header line has no colon"))?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) {
            return Err(Malformed("a header field's name is not a token"));
        }
        self.n_fields += 1;
        let n_bytes = name.len() + value.len();
        self.n_field_bytes += n_bytes;
        if n_bytes > MAX_HEADER_FIELD_BYTES {
            return Err(too_large(name));
        }
        if self.n_fields > MAX_HEADER_FIELDS || self.n_field_bytes > MAX_HEADER_BYTES {
            return Err(Violation::FieldsTooLarge);
        }
        if name.eq_ignore_ascii_case(header::CONTENT_LENGTH.as_str().as_bytes()) {
            let length = parse_length(value).ok_or(Malformed("Content-Length is not a number"))?;
            if self.content_length.replace(length).is_some() {
                return Err(TWO_LENGTHS);
            }
        } else if name.eq_ignore_ascii_case(header::TRANSFER_ENCODING.as_str().as_bytes()) {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed("the only transfer coding is one 'chunked'"));
            }
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(header::UPGRADE.as_str().as_bytes()) {
            let mut protocols = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
            self.asks_for_websocket |= protocols.any(|name| name.eq_ignore_ascii_case(b"websocket"));
        }
        Ok(())
    }

    fn body(&self) -> Result<BodyFraming, Violation> {
        match (self.is_chunked, self.content_length) {
            (true, Some(_)) => Err(Malformed("it has both Content-Length and Transfer-Encoding")),
            (true, None) if self.is_http_11 == Some(false) => {
                Err(Malformed("HTTP/1.0 has no Transfer-Encoding"))
            }
            (true, None) => Ok(BodyFraming::Chunked),
            (false, length) => Ok(BodyFraming::Length(length.unwrap_or(0))),
        }
    }
}

const NOT_A_REQUEST_LINE: Violation = Malformed("it does not begin with a request line");
const TWO_LENGTHS: Violation = Malformed("it has more than one Content-Length");

/// Checks the framing fields of an HTTP/2 request, whose frames determine the length of its body.
///
/// # Errors
/// [`Violation::Malformed`].
pub fn check_http2_fields(headers: &HeaderMap) -> Result<(), Violation> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(Malformed("HTTP/2 has no Transfer-Encoding"));
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next().map(|value| parse_length(value.as_bytes()));
    match (length, lengths.next()) {
        (Some(None), _) => Err(Malformed("Content-Length is not a number")),
        (_, Some(_)) => Err(TWO_LENGTHS),
        _ => Ok(()),
    }
}

fn too_large(name: &[u8]) -> Violation {
    let is_credential =
        name.eq_ignore_ascii_case(b"authorization") || name.eq_ignore_ascii_case(b"x-api-key");
    if is_credential { Violation::CredentialsTooLarge } else { Violation::FieldsTooLarge }
}

fn check_method(method: &[u8]) -> Result<(), Violation> {
    let is_method = method.len() <= MAX_METHOD_BYTES && method.iter().all(|&byte| is_token(byte));
    if is_method && (method.is_empty() || Method::from_bytes(method).is_ok()) {
        return Ok(());
    }
    Err(NOT_A_REQUEST_LINE)
}

/// Parses one or more digits, up to a number that hyper can represent.
fn parse_length(value: &[u8]) -> Option<u64> {
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok().filter(|&length| length <= i64::MAX as u64)
}

fn check_text(line: &[u8]) -> Result<(), Violation> {
    if line.iter().all(|&byte| is_text(byte)) {
        return Ok(());
    }
    Err(Malformed("its head has a control character"))
}

/// Whether a byte is valid in a field's value.
pub(super) fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x20..=0x7e | 0x80..=0xff)
}

/// Whether a byte is valid in a method or a field's name.
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
