//! Signals to a server: the first SIGTERM or SIGINT starts a graceful shutdown, the second ends the process
//! at once; SIGUSR2 starts a successor process; SIGHUP is ignored. A dedicated thread receives them, so
//! that a blocked runtime does not delay them. Does not know what a shutdown does.

use std::fmt;
use std::io;
use std::sync::{Arc, mpsc};

use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};

use crate::process::logging;

/// A signal that ends the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// SIGINT: Ctrl-C in a terminal.
    Interrupt,
    /// SIGTERM: systemd, Kubernetes, `kill`.
    Terminate,
}

impl Ending {
    /// The exit status that shells report for a process ended by this signal.
    fn status(self) -> i32 {
        match self {
            Self::Interrupt => 128 + 2,
            Self::Terminate => 128 + 15,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Receiver of signals. The first signal to end completes [`Signals::told_to_end`]; the second one ends the
/// process.
#[derive(Debug, Clone)]
pub struct Signals {
    told: watch::Receiver<Option<Ending>>,
    hand_over: Arc<Notify>,
}

impl Signals {
    /// Starts receiving signals.
    ///
    /// # Errors
    /// When signals cannot be received, or no thread can be started.
    pub fn listen() -> io::Result<Self> {
        let (tell, told) = watch::channel(None);
        let (started, is_started) = mpsc::channel();
        let hand_over = Arc::<Notify>::default();
        let of_thread = hand_over.clone();
        let receive = move || match start(of_thread) {
            Ok((runtime, arriving)) => {
                let _ = started.send(Ok(()));
                runtime.block_on(receive(arriving, tell));
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        std::thread::Builder::new().name("throng-signals".into()).spawn(receive)?;
        is_started.recv().map_err(io::Error::other)??;
        Ok(Self { told, hand_over })
    }

    /// Completes on each SIGUSR2, which asks for a successor process.
    pub async fn told_to_hand_over(&self) {
        self.hand_over.notified().await;
    }

    /// Completes with the first signal that ends the server.
    pub async fn told_to_end(&self) -> Ending {
        let mut told = self.told.clone();
        let first = told.wait_for(Option::is_some).await.ok().and_then(|ending| *ending);
        match first {
            Some(ending) => ending,
            // The thread keeps the sender as long as the process lives.
            None => std::future::pending().await,
        }
    }
}

/// Turns a file that exceeds the process's size limit (`ulimit -f`, `LimitFSIZE=`) into an error of the
/// write; SIGXFSZ would end the process by default. Must be called inside of a runtime.
pub fn outlive_file_size_limit() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // The handler stays as long as the process lives.
        let received = signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()));
        if let Err(error) = received {
            tracing::warn!(%error, "SIGXFSZ cannot be received: a file that grows too large ends the process");
        }
    }
}

fn start(hand_over: Arc<Notify>) -> io::Result<(Runtime, Arriving)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let arriving = {
        let _inside = runtime.enter();
        Arriving::new(hand_over)?
    };
    Ok((runtime, arriving))
}

async fn receive(mut arriving: Arriving, tell: watch::Sender<Option<Ending>>) {
    tell.send_replace(Some(arriving.next().await));
    let again = arriving.next().await;
    logging::last_words(&format!("{again}: a second signal ends the server at once"));
    std::process::exit(again.status());
}

#[cfg(unix)]
struct Arriving {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    user_2: tokio::signal::unix::Signal,
    hand_over: Arc<Notify>,
}

#[cfg(unix)]
impl Arriving {
    fn new(hand_over: Arc<Notify>) -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            user_2: signal(SignalKind::user_defined2())?,
            hand_over,
        })
    }

    async fn next(&mut self) -> Ending {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return Ending::Interrupt,
                _ = self.terminate.recv() => return Ending::Terminate,
                _ = self.user_2.recv() => self.hand_over.notify_one(),
                _ = self.hang_up.recv() => tracing::info!("SIGHUP is ignored"),
            }
        }
    }
}

#[cfg(not(unix))]
struct Arriving;

#[cfg(not(unix))]
impl Arriving {
    fn new(_: Arc<Notify>) -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> Ending {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Ending::Interrupt
    }
}
