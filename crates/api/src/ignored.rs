//! Parameters without effect, for the response header and the log. Does not read requests.

/// Parameters of a request that have no effect, known or unknown, for the response header
/// `x-throng-ignored`. Bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IgnoredParameters {
    names: Vec<String>,
    n_more: usize,
}

impl IgnoredParameters {
    const MAX_NAMES: usize = 16;
    const MAX_NAME_BYTES: usize = 64;

    /// Adds a name if it is new.
    pub fn add(&mut self, name: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '[' | ']');
        let name: String =
            name.chars().take(Self::MAX_NAME_BYTES).map(|c| if is_plain(c) { c } else { '?' }).collect();
        if self.names.contains(&name) {
            return;
        }
        if self.names.len() < Self::MAX_NAMES { self.names.push(name) } else { self.n_more += 1 }
    }

    /// Adds the names of `other`.
    pub fn extend(&mut self, other: &Self) {
        other.names.iter().for_each(|name| self.add(name));
        self.n_more += other.n_more;
    }

    /// The names: ASCII letters, digits and `_-.[]`, other characters as `?`; at most 16 of at most 64
    /// bytes.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The value of the header: ASCII, at most about 1,100 bytes; `None` if no parameter was ignored.
    pub fn header_value(&self) -> Option<String> {
        if self.names.is_empty() {
            return None;
        }
        let list = self.names.join(", ");
        Some(if self.n_more == 0 { list } else { format!("{list}, +{} more", self.n_more) })
    }
}
