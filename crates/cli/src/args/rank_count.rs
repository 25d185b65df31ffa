//! The number of processes that share a model, as an operator sets it: a number or `auto`. Does not know the
//! machine.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::bounds;

/// Number of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankCount {
    /// One for each NUMA node.
    Auto,
    /// A fixed number.
    Ranks(usize),
}

/// Parses a flag.
pub fn parse_rank_count(text: &str) -> Result<RankCount, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("auto") {
        return Ok(RankCount::Auto);
    }
    of_number(text.parse().unwrap_or(0))
}

fn of_number(n: u64) -> Result<RankCount, String> {
    let n = usize::try_from(n).ok().filter(|n| bounds::RANKS.contains(n));
    let (min, max) = bounds::RANKS.into_inner();
    n.map(RankCount::Ranks).ok_or_else(|| format!("must be a number from {min} to {max}, or auto"))
}

impl<'de> Deserialize<'de> for RankCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = RankCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of processes or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<RankCount, E> {
                of_number(u64::try_from(n).unwrap_or(0)).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<RankCount, E> {
                of_number(n).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RankCount, E> {
                parse_rank_count(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_processes_is_in_its_bounds_or_auto() {
        assert_eq!(parse_rank_count("3"), Ok(RankCount::Ranks(3)));
        assert_eq!(parse_rank_count("Auto"), Ok(RankCount::Auto));
        for bad in ["0", "33", "-1", "", "two"] {
            let fault = parse_rank_count(bad).expect_err(bad);
            assert_eq!(fault, "must be a number from 1 to 32, or auto");
        }
    }
}
