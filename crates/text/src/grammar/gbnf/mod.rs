//! Converts llama.cpp's GBNF to Lark. Does not compile Lark.
//!
//! llguidance splits an output into lexemes, each as long as possible, before it applies the rules; GBNF
//! has no lexemes. Therefore every non-recursive part becomes one terminal, which is matched exactly; a
//! grammar without recursion is a single terminal. In recursive rules, adjacent non-recursive parts become
//! one terminal each. There the longest match may exclude some texts of the grammar (`[a-z]+` followed by a
//! recursive rule that starts with a letter), but never admits a text outside of it.

mod emit;
mod parse;

use super::GrammarError;

/// The Lark text of a GBNF grammar.
///
/// # Errors
/// [`GrammarError::Invalid`] with the line of a syntax error or the name of an undefined rule;
/// [`GrammarError::TooComplex`] beyond the limits on rules, nesting and repetition.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::parse(text)?;
    Ok(emit::emit(&rules))
}

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// A fixed text.
    Literal(String),
    /// One character: a class as the `regex` crate writes it, `[a-z]`.
    Class(String),
    /// A reference to the rule of this index.
    Rule(usize),
    /// A sequence of parts.
    Sequence(Vec<Node>),
    /// A choice of parts.
    Choice(Vec<Node>),
    /// A repetition with its minimum and maximum count.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    /// Calls `each` with the index of every referenced rule.
    fn for_each_rule(&self, each: &mut dyn FnMut(usize)) {
        match self {
            Self::Literal(_) | Self::Class(_) => {}
            Self::Rule(idx) => each(*idx),
            Self::Sequence(parts) | Self::Choice(parts) => {
                parts.iter().for_each(|part| part.for_each_rule(each));
            }
            Self::Repeat(part, _, _) => part.for_each_rule(each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_recursion_is_one_terminal() {
        let lark = to_lark("root ::= a \"x\" | [0-9]{2,3} # digits\na ::= \"q\\n\" .*").expect("valid");
        let expected = "start: T0\nT0: T1 \"x\" | /[0-9]/{2,3}\nT1: \"q\\n\" /(?s:.)/*\n";
        assert_eq!(lark, expected);
    }

    #[test]
    fn parts_without_recursion_become_terminals_of_their_own() {
        let lark = to_lark("root ::= \"(\" ws root ws \")\" | [a-z]+ | \"-\"\nws ::= \" \"?").expect("valid");
        let expected =
            "start: r0\nr0: X0 r0 X1 | X2\nT1: \" \"?\nX0: \"(\" T1\nX1: T1 \")\"\nX2: /[a-z]/+ | \"-\"\n";
        assert_eq!(lark, expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "'root'"),
            ("a ::= \"x\"", "'root'"),
            ("root ::= b", "'b'"),
            ("root ::= \"x", "line 1"),
            ("root ::= \"x\"\nroot ::= \"y\"", "'root'"),
            ("root ::= [a-", "line 1"),
            ("root ::= [z-a]", "line 1"),
            ("root ::= []", "line 1"),
            ("root ::= (\"a\"", "line 1"),
            ("root ::= \"a\")", "line 1"),
            ("root ::= *", "line 1"),
            ("root ::= \"a\"{3,2}", "line 1"),
            ("root ::= \"a\"{x}", "line 1"),
            ("root ::= \"\\q\"", "line 1"),
            ("root ::= \"\\ud800\"", "line 1"),
            ("root = \"a\"", "line 1"),
        ] {
            match to_lark(text) {
                Err(GrammarError::Invalid(reason)) => assert!(reason.contains(part), "{text}: {reason}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
        let many: String = (0..2000).map(|idx| format!("r{idx} ::= \"a\"\n")).collect();
        for text in [deep.as_str(), many.as_str(), "root ::= \"a\"{1,1000000}"] {
            assert!(matches!(to_lark(text), Err(GrammarError::TooComplex(_))), "{text:.40}");
        }
    }
}
