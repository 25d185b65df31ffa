//! Parses GBNF into rules. Does not know Lark.

use std::collections::HashMap;

use super::Node;
use crate::grammar::GrammarError;

/// Maximum number of rules of a grammar.
const MAX_RULES: usize = 1000;
/// Maximum nesting of groups.
const MAX_GROUPS: usize = 48;
/// Maximum count of a repetition.
const MAX_REPEAT: u32 = 2000;

/// Parses the rules. The one named `root` comes first; rules refer to others by index.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, GrammarError> {
    let mut reader = Reader { text, at: 0, names: HashMap::new(), rules: Vec::new(), n_groups: 0 };
    reader.rule_idx("root")?;
    reader.skip_space();
    while reader.at < text.len() {
        reader.rule()?;
    }
    let mut names: Vec<(&str, usize)> = reader.names.into_iter().collect();
    names.sort_by_key(|(_, idx)| *idx);
    let rules: Result<Vec<Node>, GrammarError> = reader
        .rules
        .into_iter()
        .zip(names)
        .map(|(rule, (name, _))| rule.ok_or_else(|| invalid(format!("the rule '{name}' is not defined"))))
        .collect();
    rules
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<Option<Node>>,
    n_groups: usize,
}

fn invalid(reason: String) -> GrammarError {
    GrammarError::Invalid(format!("invalid GBNF: {reason}"))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, expected: &str) -> bool {
        let is_there = self.rest().starts_with(expected);
        self.at += if is_there { expected.len() } else { 0 };
        is_there
    }

    fn wrong(&self, reason: &str) -> GrammarError {
        let line = 1 + self.text[..self.at].matches('\n').count();
        invalid(format!("{reason} at line {line}"))
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn rule_idx(&mut self, name: &'a str) -> Result<usize, GrammarError> {
        if let Some(&idx) = self.names.get(name) {
            return Ok(idx);
        }
        if self.rules.len() == MAX_RULES {
            return Err(GrammarError::TooComplex(format!("more than {MAX_RULES} rules")));
        }
        self.names.insert(name, self.rules.len());
        self.rules.push(None);
        Ok(self.rules.len() - 1)
    }

    /// Reads a name; empty if there is none.
    fn name(&self) -> &'a str {
        let rest = self.rest();
        &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())]
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let name = self.name();
        self.at += name.len();
        self.skip_space();
        if name.is_empty() || !self.take("::=") {
            return Err(self.wrong("expected a rule, name ::= …,"));
        }
        let idx = self.rule_idx(name)?;
        self.skip_space();
        let node = self.choice()?;
        if self.peek() == Some(')') {
            return Err(self.wrong("unexpected ')'"));
        }
        match self.rules[idx].replace(node) {
            Some(_) => Err(invalid(format!("the rule '{name}' is defined twice"))),
            None => Ok(()),
        }
    }

    fn choice(&mut self) -> Result<Node, GrammarError> {
        let mut options = vec![self.sequence()?];
        while self.take("|") {
            self.skip_space();
            options.push(self.sequence()?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    /// Whether the definition of the next rule starts here.
    fn is_definition(&self) -> bool {
        self.rest()[self.name().len()..].trim_start().starts_with("::=")
    }

    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut parts: Vec<Node> = Vec::new();
        while let Some(c) = self.peek() {
            let part = match c {
                '|' | ')' => break,
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    Node::Class("(?s:.)".to_owned())
                }
                '(' => self.group()?,
                '*' | '+' | '?' | '{' => {
                    let part = parts.pop().ok_or_else(|| self.wrong("nothing to repeat"))?;
                    self.repeat(part)?
                }
                c if is_name(c) && self.is_definition() => break,
                c if is_name(c) => {
                    let name = self.name();
                    self.at += name.len();
                    Node::Rule(self.rule_idx(name)?)
                }
                _ => return Err(self.wrong(&format!("unexpected '{}'", c.escape_default()))),
            };
            parts.push(part);
            self.skip_space();
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    fn group(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        self.n_groups += 1;
        if self.n_groups > MAX_GROUPS {
            return Err(GrammarError::TooComplex(format!("groups more than {MAX_GROUPS} deep")));
        }
        self.skip_space();
        let node = self.choice()?;
        if !self.take(")") {
            return Err(self.wrong("expected ')'"));
        }
        self.n_groups -= 1;
        Ok(node)
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarError> {
        let digits = self.name();
        self.at += digits.len();
        if digits.is_empty() {
            return Ok(None);
        }
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.wrong("expected a number of repetitions"));
        }
        match digits.parse() {
            Ok(number) if number <= MAX_REPEAT => Ok(Some(number)),
            _ => Err(GrammarError::TooComplex(format!("more than {MAX_REPEAT} repetitions"))),
        }
    }

    fn repeat(&mut self, part: Node) -> Result<Node, GrammarError> {
        let (min, max) = match self.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                self.skip_space();
                let min = self.number()?;
                self.skip_space();
                let max = if self.take(",") {
                    self.skip_space();
                    self.number()?
                } else {
                    Some(min.ok_or_else(|| self.wrong("expected a number of repetitions"))?)
                };
                self.skip_space();
                if !self.take("}") || max.is_some_and(|max| max < min.unwrap_or(0)) {
                    return Err(self.wrong("invalid number of repetitions"));
                }
                (min.unwrap_or(0), max)
            }
        };
        Ok(Node::Repeat(Box::new(part), min, max))
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return Err(self.wrong("unterminated text")),
                Some('"') => return Ok(Node::Literal(text)),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let n_digits = match self.next() {
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.wrong("unknown escape")),
        };
        let digits = self.rest().get(..n_digits).unwrap_or_default();
        let code = u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        self.at += digits.len();
        code.and_then(char::from_u32).ok_or_else(|| self.wrong("the escape is no character"))
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "[^" } else { "[" });
        let n_head = class.len();
        loop {
            let first = match self.next() {
                None => return Err(self.wrong("unterminated class")),
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some(c) => c,
            };
            push_class_char(&mut class, first);
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let last = match self.next() {
                    None => return Err(self.wrong("unterminated class")),
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                };
                if last < first {
                    return Err(self.wrong("a range that ends before it begins"));
                }
                class.push('-');
                push_class_char(&mut class, last);
            }
        }
        if class.len() == n_head {
            return Err(self.wrong("a class without characters"));
        }
        class.push(']');
        Ok(Node::Class(class))
    }
}

/// Appends a character to a class for the `regex` crate; all characters except letters and digits are
/// escaped.
fn push_class_char(class: &mut String, c: char) {
    if c.is_ascii_alphanumeric() {
        class.push(c);
    } else {
        class.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
    }
}
