//! No core file of a server: it would hold keys and what users wrote. Does not know signals.

/// Lowers the soft limit of core files to 0. The hard one stays, so that `prlimit --core=unlimited --pid PID` allows them again.
pub fn forbid() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Core).maximum;
        if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
            tracing::warn!(%error, "cannot forbid core files");
        }
    }
}
