//! Sets of numbers as regular expressions over the digits of their JSON form. Does not know grammars.

use llguidance::derivre::RegexAst;

use crate::decimal::Decimal;

/// One or more alternatives.
fn any(mut options: Vec<RegexAst>) -> RegexAst {
    match options.len() {
        0 => RegexAst::NoMatch,
        1 => options.swap_remove(0),
        _ => RegexAst::Or(options),
    }
}

fn regex(text: &str) -> RegexAst {
    RegexAst::Regex(text.to_owned())
}

fn then(first: u8, rest: RegexAst) -> RegexAst {
    RegexAst::Concat(vec![RegexAst::Byte(first), rest])
}

/// A digit in a range, followed by `rest`; `None` if the range is empty.
fn digit_then(low: u8, high: u8, rest: &str) -> Option<RegexAst> {
    (low <= high).then(|| regex(&format!("[{}-{}]{rest}", char::from(low), char::from(high))))
}

/// Expression for any fraction.
const FRACTION: &str = r"(\.[0-9]+)?";

/// Kind of numbers in a set. Integers have separate expressions, without a remainder after the last digit,
/// from which llguidance detects the end of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All numbers are allowed.
    Any,
    /// Numbers without a fraction.
    Integers,
}

impl Kind {
    fn fraction(self) -> &'static str {
        match self {
            Self::Any => FRACTION,
            Self::Integers => "",
        }
    }
}

/// `n` more digits before the point, and any fraction.
fn whatever(n: usize, kind: Kind) -> String {
    format!("[0-9]{{{n}}}{}", kind.fraction())
}

/// Texts of the numbers from `low` upwards; `low` is not negative.
pub(super) fn at_least(low: &Decimal, is_inclusive: bool, kind: Kind) -> RegexAst {
    let (whole, fraction) = low.parts();
    let n = whole.len();
    // The rest of a number that starts like `low`.
    let mut same = match (kind, fraction.is_empty(), is_inclusive) {
        (Kind::Integers, true, true) => RegexAst::EmptyString,
        (Kind::Integers, ..) => RegexAst::NoMatch,
        (Kind::Any, true, true) => regex(FRACTION),
        (Kind::Any, true, false) => regex(r"\.[0-9]*[1-9][0-9]*"),
        (Kind::Any, false, _) => then(b'.', fraction_at_least(&fraction, is_inclusive)),
    };
    for (at, digit) in whole.iter().enumerate().rev() {
        let larger = digit_then(digit + 1, b'9', &whatever(n - 1 - at, kind));
        same = any(std::iter::once(then(*digit, same)).chain(larger).collect());
    }
    let longer = format!("[1-9][0-9]{{{n},}}{}", kind.fraction());
    any(vec![same, regex(&longer)])
}

fn fraction_at_least(fraction: &[u8], is_inclusive: bool) -> RegexAst {
    let mut same = regex(if is_inclusive { "[0-9]*" } else { "[0-9]*[1-9][0-9]*" });
    for digit in fraction.iter().rev() {
        let larger = digit_then(digit + 1, b'9', "[0-9]*");
        same = any(std::iter::once(then(*digit, same)).chain(larger).collect());
    }
    same
}

/// Texts of the numbers from 0 to `high`; `high` is not negative.
pub(super) fn at_most(high: &Decimal, is_inclusive: bool, kind: Kind) -> RegexAst {
    let (whole, fraction) = high.parts();
    let n = whole.len();
    let mut same = match (kind, fraction.is_empty(), is_inclusive) {
        (_, true, false) => RegexAst::NoMatch,
        (Kind::Integers, ..) => RegexAst::EmptyString,
        (Kind::Any, true, true) => regex(r"(\.0+)?"),
        (Kind::Any, false, _) => {
            let fraction = then(b'.', fraction_at_most(&fraction, is_inclusive));
            any(vec![RegexAst::EmptyString, fraction])
        }
    };
    for (at, digit) in whole.iter().enumerate().rev() {
        let low = if at == 0 && n > 1 { b'1' } else { b'0' };
        let smaller = digit_then(low, digit - 1, &whatever(n - 1 - at, kind));
        same = any(std::iter::once(then(*digit, same)).chain(smaller).collect());
    }
    let shorter = (n > 1).then(|| regex(&format!("(0|[1-9][0-9]{{0,{}}}){}", n - 2, kind.fraction())));
    any(std::iter::once(same).chain(shorter).collect())
}

fn fraction_at_most(fraction: &[u8], is_inclusive: bool) -> RegexAst {
    let mut same = if is_inclusive { regex("0*") } else { RegexAst::NoMatch };
    for (at, digit) in fraction.iter().enumerate().rev() {
        let smaller = digit_then(b'0', digit - 1, "[0-9]*");
        let mut options = vec![then(*digit, same)];
        options.extend(smaller);
        // A shorter fraction is smaller, because the last digit is not 0; but a fraction has at least one
        // digit.
        if at > 0 {
            options.push(RegexAst::EmptyString);
        }
        same = any(options);
    }
    same
}

/// Texts of the multiples of `coefficient` times ten to the power `exponent`, with any sign. The
/// coefficient has no trailing zeros.
pub(super) fn multiples(coefficient: u32, exponent: i64) -> RegexAst {
    let of = |coefficient: u32, n_places: u32| match coefficient {
        1 => regex(r"[0-9.]+"),
        _ => RegexAst::MultipleOf(coefficient, n_places),
    };
    let sign = regex("-?");
    if exponent >= 0 {
        let zeros = format!("0{{{exponent}}}");
        let multiple = RegexAst::Concat(vec![of(coefficient, 0), regex(&zeros)]);
        let multiple = RegexAst::And(vec![multiple, regex("[0-9]+")]);
        return RegexAst::Concat(vec![sign, any(vec![multiple, RegexAst::Byte(b'0')])]);
    }
    let n_places = u32::try_from(exponent.unsigned_abs()).unwrap_or(u32::MAX);
    if coefficient == 1 {
        return regex(&format!(r"-?[0-9]+(\.[0-9]{{1,{n_places}}})?"));
    }
    // A number with fewer decimal places is a multiple if appending zeros gives one.
    let options = (0..=n_places).map(|places| {
        let own = coefficient / gcd(coefficient, n_places - places);
        let form = match places {
            0 => "[0-9]+".to_owned(),
            _ => format!(r"[0-9]+\.[0-9]{{{places}}}"),
        };
        RegexAst::And(vec![of(own, places), regex(&form)])
    });
    RegexAst::Concat(vec![sign, any(options.collect())])
}

/// The greatest common divisor of a number and ten to the power `n`.
fn gcd(number: u32, n: u32) -> u32 {
    let (mut rest, mut divisor) = (number, 1);
    for prime in [2, 5] {
        for _ in 0..n {
            if !rest.is_multiple_of(prime) {
                break;
            }
            rest /= prime;
            divisor *= prime;
        }
    }
    divisor
}
