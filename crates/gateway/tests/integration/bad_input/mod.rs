//! The table of invalid input, and of unusual input that is valid: bodies with the answer that each must get.
//! The number of a case is its row in the API's table. Used by the tests of the parsers and by those over a
//! socket; does not know either.

// Not every test file that includes the table uses all of it.

mod chat;
mod completion;

/// The name under which a model must be served for the table.
pub const MODEL: &str = "paper";
/// Token ids of that model are below this.
pub const VOCABULARY_SIZE: u32 = 1000;
/// The context of that model.
pub const MAX_MODEL_LEN: u32 = 512;

/// The endpoint of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
    /// `/tokenize`
    Tokenize,
    /// `/detokenize`
    Detokenize,
}

impl Endpoint {
    /// The path of the URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
        }
    }
}

/// The answer a body must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// 200.
    Accepted,
    /// 400 with type `invalid_request_error`, this `param` and this `code`.
    Refused(Option<String>, &'static str),
}

/// One case of the table.
#[derive(Debug, Clone)]
pub struct Case {
    /// The row of the API's table; 0 if no row covers it.
    pub row: u32,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The body.
    pub body: Vec<u8>,
    /// The answer.
    pub expected: Expected,
    /// Whether the answer is the same with `"stream":true` as first field.
    pub same_when_streamed: bool,
}

impl Case {
    /// The body as shown in messages of failed assertions.
    pub fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let short: String = text.chars().take(160).collect();
        format!("row {} {:?} {short}", self.row, self.endpoint)
    }

    /// The same case streamed, if that is also a case.
    pub fn streamed(&self) -> Option<Self> {
        let may_stream = self.same_when_streamed
            && matches!(self.endpoint, Endpoint::Chat | Endpoint::Completion)
            && self.body.starts_with(b"{\"");
        let body = [b"{\"stream\":true,".as_slice(), self.body.get(1..)?].concat();
        may_stream.then(|| Self { body, ..self.clone() })
    }
}

/// A body with every object of a chat that has keys of its own, and each of them: its path and its beginning.
pub fn nested_objects() -> (String, Vec<(&'static str, &'static str)>) {
    chat::nested()
}

/// A body with another member at the beginning of the object that begins so.
pub fn with_member(body: &str, place: &str, member: &str) -> String {
    chat::with_member(body, place, member)
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut table = Table::default();
    chat::add(&mut table);
    completion::add(&mut table);
    table.0
}

/// Builder of the table.
#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    fn case(&mut self, row: u32, endpoint: Endpoint, body: impl Into<Vec<u8>>, expected: Expected) {
        let body = body.into();
        let same_when_streamed = !contains(&body, b"\"stream")
            && !contains(&body, b"\"best_of")
            && !contains(&body, b"\"use_beam_search\":true")
            && !contains(&body, b"\"prompt_logprobs");
        self.0.push(Case { row, endpoint, body, expected, same_when_streamed });
    }

    fn refused(
        &mut self,
        row: u32,
        endpoint: Endpoint,
        body: impl Into<Vec<u8>>,
        param: &str,
        code: &'static str,
    ) {
        let param = (!param.is_empty()).then(|| param.to_owned());
        self.case(row, endpoint, body, Expected::Refused(param, code));
    }
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).take(4096).any(|window| window == part)
}
