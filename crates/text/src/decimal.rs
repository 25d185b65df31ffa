//! Decimal numbers of any length, exact. Does not know schemas.

use std::cmp::Ordering;

/// Maximum power of ten of a number: beyond doubles, and small enough to write out.
const MAX_EXPONENT: i64 = 400;

/// A finite decimal number. Equal numbers have equal values, in any spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Decimal {
    is_negative: bool,
    /// ASCII digits without zeros at either end; empty for zero.
    digits: Vec<u8>,
    /// The number is `0.digits` times ten to this power; 0 for zero.
    point: i64,
}

/// Reason why a text cannot be a [`Decimal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The text is not a JSON number.
    Syntax,
    /// The number is too large, too small or too long to write out.
    TooLong,
}

impl Decimal {
    pub(crate) fn zero() -> Self {
        Self { is_negative: false, digits: Vec::new(), point: 0 }
    }

    /// Reads a number of JSON.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let (is_negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (rest, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let unsigned = exponent.map(|text| text.strip_prefix(['+', '-']).unwrap_or(text));
        let is_number = is_digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(is_digits)
            && unsigned.is_none_or(is_digits);
        if !is_number {
            return Err(Fault::Syntax);
        }
        let all: Vec<u8> = whole.bytes().chain(fraction.unwrap_or_default().bytes()).collect();
        let Some(first) = all.iter().position(|b| *b != b'0') else {
            return Ok(Self::zero());
        };
        let last = all.iter().rposition(|b| *b != b'0').unwrap_or(first);
        let digits = all[first..=last].to_vec();
        // An exponent that overflows is too large anyway.
        let exponent = exponent.map_or(Ok(0), str::parse::<i64>).map_err(|_| Fault::TooLong)?;
        let point = exponent.saturating_add(whole.len() as i64 - first as i64);
        let n_places = (digits.len() as i64).saturating_sub(point);
        if point > MAX_EXPONENT || n_places > MAX_EXPONENT {
            return Err(Fault::TooLong);
        }
        Ok(Self { is_negative, digits, point })
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.is_negative
    }

    /// The number without its sign.
    pub(crate) fn magnitude(&self) -> Self {
        Self { is_negative: false, ..self.clone() }
    }

    /// The digits before and after the point of the number without its sign: `"0"` and no zeros at the end.
    pub(crate) fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let n = self.digits.len() as i64;
        let zeros = |n: i64| std::iter::repeat_n(b'0', usize::try_from(n).unwrap_or_default());
        let n_whole = usize::try_from(self.point.clamp(0, n)).unwrap_or_default();
        let (whole, fraction) = self.digits.split_at(n_whole);
        let mut whole: Vec<u8> = whole.iter().copied().chain(zeros(self.point - n)).collect();
        if whole.is_empty() {
            whole.push(b'0');
        }
        (whole, zeros(-self.point).chain(fraction.iter().copied()).collect())
    }

    /// The number without a power of ten.
    pub(crate) fn plain(&self) -> String {
        let (whole, fraction) = self.parts();
        let mut text = String::from(if self.is_negative { "-" } else { "" });
        text.extend(whole.iter().map(|b| char::from(*b)));
        if !fraction.is_empty() {
            text.push('.');
            text.extend(fraction.iter().map(|b| char::from(*b)));
        }
        text
    }

    /// The coefficient without trailing zeros, and its power of ten; `None` if the coefficient is above
    /// 2^63. Zero is 0 times 10^0.
    pub(crate) fn scaled(&self) -> Option<(u64, i64)> {
        if self.is_zero() {
            return Some((0, 0));
        }
        let coefficient: u64 = std::str::from_utf8(&self.digits).ok()?.parse().ok()?;
        (coefficient >> 63 == 0).then_some((coefficient, self.point - self.digits.len() as i64))
    }

    /// Whether it is an integer multiple of `coefficient` times ten to the power `exponent`. The
    /// coefficient has no trailing zeros.
    pub(crate) fn is_multiple_of(&self, coefficient: u64, exponent: i64) -> bool {
        if self.is_zero() {
            return true;
        }
        let shift = self.point - self.digits.len() as i64 - exponent;
        // The digits have no trailing zero, so they are not a multiple of ten.
        if shift < 0 || coefficient == 0 {
            return false;
        }
        let modulus = u128::from(coefficient);
        let zeros = std::iter::repeat_n(b'0', usize::try_from(shift).unwrap_or_default());
        let digits = self.digits.iter().copied().chain(zeros);
        digits.fold(0, |rest, digit| (rest * 10 + u128::from(digit - b'0')) % modulus) == 0
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |one: &Self| if one.is_zero() { 0 } else { 1 - 2 * i32::from(one.is_negative) };
        sign(self).cmp(&sign(other)).then_with(|| {
            // Digits compare like fractions, because trailing zeros are left out.
            let magnitudes = self.point.cmp(&other.point).then_with(|| self.digits.cmp(&other.digits));
            if self.is_negative { magnitudes.reverse() } else { magnitudes }
        })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).expect(text)
    }

    #[test]
    fn numbers_are_read_compared_and_written_exactly() {
        let ascending = [
            "-1e300",
            "-9223372036854775809",
            "-9223372036854775808",
            "-1.5",
            "-1.25",
            "-0.1",
            "-1e-300",
            "0",
            "4.9e-324",
            "0.1",
            "0.10000000000000000001",
            "1",
            "9",
            "10",
            "9007199254740992",
            "9007199254740993",
            "9007199254740993.5",
            "1.7976931348623157e308",
        ];
        for (at, one) in ascending.iter().enumerate() {
            for (other_at, other) in ascending.iter().enumerate() {
                assert_eq!(decimal(one).cmp(&decimal(other)), at.cmp(&other_at), "{one} {other}");
            }
        }
        for (text, plain) in [
            ("-0", "0"),
            ("-0.0e5", "0"),
            ("1.500", "1.5"),
            ("100", "100"),
            ("1E+3", "1000"),
            ("12e-1", "1.2"),
            ("-12.5e-3", "-0.0125"),
            ("18446744073709551616", "18446744073709551616"),
        ] {
            assert_eq!(decimal(text).plain(), plain, "{text}");
            assert_eq!(decimal(text), decimal(plain));
        }
        for text in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "0x1", "NaN", "1 "] {
            assert_eq!(Decimal::parse(text), Err(Fault::Syntax), "{text}");
        }
        for text in ["1e401", "1e-401", "1e99999999999999999999", "-1e-99999999999999999999"] {
            assert_eq!(Decimal::parse(text), Err(Fault::TooLong), "{text}");
        }
        assert_eq!(decimal("0e99").plain(), "0");
    }

    #[test]
    fn multiples_are_exact() {
        for (number, coefficient, exponent, expected) in [
            ("0", 7, 0, true),
            ("21", 7, 0, true),
            ("22", 7, 0, false),
            ("-0.3", 1, -1, true),
            ("0.35", 1, -1, false),
            ("9007199254740993", 3, 0, true),
            ("1e300", 1, 3, true),
            ("1500", 15, 2, true),
            ("150", 15, 2, false),
            ("4.35", 1, -2, true),
        ] {
            assert_eq!(decimal(number).is_multiple_of(coefficient, exponent), expected, "{number}");
        }
    }
}
