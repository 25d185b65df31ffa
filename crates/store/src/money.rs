//! Prices and amounts of money as exact integers. Does not know the goods.
//!
//! One US dollar per million tokens is 10⁻⁶ dollars per token: a price with up to six decimals is a whole
//! number of pico-dollars (10⁻¹² dollars) per token.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of decimals of a price per million tokens, and of an amount in micro-dollars.
const N_DECIMALS: usize = 6;
/// Maximum price of a token in pico-dollars: 1,000 dollars per million tokens.
pub const MAX_PRICE: u64 = 1_000_000_000;
const PICODOLLARS_PER_DOLLAR: u128 = 1_000_000_000_000;

/// Prices per token, in pico-dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// Price of a computed prompt token.
    pub prompt: u64,
    /// Price of a prompt token from the prefix cache.
    pub cached: u64,
    /// Price of an output token.
    pub generated: u64,
}

impl Prices {
    /// Cost of these tokens; `cached` is part of `prompt`.
    pub fn cost(&self, prompt: u64, cached: u64, generated: u64) -> Cost {
        let part = |n_tokens: u64, price: u64| u128::from(n_tokens) * u128::from(price);
        let computed = prompt.saturating_sub(cached);
        Cost(part(computed, self.prompt) + part(cached, self.cached) + part(generated, self.generated))
    }

    /// Maximum cost of these tokens, without any prefix cache hit.
    pub fn most(&self, prompt: u64, generated: u64) -> Cost {
        self.cost(prompt, 0, generated).max(self.cost(prompt, prompt, generated))
    }
}

/// An amount of money in pico-dollars, displayed in dollars with as many decimals as necessary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u128);

impl Cost {
    /// Converts an amount from micro-dollars.
    pub fn from_microdollars(amount: u64) -> Self {
        Self(u128::from(amount) * 1_000_000)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:012}", self.0 % PICODOLLARS_PER_DOLLAR);
        let decimals = decimals.trim_end_matches('0');
        write!(f, "{}", self.0 / PICODOLLARS_PER_DOLLAR)?;
        if decimals.is_empty() { Ok(()) } else { write!(f, ".{decimals}") }
    }
}

/// Parses a decimal number with up to six decimals into millionths: a price in dollars per million tokens
/// becomes pico-dollars per token, an amount in dollars becomes micro-dollars.
pub fn parse_millionths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let has_point = text.contains('.');
    if whole.is_empty() || !digits(whole) || !digits(decimals) || has_point == decimals.is_empty() {
        return None;
    }
    if decimals.len() > N_DECIMALS {
        return None;
    }
    let millionths: u64 = format!("{decimals:0<N_DECIMALS$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(millionths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_and_amounts_are_exact() {
        assert_eq!(parse_millionths("0.15"), Some(150_000));
        assert_eq!(parse_millionths("12"), Some(12_000_000));
        assert_eq!(parse_millionths("0.000001"), Some(1));
        for bad in ["", ".", "1.", ".5", "-1", "+1", "1e3", "0.0000001", "1,5", " 1", "99999999999999999999"]
        {
            assert_eq!(parse_millionths(bad), None, "{bad}");
        }
        let prices = Prices { prompt: 150_000, cached: 75_000, generated: 600_000 };
        // 3 million tokens, 1 million of them cached, and 2 million generated: 0.30 + 0.075 + 1.20 dollars.
        assert_eq!(prices.cost(3_000_000, 1_000_000, 2_000_000).to_string(), "1.575");
        assert_eq!(prices.cost(1, 0, 0).to_string(), "0.00000015");
        assert_eq!(Cost(0).to_string(), "0");
        assert_eq!(Cost::from_microdollars(2_500_000).to_string(), "2.5");
        assert_eq!(prices.most(10, 1), prices.cost(10, 0, 1));
        let dear = Prices { cached: 200_000, ..prices };
        assert_eq!(dear.most(10, 1), dear.cost(10, 10, 1));
    }
}
