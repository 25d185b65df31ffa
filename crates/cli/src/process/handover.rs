//! Hands the listening sockets of a server over to a successor process with the same command line, which may
//! be a newer binary (SIGUSR2). The successor gets them as systemd passes sockets, and reports on a separate
//! socket when it is ready. Does not know the protocols served.

use std::time::Duration;

#[cfg(unix)]
pub use of_unix::{Sockets, VARIABLE, is_successor, ready, start_successor};

#[cfg(not(unix))]
pub use elsewhere::{Sockets, is_successor, ready, start_successor};

#[cfg(not(unix))]
mod elsewhere {
    /// No sockets: this system does not support a handover.
    #[derive(Debug, Default)]
    pub struct Sockets;

    /// Fails: this system has no signal for a handover.
    ///
    /// # Errors
    /// Always: this system has no signal for a handover.
    pub async fn start_successor(_: &Sockets) -> Result<u32, String> {
        Err("not supported on this system".to_owned())
    }

    /// Returns false: this system does not support a handover.
    pub fn is_successor() -> bool {
        false
    }

    /// Does nothing: this process has no predecessor.
    pub fn ready() {}
}

/// Time limit until the successor is ready: it loads the model.
#[cfg(unix)]
const STARTUP_LIMIT: Duration = Duration::from_secs(600);

#[cfg(unix)]
mod of_unix {
    use std::fs::DirBuilder;
    use std::io::{self, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::fs::DirBuilderExt;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use command_fds::{CommandFdExt, FdMapping};
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;
    use tokio::process::{Child, Command};

    use super::STARTUP_LIMIT;

    /// Environment variable with the socket for the successor's readiness message.
    pub const VARIABLE: &str = "THRONG_HANDOVER_SOCKET";
    const READY: &[u8] = b"ready";
    /// First descriptor of the passed sockets, as defined by systemd.
    const FIRST_FD: i32 = 3;
    /// Script that sets `LISTEN_PID` and `WATCHDOG_PID` to the successor's process id, which is known only
    /// once it runs.
    const SCRIPT: &str = r#"LISTEN_PID=$$; export LISTEN_PID
[ -z "$WATCHDOG_PID" ] || { WATCHDOG_PID=$$; export WATCHDOG_PID; }
exec "$0" "$@""#;

    /// Listening sockets, in the order in which they are passed.
    #[derive(Debug, Default)]
    pub struct Sockets(Vec<OwnedFd>);

    impl Sockets {
        /// Adds a duplicate of a socket.
        ///
        /// # Errors
        /// When there are no more descriptors.
        pub fn add(&mut self, socket: impl AsFd) -> io::Result<()> {
            self.0.push(socket.as_fd().try_clone_to_owned()?);
            Ok(())
        }
    }

    /// A folder that only this user can enter; removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> io::Result<Self> {
            let name = format!("throng-{}-{:016x}", std::process::id(), fastrand::u64(..));
            let path = std::env::temp_dir().join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            Ok(Self(path))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A successor process; killed on drop unless it became ready.
    struct Successor(Option<Child>);

    impl Drop for Successor {
        fn drop(&mut self) {
            if let Some(child) = &mut self.0 {
                let _ = child.start_kill();
            }
        }
    }

    /// Starts a successor with these sockets and waits until it is ready. Returns its process id.
    ///
    /// # Errors
    /// When the successor does not become ready; it has then been killed. The message is the reason.
    pub async fn start_successor(sockets: &Sockets) -> Result<u32, String> {
        let said = |error: io::Error| error.to_string();
        if sockets.0.is_empty() {
            return Err("this process has no socket to hand over".to_owned());
        }
        let folder = Folder::new().map_err(said)?;
        let place = folder.0.join("ready");
        let listener = UnixListener::bind(&place).map_err(said)?;
        let mut command = std::process::Command::new("/bin/sh");
        command.arg("-c").arg(SCRIPT).args(std::env::args_os());
        command.env("LISTEN_FDS", sockets.0.len().to_string()).env(VARIABLE, &place);
        command.env_remove("LISTEN_FDNAMES").stdin(std::process::Stdio::null());
        let mapping =
            |(socket, child_fd): (&OwnedFd, i32)| Ok(FdMapping { parent_fd: socket.try_clone()?, child_fd });
        let mappings = sockets.0.iter().zip(FIRST_FD..).map(mapping).collect::<io::Result<Vec<_>>>();
        command.fd_mappings(mappings.map_err(said)?).map_err(|error| error.to_string())?;
        let mut successor = Successor(Some(Command::from(command).spawn().map_err(said)?));
        let child = successor.0.as_mut().ok_or("it was not started")?;
        let pid = child.id().ok_or("it ended at once")?;
        let told = async {
            let (mut stream, _) = listener.accept().await?;
            let mut words = [0; READY.len()];
            stream.read_exact(&mut words).await?;
            if words == READY { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidData)) }
        };
        tokio::select! {
            told = told => told.map_err(said)?,
            ended = child.wait() => return Err(match ended {
                Ok(status) => format!("it ended with {status}"),
                Err(error) => error.to_string(),
            }),
            () = tokio::time::sleep(STARTUP_LIMIT) => {
                return Err(format!("it was not ready within {} s", STARTUP_LIMIT.as_secs()));
            }
        }
        successor.0 = None;
        Ok(pid)
    }

    /// Whether this process is a successor, whose predecessor continues until it calls [`ready`].
    pub fn is_successor() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }

    /// Tells the predecessor process that this one is ready.
    pub fn ready() {
        let Some(place) = std::env::var_os(VARIABLE) else { return };
        let told = UnixStream::connect(place).and_then(|mut stream| stream.write_all(READY));
        if let Err(error) = told {
            tracing::warn!(%error, "cannot tell the process that this one takes over from");
        }
    }
}
