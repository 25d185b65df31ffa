//! Prevents core dumps of a server: they would contain keys and users' text. Does not know signals.

/// Filter of the mappings in core dumps of this process and its children.
#[cfg(target_os = "linux")]
const FILTER: &str = "/proc/self/coredump_filter";

/// Lowers the soft limit of core files to 0. On Linux also excludes all memory from core dumps, since
/// programs that collect them ignore the limit. The hard limit stays, so that an operator can allow core
/// dumps again: `prlimit --core=unlimited --pid PID` and `echo 0x33 > /proc/PID/coredump_filter`.
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
