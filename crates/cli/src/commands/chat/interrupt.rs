//! Ctrl-C in a chat: it stops only the answer in progress. Does not know where answers are generated.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tokio::sync::Notify;

/// Exit status of a process that Ctrl-C ended.
pub const INTERRUPTED: i32 = 130;

/// Receives Ctrl-C as a signal, which a terminal sends while no line is edited.
#[derive(Debug, Clone)]
pub struct Interrupt {
    pressed: Arc<Notify>,
    is_answering: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts receiving Ctrl-C. Between answers Ctrl-C ends the process, except on a terminal, whose line
    /// editor handles the key.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn listen(is_terminal: bool) -> io::Result<Self> {
        // Registered before this returns: the task may first run after the first signal has come.
        #[cfg(unix)]
        let mut signals = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
        #[cfg(not(unix))]
        let mut signals = tokio::signal::windows::ctrl_c()?;
        let this = Self { pressed: Arc::default(), is_answering: Arc::default() };
        let of_task = this.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if of_task.is_answering.load(Ordering::Acquire) {
                    of_task.pressed.notify_one();
                } else if !is_terminal {
                    std::process::exit(INTERRUPTED);
                }
            }
        });
        Ok(this)
    }

    /// Waits for the answer; returns `None` if Ctrl-C is pressed first.
    pub async fn unless_pressed<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        // A Ctrl-C right after the end of the last answer must not stop this one.
        let _ = self.pressed.notified().now_or_never();
        self.is_answering.store(true, Ordering::Release);
        let ended = tokio::select! {
            answer = answer => Some(answer),
            () = self.pressed.notified() => None,
        };
        self.is_answering.store(false, Ordering::Release);
        ended
    }
}
