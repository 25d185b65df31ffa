//! Headers of a request about its destination, and the gateways that have forwarded it. Does not know
//! replicas and models.

use http::{HeaderMap, HeaderValue};
use throng_api::ApiError;
use throng_core::fleet::routing::{MAX_REGIONS, Region, is_region_name};
use throng_fleet::upstream::{HOPS_HEADER, REGIONS_HEADER};

use super::cache_policy::cache_policy;
use throng_cache::CachePolicy;

/// Header with the name of the only replica that may answer.
const REPLICA_HEADER: &str = "x-throng-replica";
/// Header with the name of a session, whose requests go to one of an alias's models.
const SESSION_HEADER: &str = "x-session-id";

/// Destination that a client names for its request.
#[derive(Debug)]
pub(crate) struct Destination {
    replica: Option<HeaderValue>,
    session: Option<HeaderValue>,
    hops: Option<HeaderValue>,
    regions: Option<HeaderValue>,
}

impl Destination {
    /// Reads the headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let field = |name| headers.get(name).cloned();
        // Of several values none counts: a gateway sends one.
        let hops = headers.get_all(HOPS_HEADER).iter().count() > 1;
        let hops = if hops { Some(HeaderValue::from_static("several")) } else { field(HOPS_HEADER) };
        Self {
            replica: field(REPLICA_HEADER),
            session: field(SESSION_HEADER),
            hops,
            regions: field(REGIONS_HEADER),
        }
    }

    /// The name of the only replica that may answer.
    pub fn replica(&self) -> Option<&str> {
        self.replica.as_ref().map(|name| name.to_str().unwrap_or("?"))
    }

    /// The header of [`Self::replica`], if the request has it.
    pub fn replica_header(&self) -> Option<&'static str> {
        self.replica.as_ref().map(|_| REPLICA_HEADER)
    }

    /// Session of the request.
    pub fn session(&self) -> Option<&str> {
        self.session.as_ref()?.to_str().ok()
    }

    /// Number of gateways that have forwarded it so far.
    ///
    /// # Errors
    /// 400 for a header that is not a small number.
    pub fn n_hops(&self) -> Result<u8, ApiError> {
        let Some(value) = &self.hops else { return Ok(0) };
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = digits.and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            let message = format!("The header '{HOPS_HEADER}' must be a number from 0 to 255.");
            ApiError::invalid_value(HOPS_HEADER, message)
        })
    }

    /// Regions that the request is bound to by its header, if it names some.
    ///
    /// # Errors
    /// 400 for a header that is not a list of regions.
    pub fn regions(&self) -> Result<Option<Vec<Region>>, ApiError> {
        let Some(value) = &self.regions else { return Ok(None) };
        let names = value.to_str().unwrap_or_default().split(',').map(str::trim);
        let regions =
            names.take(MAX_REGIONS + 1).map(|name| is_region_name(name).then(|| Region::from(name)));
        match regions.collect::<Option<Vec<_>>>() {
            Some(regions) if regions.len() <= MAX_REGIONS => Ok(Some(regions)),
            _ => {
                let message =
                    format!("The header '{REGIONS_HEADER}' must have 1 to {MAX_REGIONS} names of regions.");
                Err(ApiError::invalid_value(REGIONS_HEADER, message))
            }
        }
    }

    /// Whether a gateway has forwarded the request, or it is bound to regions: then it is not copied to
    /// shadow models.
    pub fn is_bound_or_forwarded(&self) -> bool {
        self.hops.is_some() || self.regions.is_some()
    }

    /// Use of kept answers: none for a client that names one replica or some regions.
    pub fn cache_policy(&self, headers: &HeaderMap) -> CachePolicy {
        let is_choosy = self.replica.is_some() || self.regions.is_some();
        if is_choosy { CachePolicy::Bypass } else { cache_policy(headers) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &str) -> Destination {
        let value = HeaderValue::from_str(value).expect("a value");
        Destination::of(&[(http::HeaderName::from_static(name), value)].into_iter().collect())
    }

    #[test]
    fn hops_and_regions_are_read_or_refused() {
        for (value, n) in
            [("0", Some(0)), ("1", Some(1)), ("255", Some(255)), ("256", None), ("-1", None), ("", None)]
        {
            assert_eq!(of(HOPS_HEADER, value).n_hops().ok(), n, "{value:?}");
        }
        for value in ["+1", "1, 1", "0x1", "1.0", "garbage"] {
            assert!(of(HOPS_HEADER, value).n_hops().is_err(), "{value:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(HOPS_HEADER, HeaderValue::from_static("0"));
        twice.append(HOPS_HEADER, HeaderValue::from_static("9"));
        assert!(Destination::of(&twice).n_hops().is_err());
        let many = ["a"; MAX_REGIONS + 1].join(",");
        for (value, names) in [
            ("eu", Some(&["eu"][..])),
            ("eu, us", Some(&["eu", "us"])),
            ("", None),
            ("eu,", None),
            ("e u", None),
            (&many, None),
        ] {
            let told = of(REGIONS_HEADER, value).regions().ok().flatten();
            let names = names.map(|names| names.iter().map(|&name| Region::from(name)).collect::<Vec<_>>());
            assert_eq!(told, names, "{value:?}");
        }
        let nothing = Destination::of(&HeaderMap::new());
        assert!(nothing.n_hops().is_ok_and(|n| n == 0) && nothing.regions().is_ok_and(|told| told.is_none()));
    }
}
