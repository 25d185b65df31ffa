//! Regions of replicas, the round trips to them, and the regions permitted to an organisation's requests.
//! Does not know loads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::time::Nanos;

/// Name of a region, as in the configuration.
pub type Region = Arc<str>;

/// Maximum number of regions of a gateway, and of regions that a request may be bound to.
pub const MAX_REGIONS: usize = 64;
/// Longest name of a region, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Assumed round trip to a region before one was measured.
pub const UNMEASURED: Nanos = Nanos::from_ms(200);

/// Number of latest round trips kept of a replica. The shortest one counts, since longer ones include
/// queueing.
const MAX_ROUND_TRIPS: usize = 8;

/// Whether `name` is a valid name of a region: 1 to 64 ASCII letters, digits, hyphens, underscores and
/// dots.
pub fn is_region_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Region of a replica and round trips to it.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) region: Option<Region>,
    round_trips: VecDeque<Nanos>,
}

impl Place {
    pub(super) fn measured(&mut self, round_trip: Nanos) {
        self.round_trips.truncate(MAX_ROUND_TRIPS - 1);
        self.round_trips.push_front(round_trip);
    }

    /// The shortest of the latest round trips.
    pub(super) fn round_trip(&self) -> Option<Nanos> {
        self.round_trips.iter().min().copied()
    }

    /// Whether it is in one of these regions; a replica without a region is in none.
    pub(super) fn is_in(&self, regions: &[Region]) -> bool {
        self.region.as_ref().is_some_and(|region| regions.contains(region))
    }
}

/// Least predicted delay in one region, for one request.
#[derive(Debug, Default)]
pub(super) struct RegionOffer {
    /// The least predicted time to first token.
    pub(super) ttft: Option<Nanos>,
    round_trip: Option<Nanos>,
}

impl RegionOffer {
    pub(super) fn add(&mut self, ttft: Nanos, round_trip: Option<Nanos>) {
        self.ttft = Some(self.ttft.map_or(ttft, |known| known.min(ttft)));
        self.round_trip = self.round_trip.into_iter().chain(round_trip).min();
    }

    /// The predicted time to first token with the round trip to the region, which counts as 0 for the
    /// router's own region.
    pub(super) fn first_token(&self, is_home: bool) -> Nanos {
        let way = if is_home { Nanos(0) } else { self.round_trip.unwrap_or(UNMEASURED) };
        Nanos(self.ttft.unwrap_or_default().0.saturating_add(way.0))
    }
}

/// Name of the rule for organisations without a rule of their own, and for requests without an organisation.
pub const EVERYONE: &str = "*";

/// Regions that the requests of organisations may go to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Residency(BTreeMap<String, Arc<[Region]>>);

impl Residency {
    /// Creates the rules from organisations with their regions; the last rule of an organisation counts.
    pub fn new(rules: impl IntoIterator<Item = (String, Arc<[Region]>)>) -> Self {
        Self(rules.into_iter().collect())
    }

    /// The regions that requests of this organisation are bound to; `None` if they may go to any replica.
    pub fn regions(&self, organisation: Option<&str>) -> Option<Arc<[Region]>> {
        let own = organisation.and_then(|name| self.0.get(name));
        own.or_else(|| self.0.get(EVERYONE)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisations_own_rule_counts_before_that_of_everyone() {
        let regions = |name: &str| -> Arc<[Region]> { Arc::from([Region::from(name)]) };
        let residency =
            Residency::new([("a".to_owned(), regions("eu")), (EVERYONE.to_owned(), regions("us"))]);
        assert_eq!(residency.regions(Some("a")), Some(regions("eu")));
        assert_eq!(residency.regions(Some("b")), Some(regions("us")));
        assert_eq!(residency.regions(None), Some(regions("us")));
        assert_eq!(Residency::default().regions(Some("a")), None);
    }

    #[test]
    fn names_are_short_words() {
        let longest = "a".repeat(MAX_NAME_BYTES);
        assert!(["eu", "eu-west-1", "Zone_2.b", &longest].into_iter().all(is_region_name));
        let longer = format!("{longest}a");
        assert!(!["", "eu,us", "e u", "\u{e9}u", &longer].into_iter().any(is_region_name));
    }

    #[test]
    fn the_shortest_of_the_latest_round_trips_counts() {
        let mut place = Place::default();
        assert_eq!(place.round_trip(), None);
        [1, 9, 5].map(Nanos).into_iter().for_each(|round_trip| place.measured(round_trip));
        assert_eq!(place.round_trip(), Some(Nanos(1)));
        (0..MAX_ROUND_TRIPS).for_each(|_| place.measured(Nanos(7)));
        assert_eq!((place.round_trip(), place.round_trips.len()), (Some(Nanos(7)), MAX_ROUND_TRIPS));
    }
}
