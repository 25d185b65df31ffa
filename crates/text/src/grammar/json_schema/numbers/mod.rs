//! Conditions on numbers, exact for numbers of any length. llguidance parses numbers as doubles and
//! recurses over ranges of integers, so conditions are hidden from it: during compilation, `multipleOf`
//! with a prime number represents a condition, and the compiled expression is then replaced by the
//! condition's own. Does not know other parts of schemas.
//!
//! If several conditions apply to one number, llguidance multiplies their primes; the product identifies
//! the conditions. [`super::intersections`] keeps products within its 32 bits.

mod automaton;
mod lexer;
mod lowering;
mod set;

use std::collections::{BTreeMap, HashMap};

use llguidance::derivre::RegexAst;
use serde_json::{Map, Value};

use crate::exact_number;
use crate::grammar::GrammarError;
use automaton::Kind;
use set::{NumberSet, Refusal};

/// Maximum number of different conditions of a grammar.
const MAX_SETS: usize = 2000;

/// Keywords about numbers.
const KEYWORDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The conditions on numbers in one grammar.
#[derive(Debug, Default)]
pub(in crate::grammar) struct Numbers {
    /// Sets of numbers by their primes.
    sets: BTreeMap<u32, NumberSet>,
    primes: HashMap<NumberSet, u32>,
}

impl Numbers {
    /// Whether there are no conditions to insert.
    pub(in crate::grammar) fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// The prime that represents a condition.
    fn prime(&mut self, set: NumberSet) -> Result<u32, GrammarError> {
        if let Some(prime) = self.primes.get(&set) {
            return Ok(*prime);
        }
        if self.sets.len() >= MAX_SETS {
            let reason = format!("more than {MAX_SETS} different conditions on numbers");
            return Err(GrammarError::TooComplex(reason));
        }
        let is_prime = |n: u32| (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        let last = self.sets.last_key_value().map_or(1, |(prime, _)| *prime);
        let prime = (last + 1..).find(|n| is_prime(*n)).unwrap_or(u32::MAX);
        self.sets.insert(prime, set.clone());
        self.primes.insert(set, prime);
        Ok(prime)
    }

    /// The texts of the numbers that satisfy the conditions in `product`; `None` if it has other factors.
    fn expression(&self, product: u32, kind: Kind) -> Option<RegexAst> {
        let mut rest = product;
        let mut all = Vec::new();
        for (prime, set) in &self.sets {
            if rest.is_multiple_of(*prime) {
                rest /= prime;
                all.push(set.expression(kind));
            }
        }
        (rest == 1 && !all.is_empty()).then_some(RegexAst::And(all))
    }
}

/// Checks a schema's keywords about numbers. Returns the coefficient of its `multipleOf`.
///
/// # Errors
/// [`GrammarError::Invalid`] and [`GrammarError::TooComplex`], with `path`.
pub(super) fn check(schema: &Map<String, Value>, path: &str) -> Result<Option<u64>, GrammarError> {
    let mut coefficient = None;
    for keyword in KEYWORDS {
        let Some(value) = schema.get(keyword) else { continue };
        let mut set = NumberSet::default();
        let checked = read(keyword, value, schema, &mut set);
        coefficient = coefficient.or(checked.map_err(|refusal| match refusal {
            Refusal::Invalid(reason) => super::invalid(&format!("{path}/{keyword}"), reason),
            Refusal::TooComplex(reason) => {
                super::too_complex(format!("'{keyword}' at '{path}/{keyword}': {reason}"))
            }
        })?);
    }
    for (keyword, value) in schema.iter().filter(|(keyword, _)| matches!(keyword.as_str(), "const" | "enum"))
    {
        check_constants(value)
            .map_err(|reason| super::too_complex(format!("'{keyword}' at '{path}/{keyword}': {reason}")))?;
    }
    Ok(coefficient)
}

fn check_constants(value: &Value) -> Result<(), &'static str> {
    if let Some(text) = exact_number::text(value) {
        return match NumberSet::default().among(std::iter::once(text.as_ref())) {
            Err(Refusal::TooComplex(reason) | Refusal::Invalid(reason)) => Err(reason),
            Ok(()) => Ok(()),
        };
    }
    match value {
        Value::Array(elements) => elements.iter().try_for_each(check_constants),
        Value::Object(members) => members.values().try_for_each(check_constants),
        _ => Ok(()),
    }
}

/// Adds a keyword to a condition. Returns the coefficient of a `multipleOf`.
fn read(
    keyword: &str,
    value: &Value,
    schema: &Map<String, Value>,
    set: &mut NumberSet,
) -> Result<Option<u64>, Refusal> {
    // In draft 4, a boolean determined whether the bound beside it is exclusive.
    let is_excluded = |beside: &str| schema.get(beside) == Some(&Value::Bool(true));
    if value.is_boolean() && keyword.starts_with("exclusive") {
        return Ok(None);
    }
    let text = exact_number::text(value).ok_or(Refusal::Invalid("it must be a number"))?;
    match keyword {
        "minimum" => set.above(&text, !is_excluded("exclusiveMinimum"))?,
        "exclusiveMinimum" => set.above(&text, false)?,
        "maximum" => set.below(&text, !is_excluded("exclusiveMaximum"))?,
        "exclusiveMaximum" => set.below(&text, false)?,
        _ => return set.multiple_of(&text).map(Some),
    }
    Ok(None)
}
