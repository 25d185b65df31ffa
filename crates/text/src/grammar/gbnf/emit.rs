//! Writes GBNF rules as Lark. Does not parse GBNF.

use std::fmt::Write;

use super::Node;
use crate::grammar::lark::quoted;

/// Lark text of these rules; the first is the root.
pub(super) fn emit(rules: &[Node]) -> String {
    let mut writer = Writer { is_plain: plain_rules(rules), terminals: String::new(), n_terminals: 0 };
    let mut text = format!("start: {}\n", writer.rule_name(0));
    for (idx, rule) in rules.iter().enumerate() {
        let body = if writer.is_plain[idx] { writer.terminal(rule, false) } else { writer.body(rule, false) };
        let _ = writeln!(text, "{}: {body}", writer.rule_name(idx));
    }
    text + &writer.terminals
}

/// Finds the rules that refer, directly or indirectly, to no recursive rule.
fn plain_rules(rules: &[Node]) -> Vec<bool> {
    let mut is_plain = vec![false; rules.len()];
    loop {
        let mut changes = false;
        for (idx, rule) in rules.iter().enumerate() {
            if !is_plain[idx] && refers_only_to(rule, &is_plain) {
                is_plain[idx] = true;
                changes = true;
            }
        }
        if !changes {
            return is_plain;
        }
    }
}

fn refers_only_to(node: &Node, allowed: &[bool]) -> bool {
    let mut only = true;
    node.for_each_rule(&mut |idx| only &= allowed[idx]);
    only
}

struct Writer {
    /// Whether each rule is a terminal.
    is_plain: Vec<bool>,
    /// Lines that define terminals for parts of recursive rules.
    terminals: String,
    n_terminals: usize,
}

impl Writer {
    fn rule_name(&self, idx: usize) -> String {
        format!("{}{idx}", if self.is_plain[idx] { "T" } else { "r" })
    }

    /// The body of a terminal for a non-recursive part, in parentheses if `nested` and necessary.
    fn terminal(&self, node: &Node, nested: bool) -> String {
        let text = match node {
            Node::Literal(text) => return quoted(text),
            Node::Class(class) => return format!("/{class}/"),
            Node::Rule(idx) => return self.rule_name(*idx),
            Node::Sequence(parts) if parts.is_empty() => return "\"\"".to_owned(),
            Node::Sequence(parts) => join(parts, " ", |part| self.terminal(part, true)),
            Node::Choice(parts) => join(parts, " | ", |part| self.terminal(part, false)),
            Node::Repeat(part, min, max) => {
                return repeated(&self.terminal(part, true), matches!(**part, Node::Repeat(..)), *min, *max);
            }
        };
        if nested { format!("({text})") } else { text }
    }

    /// A name for a non-recursive part of a rule.
    fn named(&mut self, node: &Node) -> String {
        if let Node::Rule(idx) = node {
            return self.rule_name(*idx);
        }
        let name = format!("X{}", self.n_terminals);
        self.n_terminals += 1;
        let body = self.terminal(node, false);
        let _ = writeln!(self.terminals, "{name}: {body}");
        name
    }

    /// The body of a rule for any part.
    fn body(&mut self, node: &Node, nested: bool) -> String {
        if refers_only_to(node, &self.is_plain) {
            return self.named(node);
        }
        let text = match node {
            Node::Sequence(parts) => self.sequence(parts),
            Node::Choice(parts) => self.choice(parts),
            Node::Repeat(part, min, max) => {
                return repeated(&self.body(part, true), matches!(**part, Node::Repeat(..)), *min, *max);
            }
            Node::Rule(idx) => return self.rule_name(*idx),
            Node::Literal(_) | Node::Class(_) => return self.named(node),
        };
        if nested { format!("({text})") } else { text }
    }

    /// Merges adjacent non-recursive parts into one terminal.
    fn sequence(&mut self, parts: &[Node]) -> String {
        let mut words = Vec::new();
        let mut plain: Vec<Node> = Vec::new();
        for part in parts {
            if refers_only_to(part, &self.is_plain) {
                plain.push(part.clone());
                continue;
            }
            words.extend(self.flush(&mut plain));
            words.push(self.body(part, true));
        }
        words.extend(self.flush(&mut plain));
        words.join(" ")
    }

    fn flush(&mut self, plain: &mut Vec<Node>) -> Option<String> {
        let parts = std::mem::take(plain);
        match parts.as_slice() {
            [] => None,
            [one] => Some(self.named(one)),
            _ => Some(self.named(&Node::Sequence(parts))),
        }
    }

    /// Merges non-recursive options into one terminal.
    fn choice(&mut self, parts: &[Node]) -> String {
        let (plain, other): (Vec<&Node>, Vec<&Node>) =
            parts.iter().partition(|part| refers_only_to(part, &self.is_plain));
        let mut words: Vec<String> = other.into_iter().map(|part| self.body(part, false)).collect();
        let plain: Vec<Node> = plain.into_iter().cloned().collect();
        match plain.as_slice() {
            [] => {}
            [one] => words.push(self.named(one)),
            _ => words.push(self.named(&Node::Choice(plain))),
        }
        words.join(" | ")
    }
}

fn join(parts: &[Node], separator: &str, each: impl FnMut(&Node) -> String) -> String {
    parts.iter().map(each).collect::<Vec<_>>().join(separator)
}

fn repeated(part: &str, is_repeated: bool, min: u32, max: Option<u32>) -> String {
    let part = if is_repeated { format!("({part})") } else { part.to_owned() };
    match (min, max) {
        (0, None) => format!("{part}*"),
        (1, None) => format!("{part}+"),
        (0, Some(1)) => format!("{part}?"),
        (min, None) => format!("{part}{{{min},}}"),
        (min, Some(max)) => format!("{part}{{{min},{max}}}"),
    }
}
