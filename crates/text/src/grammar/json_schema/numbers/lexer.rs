//! Replaces primes by the expressions of their conditions on numbers, in grammars compiled by llguidance.
//! Does not know schemas.

use std::collections::{HashMap, HashSet};

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::{LexemeSpec, LexerSpec};

use super::Numbers;
use super::automaton::Kind;
use crate::grammar::GrammarError;

/// Text before the divisor in derivre's notation of a divisibility test.
const DIVISOR: &str = "( % ";

/// llguidance's expression for an integer without limits.
const INTEGER: &str = "-?(0|[1-9][0-9]*)";
/// llguidance's expression for a number without limits.
const NUMBER: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";

impl Numbers {
    /// Replaces the primes by their conditions.
    ///
    /// # Errors
    /// [`GrammarError::Internal`] if llguidance compiled a prime in an unexpected way.
    pub(in crate::grammar) fn put_into(&self, spec: &mut LexerSpec) -> Result<(), GrammarError> {
        let failed = |_| GrammarError::Internal("an expression of numbers".to_owned());
        let integer = spec.regex_builder.mk_regex(INTEGER).map_err(failed)?;
        let number = spec.regex_builder.mk_regex(NUMBER).map_err(failed)?;
        let (done, clean) = (HashMap::new(), HashSet::new());
        let mut replaced = Replacer { numbers: self, integer, number, done, clean };
        let class = spec.current_class;
        for (idx, old) in std::mem::take(&mut spec.lexemes).into_iter().enumerate() {
            let new = match expression_of(&old) {
                Some(expression) => replaced.replace(&mut spec.regex_builder, expression)?,
                None => None,
            };
            let Some(new) = new else {
                spec.lexemes.push(old);
                continue;
            };
            spec.current_class = old.class();
            if add(spec, new)? != idx {
                // The lexeme equals an earlier one, but must have an index of its own, because the grammar
                // refers to both.
                let earlier = std::mem::replace(&mut spec.lexemes, vec![old; idx]);
                add(spec, new)?;
                let own = spec.lexemes.split_off(idx);
                spec.lexemes = earlier;
                spec.lexemes.extend(own);
            }
        }
        spec.current_class = class;
        Ok(())
    }
}

/// Adds a lexeme in the same way as llguidance does for JSON schemas. Returns its index.
fn add(spec: &mut LexerSpec, expression: ExprRef) -> Result<usize, GrammarError> {
    let name = String::new();
    let idx = spec.add_greedy_lexeme(name, RegexAst::ExprRef(expression), false, None, usize::MAX);
    idx.map(|idx| idx.as_usize()).map_err(|error| GrammarError::Internal(error.to_string()))
}

/// The expression of a lexeme of a JSON schema. Only the lexeme's description contains it.
fn expression_of(lexeme: &LexemeSpec) -> Option<ExprRef> {
    let description = lexeme.to_string(256, None);
    let (_, expression) = description.rsplit_once(" (ExprRef ")?;
    expression.strip_suffix(')')?.parse().ok().map(ExprRef::new)
}

struct Replacer<'n> {
    numbers: &'n Numbers,
    /// The expressions of [`INTEGER`] and [`NUMBER`].
    integer: ExprRef,
    number: ExprRef,
    /// Expressions that have been replaced.
    done: HashMap<ExprRef, ExprRef>,
    /// Expressions without divisibility tests.
    clean: HashSet<ExprRef>,
}

impl Replacer<'_> {
    /// The replacement of an expression; `None` if it stays unchanged.
    fn replace(
        &mut self,
        builder: &mut RegexBuilder,
        expression: ExprRef,
    ) -> Result<Option<ExprRef>, GrammarError> {
        if self.is_clean(builder, expression) {
            return Ok(None);
        }
        if let Some(known) = self.done.get(&expression) {
            return Ok(Some(*known));
        }
        let args = builder.exprset().get_args(expression).to_vec();
        let mut new = Vec::new();
        let tag = format!("{:?}", builder.exprset().get_tag(expression));
        let kind = if args.contains(&self.integer) { Kind::Integers } else { Kind::Any };
        for arg in args {
            new.push(match tag.as_str() {
                "Or" => RegexAst::ExprRef(self.replace(builder, arg)?.unwrap_or(arg)),
                // The replacement of the prime is at least as strict.
                "And" if arg == self.integer || arg == self.number => continue,
                "And" => self.operand(builder, arg, kind)?,
                _ => return Err(unexpected(builder, expression)),
            });
        }
        let new = if tag == "Or" { RegexAst::Or(new) } else { RegexAst::And(new) };
        let new = builder.mk(&new).map_err(|error| GrammarError::Internal(error.to_string()))?;
        self.done.insert(expression, new);
        Ok(Some(new))
    }

    /// Converts one of the expressions that a number must match.
    fn operand(
        &mut self,
        builder: &mut RegexBuilder,
        arg: ExprRef,
        kind: Kind,
    ) -> Result<RegexAst, GrammarError> {
        if self.is_clean(builder, arg) {
            return Ok(RegexAst::ExprRef(arg));
        }
        let text = builder.exprset().expr_to_string_max_len(arg, 64);
        let product = text.split_once(DIVISOR).and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let known = product.and_then(|product: u32| Some((product, self.numbers.expression(product, kind)?)));
        let Some((product, expression)) = known else { return Err(unexpected(builder, arg)) };
        // Checks that the whole expression is the one that llguidance compiles for `multipleOf`.
        let sign = RegexAst::Regex("-?".to_owned());
        let signed = builder.mk(&RegexAst::Concat(vec![sign, RegexAst::MultipleOf(product, 0)]));
        if signed.ok() != Some(arg) {
            return Err(unexpected(builder, arg));
        }
        Ok(expression)
    }

    /// Whether an expression contains no divisibility test.
    fn is_clean(&mut self, builder: &RegexBuilder, expression: ExprRef) -> bool {
        let (mut stack, mut seen) = (vec![expression], HashSet::new());
        while let Some(next) = stack.pop() {
            if self.clean.contains(&next) || !seen.insert(next) {
                continue;
            }
            if format!("{:?}", builder.exprset().get_tag(next)) == "RemainderIs" {
                return false;
            }
            stack.extend(builder.exprset().get_args(next));
        }
        self.clean.extend(seen);
        true
    }
}

fn unexpected(builder: &RegexBuilder, expression: ExprRef) -> GrammarError {
    let text = builder.exprset().expr_to_string_max_len(expression, 200);
    GrammarError::Internal(format!("a condition on numbers became {text}"))
}
