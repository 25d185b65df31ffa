//! Rewrites a template's source before it is compiled: `{% generation %}` blocks become plain scopes, and
//! every assigned value is checked. White space is not changed. Does not know what templates compute.

/// The filter that checks assigned values.
pub(super) const CHECK_FILTER: &str = "_checked";

/// One piece of a template's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Text outside of tags; also comments, and raw blocks with their content.
    Text(&'a str),
    /// `{{ … }}`.
    Expression(&'a str),
    /// `{% … %}`, split: `open` is `{%` or `{%-`, `close` is `%}` or `-%}`.
    Tag { open: &'a str, inside: &'a str, close: &'a str },
}

/// Prepares a template's source for the compiler.
pub(super) fn prepare(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut captures: Vec<Option<&str>> = Vec::new();
    for piece in pieces(source) {
        let Piece::Tag { open, inside, close } = piece else {
            let (Piece::Text(text) | Piece::Expression(text)) = piece else { continue };
            out.push_str(text);
            continue;
        };
        let (name, rest) = split_name(inside);
        let mut put = |parts: &[&str]| parts.iter().for_each(|part| out.push_str(part));
        match name {
            // A separate scope, like the call block that transformers uses.
            "generation" => put(&[open, " with ", close]),
            "endgeneration" => put(&[open, " endwith ", close]),
            "set" => match assignment(rest) {
                Some((target, value)) => {
                    put(&[open, " set ", target, " = (", value, ")|", CHECK_FILTER, " ", close]);
                }
                None => {
                    let is_plain = rest.trim().chars().all(|c| c.is_alphanumeric() || c == '_');
                    captures.push(is_plain.then_some(rest.trim()));
                    put(&[open, inside, close]);
                }
            },
            "endset" => {
                put(&[open, inside]);
                match captures.pop().flatten() {
                    Some(target) => {
                        put(&["%}{% set ", target, " = (", target, ")|", CHECK_FILTER, " ", close])
                    }
                    None => put(&[close]),
                }
            }
            "macro" => {
                put(&[open, inside]);
                let parameters = parameters(rest);
                if parameters.is_empty() {
                    put(&[close]);
                } else {
                    put(&["%}{% set _ = (", &parameters, ")|", CHECK_FILTER, " ", close]);
                }
            }
            // The argument of `loop(…)` becomes the variables of the recursive loop.
            "for" if rest.trim_end().ends_with(" recursive") => {
                let variables = rest.split_once(" in ").map_or("", |(variables, _)| variables);
                put(&[open, inside, "%}{% set _ = (", variables, ")|", CHECK_FILTER, " ", close]);
            }
            _ => put(&[open, inside, close]),
        }
    }
    out
}

/// Every string literal in the template's code.
pub(super) fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for piece in pieces(source) {
        let (Piece::Expression(code) | Piece::Tag { inside: code, .. }) = piece else { continue };
        let mut rest = code;
        while let Some(start) = rest.find(['\'', '"']) {
            let end = start + string_len(&rest[start..]);
            if let Some(literal) = rest.get(start + 1..end.saturating_sub(1)).filter(|text| !text.is_empty())
            {
                found.push(literal.replace("\\n", "\n").replace("\\'", "'").replace("\\\"", "\""));
            }
            rest = &rest[end..];
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

pub(super) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(start) = opening(rest) {
        found.push(Piece::Text(&rest[..start]));
        rest = &rest[start..];
        let n_bytes = match &rest[..2] {
            "{#" => rest.find("#}").map_or(rest.len(), |end| end + 2),
            "{{" => code_len(rest, "}}"),
            _ => code_len(rest, "%}"),
        };
        let (piece, after) = rest.split_at(n_bytes);
        match &piece[..2] {
            "{#" => found.push(Piece::Text(piece)),
            "{{" => found.push(Piece::Expression(piece)),
            _ => {
                let tag = tag(piece);
                if let Piece::Tag { inside, .. } = tag
                    && split_name(inside).0 == "raw"
                {
                    let n_raw = end_of_raw(after);
                    found.push(Piece::Text(piece));
                    found.push(Piece::Text(&after[..n_raw]));
                    rest = &after[n_raw..];
                    continue;
                }
                found.push(tag);
            }
        }
        rest = after;
    }
    found.push(Piece::Text(rest));
    found
}

/// Position of the next opening delimiter. A single pass for all kinds: one search for each kind would
/// repeatedly scan to the end.
fn opening(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, [b'{', b'{' | b'%' | b'#']))
}

/// The end of the `endraw` tag, or of the text.
fn end_of_raw(text: &str) -> usize {
    let (mut from, mut end) = (0, 0);
    while let Some(start) = text[from..].find("{%").map(|start| from + start) {
        // Many opening delimiters may have one closing delimiter.
        if end < start + 4 {
            let Some(close) = text[start..].find("%}") else { return text.len() };
            end = start + close + 2;
        }
        if let Piece::Tag { inside, .. } = tag(&text[start..end])
            && split_name(inside).0 == "endraw"
        {
            return end;
        }
        from = start + 2;
    }
    text.len()
}

/// The length of an opening delimiter, the code and `close`; skips over strings and braces in the code.
fn code_len(text: &str, close: &str) -> usize {
    let mut at = 2;
    let mut n_braces = 0_usize;
    while at < text.len() {
        let rest = &text[at..];
        let Some(c) = rest.chars().next() else { break };
        if rest.starts_with(close) && (n_braces == 0 || close == "%}") {
            return at + close.len();
        }
        match c {
            '\'' | '"' => {
                at += string_len(rest);
                continue;
            }
            '{' => n_braces += 1,
            '}' => n_braces = n_braces.saturating_sub(1),
            _ => {}
        }
        at += c.len_utf8();
    }
    text.len()
}

/// The length of the string literal that `text` starts with, including quotes.
pub(super) fn string_len(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn tag(text: &str) -> Piece<'_> {
    let Some(code) = text.strip_prefix("{%").and_then(|code| code.strip_suffix("%}")) else {
        return Piece::Text(text);
    };
    let n_open = 2 + usize::from(code.starts_with(['-', '+']));
    let n_close = 2 + usize::from(code.len() > 1 && code.ends_with(['-', '+']));
    let (open, rest) = text.split_at(n_open);
    let (inside, close) = rest.split_at(rest.len() - n_close);
    Piece::Tag { open, inside, close }
}

pub(super) fn split_name(inside: &str) -> (&str, &str) {
    let inside = inside.trim_start();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    inside.split_at(end)
}

/// `target = value`; `None` for a block assignment.
pub(super) fn assignment(rest: &str) -> Option<(&str, &str)> {
    let at = rest.find('=')?;
    let (target, value) = (&rest[..at], &rest[at + 1..]);
    let is_target = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.,()".contains(c);
    let is_assignment = target.chars().all(is_target) && !value.starts_with('=') && !value.trim().is_empty();
    is_assignment.then(|| (target.trim(), value.trim()))
}

/// The parameter names of a macro, as the elements of a tuple.
pub(super) fn parameters(rest: &str) -> String {
    let Some(open) = rest.find('(') else { return String::new() };
    let (mut names, mut depth, mut expects_name) = (String::new(), 0_usize, true);
    let mut at = open + 1;
    while let Some(c) = rest[at..].chars().next() {
        match c {
            '\'' | '"' => {
                at += string_len(&rest[at..]);
                continue;
            }
            ')' if depth == 0 => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => expects_name = true,
            _ if expects_name && (c.is_alphanumeric() || c == '_') => {
                let (name, _) = split_name(&rest[at..]);
                names.push_str(name);
                names.push(',');
                expects_name = false;
                at += name.len();
                continue;
            }
            _ => {}
        }
        at += c.len_utf8();
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_keep_their_white_space_marks() {
        assert_eq!(prepare("a {%- generation %}b{% endgeneration -%} c"), "a {%- with %}b{% endwith -%} c");
        assert_eq!(prepare("{% raw %}{% generation %}{% endraw %}"), "{% raw %}{% generation %}{% endraw %}");
        assert_eq!(
            prepare("{{ '{% generation %}' }}{# {% set x = 1 %} #}"),
            "{{ '{% generation %}' }}{# {% set x = 1 %} #}"
        );
    }

    #[test]
    fn assignments_are_checked() {
        assert_eq!(prepare("{%- set ns.x = a == 'b=' -%}"), "{%- set ns.x = (a == 'b=')|_checked -%}");
        assert_eq!(
            prepare("{% set x %}y{% endset -%}"),
            "{% set x %}y{% endset %}{% set x = (x)|_checked -%}"
        );
        assert_eq!(
            prepare("{%- macro m(a, b=[1, 'x)'], c=2) -%}"),
            "{%- macro m(a, b=[1, 'x)'], c=2) %}{% set _ = (a,b,c,)|_checked -%}"
        );
    }

    #[test]
    fn literals_are_found_in_code_only() {
        assert_eq!(literals("'no' {{ 'yes' + \"a'b\" }}{% if x == 'yes' %}{# 'no' #}"), ["a'b", "yes"]);
    }
}
