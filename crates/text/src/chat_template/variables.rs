//! Finds the variables that a template reads from its context, by its source. A name is read from the context
//! if it is used before every path to the use has assigned it, so `{% set x = x | default(true) %}` reads
//! `x`. Does not know the variables' values.

use std::collections::HashSet;

use super::source::{Piece, assignment, parameters, pieces, split_name, string_len};

/// Keywords, which are not names of variables.
const KEYWORDS: [&str; 16] = [
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "elif",
    "true",
    "false",
    "none",
    "True",
    "False",
    "None",
    "recursive",
    "as",
];

/// The names that the template reads from its context. Names that it only assigns, or assigns before each
/// use, are not among them.
pub(super) fn read_from_outside(source: &str) -> HashSet<String> {
    let mut names = Names { read: HashSet::new(), known: vec![HashSet::new()], captures: Vec::new() };
    for piece in pieces(source) {
        match piece {
            Piece::Text(_) => {}
            Piece::Expression(code) => names.read_all(code),
            Piece::Tag { inside, .. } => names.tag(inside),
        }
    }
    names.read
}

/// The state at one position in the template.
struct Names<'a> {
    read: HashSet<String>,
    /// Assigned names, one set for each scope. Branches are scopes as well: a name assigned in one branch may
    /// be unassigned after it.
    known: Vec<HashSet<&'a str>>,
    /// Targets of the open block assignments.
    captures: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn tag(&mut self, inside: &'a str) {
        let (tag, rest) = split_name(inside);
        match tag {
            "for" => self.for_loop(rest),
            "if" => {
                self.read_all(rest);
                self.enter([]);
            }
            "elif" | "else" => {
                self.leave();
                self.read_all(rest);
                self.enter([]);
            }
            "set" => match assignment(rest) {
                Some((target, value)) => {
                    self.read_all(value);
                    self.assign_target(target);
                }
                None => {
                    let (target, filters) = split_name(rest);
                    self.read_all(filters);
                    self.captures.push(target);
                    self.enter([]);
                }
            },
            "endset" => {
                self.leave();
                if let Some(target) = self.captures.pop() {
                    self.assign(target);
                }
            }
            "with" => {
                let targets = words(rest).into_iter().filter(|word| word.is_target && word.depth == 0);
                let targets: Vec<&str> = targets.map(|word| word.text).collect();
                self.read_all(rest);
                self.enter(targets);
            }
            "macro" => {
                let (name, rest) = split_name(rest);
                self.assign(name);
                self.function(rest);
            }
            // `call(user) list_of(users)`
            "call" if rest.trim_start().starts_with('(') => self.function(rest),
            "call" => {
                self.read_all(rest);
                self.enter([]);
            }
            "filter" => {
                self.read_all(split_name(rest).1);
                self.enter([]);
            }
            "generation" | "autoescape" | "block" => self.enter([]),
            _ if tag.starts_with("end") => self.leave(),
            _ => self.read_all(rest),
        }
    }

    /// `targets in values if condition`
    fn for_loop(&mut self, code: &'a str) {
        let words = words(code);
        let is_in = |word: &Word<'_>| word.is_keyword && word.text == "in";
        let is_if = |word: &Word<'_>| word.is_keyword && word.text == "if" && word.depth == 0;
        let (targets, rest) = words.split_at(words.iter().position(is_in).unwrap_or(0));
        let at_if = rest.iter().position(is_if).unwrap_or(rest.len());
        let (values, condition) = rest.split_at(at_if);
        self.read_words(values);
        self.enter(targets.iter().map(|word| word.text).chain(["loop"]));
        self.read_words(condition);
    }

    /// Enters a body with the parameters that `code` begins with; their defaults, and all other names in
    /// `code`, are read in the outer scope.
    fn function(&mut self, code: &'a str) {
        let parameters = parameters(code);
        let parameters: HashSet<&str> = parameters.split(',').collect();
        let (own, others): (Vec<Word<'a>>, Vec<Word<'a>>) =
            words(code).into_iter().partition(|word| parameters.contains(word.text));
        self.read_words(&others);
        self.enter(own.into_iter().map(|word| word.text).chain(["caller", "varargs", "kwargs"]));
    }

    fn read_all(&mut self, code: &'a str) {
        self.read_words(&words(code));
    }

    fn read_words(&mut self, words: &[Word<'a>]) {
        for word in words.iter().filter(|word| !word.is_keyword && !word.is_target) {
            if !self.known.iter().any(|scope| scope.contains(word.text)) {
                self.read.insert(word.text.to_owned());
            }
        }
    }

    /// Handles the target `a`, `a, b` or `namespace.attribute`; the last assigns no name and reads the
    /// namespace.
    fn assign_target(&mut self, target: &'a str) {
        if target.contains('.') {
            return self.read_all(target);
        }
        words(target).into_iter().for_each(|word| self.assign(word.text));
    }

    fn assign(&mut self, name: &'a str) {
        if let Some(scope) = self.known.last_mut() {
            scope.insert(name);
        }
    }

    fn enter(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.known.push(names.into_iter().collect());
    }

    /// The outermost scope is never removed, however many end tags a broken template has.
    fn leave(&mut self) {
        if self.known.len() > 1 {
            self.known.pop();
        }
    }
}

