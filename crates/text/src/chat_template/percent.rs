//! Python's `'…' % values`, which minijinja supports only for numbers: in the source, a string literal before
//! the operator is rewritten to a call of a filter. Does not know what templates compute.

use minijinja::value::{Tuple, Value};
use minijinja::{Environment, Error, State};

use super::source::{Piece, pieces, split_name, string_len};

/// Name of the filter that replaces `%`.
const FILTER: &str = "_percent";

/// Adds the filter: a tuple contains several values, any other object is one.
pub(super) fn add_filter(env: &mut Environment<'static>) {
    env.add_filter(
        FILTER,
        |state: &mut State<'_, '_>, template: Value, values: Value| -> Result<Value, Error> {
            let mut args = vec![template];
            match values.downcast_object_ref::<Tuple>() {
                Some(_) => args.extend(values.try_iter()?),
                None => args.push(values),
            }
            state.apply_filter("format", &args)
        },
    );
}

/// Maximum nesting of operands that is rewritten; templates of models have 1.
const MAX_DEPTH: usize = 32;

/// Rewrites every literal's `% operand` to `|_percent(operand)`.
pub(super) fn rewritten(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    for piece in pieces(source) {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Expression(code) => rewrite(code, 0, &mut out),
            Piece::Tag { open, inside, close } => {
                out.push_str(open);
                rewrite(inside, 0, &mut out);
                out.push_str(close);
            }
        }
    }
    out
}

fn rewrite(code: &str, depth: usize, out: &mut String) {
    let mut rest = code;
    while depth < MAX_DEPTH
        && let Some(start) = rest.find(['\'', '"'])
    {
        let (before, from_literal) = rest.split_at(start);
        let (literal, mut after) = from_literal.split_at(string_len(from_literal));
        out.push_str(before);
        out.push_str(literal);
        while let Some(operand) =
            after.trim_start().strip_prefix('%').filter(|operand| !operand.starts_with('}'))
        {
            let (operand, behind) = operand.split_at(operand_len(operand));
            if operand.trim().is_empty() {
                break;
            }
            out.push('|');
            out.push_str(FILTER);
            out.push('(');
            rewrite(operand.trim(), depth + 1, out);
            out.push(')');
            after = behind;
        }
        rest = after;
    }
    out.push_str(rest);
}

/// The length of a value with its attributes, calls and filters, which bind tighter than the operator.
fn operand_len(text: &str) -> usize {
    let skip_spaces = |at: usize| text.len() - text[at..].trim_start().len();
    let mut at = skip_spaces(0);
    if text[at..].starts_with(['-', '+']) {
        at = skip_spaces(at + 1);
    }
    at += match text[at..].chars().next() {
        Some('\'' | '"') => string_len(&text[at..]),
        Some('(' | '[' | '{') => group_len(&text[at..]),
        _ => split_name(&text[at..]).0.len(),
    };
    loop {
        let next = skip_spaces(at);
        at = match text[next..].chars().next() {
            Some('(' | '[') => next + group_len(&text[next..]),
            Some('.' | '|') => {
                let name = skip_spaces(next + 1);
                name + split_name(&text[name..]).0.len()
            }
            _ => return at,
        };
    }
}

/// The length of a bracketed expression.
fn group_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(c) = text[at..].chars().next() {
        match c {
            '\'' | '"' => {
                at += string_len(&text[at..]);
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        at += c.len_utf8();
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_found_completely() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ '%s'|_percent(x) }}"),
            ("{{ '%s-%s' % (a, b[1:]) ~ 'c' }}", "{{ '%s-%s'|_percent((a, b[1:])) ~ 'c' }}"),
            ("{{ '%s' % x.y['z'](1)|upper + 'a' }}", "{{ '%s'|_percent(x.y['z'](1)|upper) + 'a' }}"),
            ("{{ '%s' % ('%d' % 1) }}", "{{ '%s'|_percent(('%d'|_percent(1))) }}"),
            ("{% set a = \"%d\" % -1.5 -%}", "{% set a = \"%d\"|_percent(-1.5) -%}"),
            (
                "{{ 7 % 3 }}{% if 'a' %}%{% endif %}{{ 'a' }}% x",
                "{{ 7 % 3 }}{% if 'a' %}%{% endif %}{{ 'a' }}% x",
            ),
            ("{% raw %}{{ '%s' % x }}{% endraw %}{{ '%", "{% raw %}{{ '%s' % x }}{% endraw %}{{ '%"),
        ] {
            assert_eq!(rewritten(source), expected);
        }
    }
}
