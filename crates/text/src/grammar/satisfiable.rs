//! Checks that every part of a compiled grammar can end. With a part that cannot (a rule that always refers
//! to itself, an expression that matches nothing), a generation could start that never satisfies the
//! grammar. Does not know the source of a grammar.

use llguidance::TokenParser;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{CGrammar, CSymIdx};

use super::GrammarError;

/// Checks all rules that the start rule reaches.
///
/// # Errors
/// [`GrammarError::Unsatisfiable`] that names a rule.
pub(super) fn check(parser: &mut TokenParser) -> Result<(), GrammarError> {
    let symbols = reachable(parser.parser.grammar());
    let n_symbols = symbols.iter().map(|symbol| symbol.as_index() + 1).max().unwrap_or(0);
    let mut ends = vec![false; n_symbols];
    for symbol in &symbols {
        let data = parser.parser.grammar().sym_data(*symbol);
        let (is_nullable, lexeme) = (data.is_nullable || !data.cond_nullable.is_empty(), data.lexeme);
        ends[symbol.as_index()] = is_nullable || lexeme.is_some_and(|idx| matches_anything(parser, idx));
    }
    let grammar = parser.parser.grammar();
    loop {
        let mut changes = false;
        for symbol in &symbols {
            let some_rule_ends = || {
                let mut rules = grammar.rules_of(*symbol).iter();
                rules.any(|rule| grammar.rule_rhs(*rule).0.iter().all(|part| ends[part.as_index()]))
            };
            if !ends[symbol.as_index()] && some_rule_ends() {
                ends[symbol.as_index()] = true;
                changes = true;
            }
        }
        if !changes {
            break;
        }
    }
    match symbols.iter().find(|symbol| !ends[symbol.as_index()]) {
        None => Ok(()),
        Some(symbol) => {
            let name: String = grammar.sym_name(*symbol).chars().take(64).collect();
            Err(GrammarError::Unsatisfiable(format!("nothing satisfies the part '{name}'")))
        }
    }
}

fn matches_anything(parser: &mut TokenParser, idx: LexemeIdx) -> bool {
    let mut alone = parser.parser.grammar().lexer_spec().alloc_lexeme_set();
    alone.add(idx);
    parser.parser.with_recognizer(|recognizer| !recognizer.lexer_mut().start_state(&alone).is_dead())
}

fn reachable(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut found = vec![grammar.start()];
    let mut is_found = std::collections::HashSet::from([grammar.start().as_index()]);
    let mut n_done = 0;
    while n_done < found.len() {
        for rule in grammar.rules_of(found[n_done]) {
            for &part in grammar.rule_rhs(*rule).0 {
                if is_found.insert(part.as_index()) {
                    found.push(part);
                }
            }
        }
        n_done += 1;
    }
    found
}
