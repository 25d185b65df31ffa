//! The length of a conversation as an operator sets it, by a number in vLLM's notation or by `auto`. Does not
//! know the bounds of the model and the memory.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::bounds;

/// Most tokens of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelLength {
    /// The longest that the model and the KV cache allow.
    Auto,
    /// A fixed number of tokens.
    Tokens(u32),
}

/// Parses a flag: `auto`, `32768`, `32k` (32,000) or `32K` (32,768), as vLLM reads them. The letters are k, m
/// and g; only the small ones, which count by thousands, take a fraction.
pub fn parse_model_length(text: &str) -> Result<ModelLength, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("auto") {
        return Ok(ModelLength::Auto);
    }
    let number_end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let tokens = match unit {
        "" => number.parse().ok(),
        "k" => scaled(number, 1e3),
        "m" => scaled(number, 1e6),
        "g" => scaled(number, 1e9),
        "K" => number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 10)),
        "M" => number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 20)),
        "G" => number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 30)),
        _ => None,
    };
    of_number(tokens.unwrap_or(0))
}

fn scaled(number: &str, factor: f64) -> Option<u64> {
    number.parse::<f64>().ok().filter(|n| *n >= 0.0 && n.is_finite()).map(|n| (n * factor).round() as u64)
}

fn of_number(tokens: u64) -> Result<ModelLength, String> {
    let tokens = u32::try_from(tokens).ok().filter(|tokens| bounds::SEQUENCE_TOKENS.contains(tokens));
    let (min, max) = bounds::SEQUENCE_TOKENS.into_inner();
    tokens
        .map(ModelLength::Tokens)
        .ok_or_else(|| format!("must be a number from {min} to {max}, such as 32768 or 32k, or auto"))
}

impl<'de> Deserialize<'de> for ModelLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = ModelLength;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of tokens or \"auto\"")
            }

            fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<ModelLength, E> {
                of_number(tokens).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, tokens: i64) -> Result<ModelLength, E> {
                of_number(u64::try_from(tokens).unwrap_or(0)).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ModelLength, E> {
                parse_model_length(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_vllm_reads_them() {
        for (text, tokens) in
            [("32768", 32_768), ("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("1m", 1_000_000)]
        {
            assert_eq!(parse_model_length(text), Ok(ModelLength::Tokens(tokens)), "{text}");
        }
        assert_eq!(parse_model_length("auto"), Ok(ModelLength::Auto));
        for bad in ["0", "-1", "", "k", "1.5", "25.6K", "5G", "many", "4294967296", "-2k", "1e400k"] {
            assert!(
                parse_model_length(bad).is_err_and(|fault| fault.contains("from 1 to 4294967295")),
                "{bad}"
            );
        }
    }
}
