//! Sets of numbers described by the keywords of one schema. Does not know where the schema is.

use llguidance::derivre::RegexAst;

use super::automaton::{self, Kind};
use crate::decimal::{Decimal, Fault};

/// Maximum coefficient of a `multipleOf` without trailing zeros: an automaton counts up to it.
pub(super) const MAX_COEFFICIENT: u64 = 10_000;
/// Maximum decimal places of a `multipleOf` whose coefficient is not 1.
const MAX_PLACES: i64 = 8;
/// Characters above which a number may also be written with the power of ten that its schema has.
const MAX_PLAIN_CHARS: usize = 24;

/// An end of a range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bound {
    at: Decimal,
    is_inclusive: bool,
}

/// A number of `const` or `enum`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Constant {
    number: Decimal,
    /// Text in the schema, without the sign of a positive power of ten.
    text: String,
}

/// A divisor of all numbers in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Multiple {
    coefficient: u32,
    /// Power of ten of the coefficient.
    exponent: i64,
}

/// A set of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NumberSet {
    low: Option<Bound>,
    high: Option<Bound>,
    multiples: Vec<Multiple>,
    /// The only numbers, if they are listed.
    constants: Option<Vec<Constant>>,
}

/// Reason why a keyword cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The value is invalid for the keyword.
    Invalid(&'static str),
    /// A limit is exceeded.
    TooComplex(&'static str),
}

fn read(text: &str) -> Result<Decimal, Refusal> {
    Decimal::parse(text).map_err(|fault| match fault {
        Fault::Syntax => Refusal::Invalid("it must be a number"),
        Fault::TooLong => Refusal::TooComplex("a number of more than 400 digits before or after its point"),
    })
}

impl NumberSet {
    /// Restricts the set to numbers from `text` upwards.
    pub(super) fn above(&mut self, text: &str, is_inclusive: bool) -> Result<(), Refusal> {
        let bound = Bound { at: read(text)?, is_inclusive };
        let is_tighter = |old: &Bound| (&bound.at, !bound.is_inclusive) > (&old.at, !old.is_inclusive);
        if self.low.as_ref().is_none_or(is_tighter) {
            self.low = Some(bound);
        }
        Ok(())
    }

    /// Restricts the set to numbers up to `text`.
    pub(super) fn below(&mut self, text: &str, is_inclusive: bool) -> Result<(), Refusal> {
        let bound = Bound { at: read(text)?, is_inclusive };
        let is_tighter = |old: &Bound| (&bound.at, bound.is_inclusive) < (&old.at, old.is_inclusive);
        if self.high.as_ref().is_none_or(is_tighter) {
            self.high = Some(bound);
        }
        Ok(())
    }

    /// Restricts the set to multiples of `text`. Returns the coefficient that an automaton counts up to.
    pub(super) fn multiple_of(&mut self, text: &str) -> Result<u64, Refusal> {
        let number = read(text)?;
        if number.is_zero() || number.is_negative() {
            return Err(Refusal::Invalid("it must be a number above 0"));
        }
        let known = number.scaled().filter(|(coefficient, _)| *coefficient <= MAX_COEFFICIENT);
        let Some((coefficient, exponent)) = known else {
            return Err(Refusal::TooComplex("a number of too many digits"));
        };
        if coefficient > 1 && exponent < -MAX_PLACES {
            return Err(Refusal::TooComplex("a number of too many decimal places"));
        }
        let coefficient = coefficient as u32;
        self.multiples.push(Multiple { coefficient, exponent });
        Ok(u64::from(coefficient))
    }

    /// Restricts the set to `texts`.
    pub(super) fn among<'t>(&mut self, texts: impl Iterator<Item = &'t str>) -> Result<(), Refusal> {
        let mut constants: Vec<Constant> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for text in texts {
            let number = read(text)?;
            let is_kept =
                self.constants.as_ref().is_none_or(|old| old.iter().any(|one| one.number == number));
            if is_kept && seen.insert(number.clone()) {
                constants.push(Constant { number, text: text.replace('+', "") });
            }
        }
        self.constants = Some(constants);
        Ok(())
    }

    /// Whether the set contains all numbers.
    pub(super) fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the set is certainly empty. Does not detect ranges without any multiple.
    pub(super) fn is_empty(&self) -> bool {
        let is_crossed = match (&self.low, &self.high) {
            (Some(low), Some(high)) => {
                low.at > high.at || low.at == high.at && !(low.is_inclusive && high.is_inclusive)
            }
            _ => false,
        };
        is_crossed
            || self.constants.as_ref().is_some_and(|all| !all.iter().any(|one| self.allows(&one.number)))
    }

    /// Whether the bounds and multiples allow a number.
    fn allows(&self, number: &Decimal) -> bool {
        let is_above = |low: &Bound| *number > low.at || *number == low.at && low.is_inclusive;
        let is_below = |high: &Bound| *number < high.at || *number == high.at && high.is_inclusive;
        self.low.as_ref().is_none_or(is_above)
            && self.high.as_ref().is_none_or(is_below)
            && self
                .multiples
                .iter()
                .all(|one| number.is_multiple_of(u64::from(one.coefficient), one.exponent))
    }

    /// Texts of the numbers in the set.
    pub(super) fn expression(&self, kind: Kind) -> RegexAst {
        if let Some(constants) = &self.constants {
            let mut options = Vec::new();
            let is_kept = |one: &&Constant| {
                self.allows(&one.number) && (kind == Kind::Any || one.number.parts().1.is_empty())
            };
            for one in constants.iter().filter(is_kept) {
                let plain = one.number.plain();
                let is_short = kind == Kind::Integers
                    || plain.len() <= MAX_PLAIN_CHARS
                    || !one.text.contains(['e', 'E']);
                if !is_short {
                    options.push(RegexAst::Literal(one.text.clone()));
                }
                options.push(RegexAst::Literal(plain));
            }
            return RegexAst::Or(options);
        }
        let is_whole = !self.multiples.is_empty() && self.multiples.iter().all(|one| one.exponent >= 0);
        let mut all = vec![self.range(if is_whole { Kind::Integers } else { kind })];
        all.extend(self.multiples.iter().map(|one| automaton::multiples(one.coefficient, one.exponent)));
        RegexAst::And(all)
    }

    fn range(&self, kind: Kind) -> RegexAst {
        let zero = Bound { at: Decimal::zero(), is_inclusive: true };
        let above_zero = || Bound { at: Decimal::zero(), is_inclusive: false };
        let side = |low: &Bound, high: Option<&Bound>| {
            let mut all = vec![automaton::at_least(&low.at, low.is_inclusive, kind)];
            all.extend(high.map(|high| automaton::at_most(&high.at, high.is_inclusive, kind)));
            RegexAst::And(all)
        };
        let mut options = Vec::new();
        let mirrored = |bound: &Bound| Bound { at: bound.at.magnitude(), ..*bound };
        if self.high.as_ref().is_none_or(|high| !high.at.is_negative()) {
            let low = self.low.as_ref().filter(|low| !low.at.is_negative()).unwrap_or(&zero);
            options.push(side(low, self.high.as_ref()));
        }
        if self.low.as_ref().is_none_or(|low| low.at.is_negative()) {
            let high = self.high.as_ref().filter(|high| high.at.is_negative());
            let nearest = high.map_or_else(above_zero, mirrored);
            let farthest = self.low.as_ref().map(mirrored);
            let magnitudes = side(&nearest, farthest.as_ref());
            options.push(RegexAst::Concat(vec![RegexAst::Byte(b'-'), magnitudes]));
        }
        RegexAst::Or(options)
    }
}
