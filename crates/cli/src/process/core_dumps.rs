//! No core file of a server: it would hold keys and what users wrote. Does not know signals.

/// Which mappings a core file has, of this process and those that it starts.
#[cfg(target_os = "linux")]
const FILTER: &str = "/proc/self/coredump_filter";

/// Lowers the soft limit of core files to 0, and on Linux leaves all memory out of what programs get that
/// collect core files (these do not heed the limit). The hard limit stays, so that an operator who has to can
/// allow them again: `prlimit --core=unlimited --pid PID` and `echo 0x33 > /proc/PID/coredump_filter`.
pub fn forbid() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Core).maximum;
        if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
            tracing::warn!(%error, "cannot forbid core files");
        }
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = std::fs::write(FILTER, "0") {
        // A kernel without core files has no such file.
        tracing::debug!(%error, "cannot leave memory out of core files");
    }
}