/// A name in code, or a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    /// Number of open brackets around it.
    depth: usize,
    is_keyword: bool,
    /// Whether a single `=` follows: then it is the name of an argument, or the target of an assignment.
    is_target: bool,
}

/// The words of an expression. Strings, attributes, and the names of filters and tests are left out.
fn words(code: &str) -> Vec<Word<'_>> {
    let mut found: Vec<Word<'_>> = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    // Whether the next word names an attribute or a filter, and whether it names a test.
    let (mut is_member, mut is_test) = (false, false);
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let mut n_bytes = c.len_utf8();
        match c {
            '\'' | '"' => (n_bytes, is_member, is_test) = (string_len(rest), false, false),
            '(' | '[' | '{' => (depth, is_member, is_test) = (depth + 1, false, false),
            ')' | ']' | '}' => (depth, is_member, is_test) = (depth.saturating_sub(1), false, false),
            '.' | '|' => (is_member, is_test) = (true, false),
            _ if c.is_alphanumeric() || c == '_' => {
                let (text, after) = split_name(rest);
                n_bytes = text.len();
                let is_keyword = KEYWORDS.contains(&text) && !is_member;
                let names_test = is_test && !(is_keyword && text == "not");
                if !is_member && !names_test && !c.is_numeric() {
                    let after = after.trim_start();
                    let is_target = after.starts_with('=') && !after.starts_with("==");
                    found.push(Word { text, depth, is_keyword, is_target });
                }
                is_test = !names_test && is_keyword && (text == "is" || is_test);
                is_member = false;
            }
            _ if c.is_whitespace() => {}
            _ => (is_member, is_test) = (false, false),
        }
        at += n_bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> Vec<String> {
        let mut names: Vec<String> = read_from_outside(source).into_iter().collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_variable_that_is_set_from_itself_is_read() {
        for source in [
            "{% set x = x | default(true) %}{{ x }}",
            "{%- set x = x if x is defined else true -%}",
            "{% if x is not defined %}{% set x = true %}{% endif %}{{ x }}",
            "{% if false %}{% set x = 1 %}{% endif %}{{ x }}",
            "{% set x %}{{ x }}{% endset %}",
            "{% with x = x %}{{ x }}{% endwith %}",
            "{% for x in x %}{{ x }}{% endfor %}",
            "{% for _ in [1] %}{% set x = 1 %}{% endfor %}{{ x[1:] }}",
            "{% set _ = x[::-1] %}",
            "{% macro m(a, b=x) %}{{ a }}{{ b }}{% endmacro %}",
            "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(x=x) }}",
            "{% filter replace('a', x) %}a{% endfilter %}",
            "{% set y | replace('a', x) %}a{% endset %}",
            "{% set ns = namespace(y=x) %}",
            "{{ {'a': x}['a'] ~ 1e5 }}",
            "{% do messages.append(x) %}",
        ] {
            assert!(read(source).contains(&"x".to_owned()), "{source}: {:?}", read(source));
        }
    }

    #[test]
    fn a_variable_that_is_assigned_first_is_not_read() {
        for source in [
            "{% set x = 1 %}{{ x }}{% set x = x + 1 %}",
            "{% set x %}a{% endset %}{{ x }}",
            "{% for x in [1] if x > 0 %}{{ x }}{% endfor %}",
            "{% for y, x in [] %}{{ x }}{% else %}{% endfor %}",
            "{% macro m(x, y=1) %}{{ x }}{% endmacro %}{{ m(x=1) }}",
            "{% call(x) m() %}{{ x }}{% endcall %}",
            "{% with x = 1, y = 2 %}{{ x }}{% endwith %}",
            "{{ y.x }}{{ y|x }}{{ y is x }}{{ y is not x }}{{ 'x' }}{{ f(x=1) }}{{ 0x }}",
            "{# {{ x }} #}{% raw %}{{ x }}{% endraw %} x",
            "{% generation %}a{% endgeneration %}",
            "{% if a %}{% set x = 1 %}{{ x }}{% elif b %}{% else %}{% endif %}",
        ] {
            assert!(!read(source).contains(&"x".to_owned()), "{source}: {:?}", read(source));
        }
        assert_eq!(
            read("{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}"),
            ["messages"]
        );
        assert_eq!(read("{% set a, b = c %}{% set a.d = 1 %}{{ a if b is none else d is e }}"), ["c", "d"]);
    }
}
