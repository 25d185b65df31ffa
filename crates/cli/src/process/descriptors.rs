//! Raises the process's limit of open descriptors, and computes how many connections it allows. Does not know
//! sockets.

/// Minimum number of descriptors reserved for the model's files, the listener, logs and the system
/// libraries.
const MIN_RESERVE: u64 = 64;
/// Divisor of the limit that gives the reserved descriptors, if that is more.
const RESERVE_PART: u64 = 16;

/// Raises the soft limit to the hard one and returns it; `None` if there is no limit.
pub fn raise_limit() -> Option<u64> {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if limit.current != limit.maximum
            && let Err(error) = setrlimit(Resource::Nofile, raised)
        {
            tracing::warn!(%error, "cannot raise the limit of open descriptors");
        }
        getrlimit(Resource::Nofile).current
    }
    #[cfg(not(unix))]
    None
}

/// The number of connections, at most `wanted`, that a limit of descriptors allows.
pub fn connections_within(limit: Option<u64>, wanted: usize) -> usize {
    let Some(limit) = limit else { return wanted };
    // If the reserve is more than half of the descriptors, half are left for connections.
    let reserve = MIN_RESERVE.max(limit / RESERVE_PART).min(limit / 2);
    wanted.min(usize::try_from(limit - reserve).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve_of_descriptors() {
        assert_eq!(connections_within(None, 16_384), 16_384);
        assert_eq!(connections_within(Some(1 << 20), 16_384), 16_384);
        assert_eq!(connections_within(Some(1024), 16_384), 960);
        assert_eq!(connections_within(Some(16_384), 16_384), 15_360);
        assert_eq!(connections_within(Some(1024), 100), 100);
        assert_eq!(connections_within(Some(20), 16_384), 10);
        assert_eq!(connections_within(Some(0), 16_384), 1);
    }

    #[cfg(unix)]
    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_limit();
        assert_eq!(raised, rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum);
    }
}
