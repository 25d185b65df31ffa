//! Ctrl-C in a chat: it stops the answer that is being written, and nothing else. Does not know what answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tokio::sync::Notify;

/// The status of a process that Ctrl-C ended.
pub const INTERRUPTED: i32 = 130;

/// Receives Ctrl-C as a signal, which a terminal sends while no line is edited.
#[derive(Debug, Clone)]
pub struct Interrupt {
    pressed: Arc<Notify>,
    is_answering: Arc<AtomicBool>,
}

impl Interrupt {
    /// Receives Ctrl-C from now on. While there is no answer it ends the process, unless lines come from a
    /// terminal, whose editor reads it as a key.
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

    /// Waits for an answer, or for Ctrl-C: then there is none.
    pub async fn unless_pressed<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        // One that came when the last answer had just ended stops no other.
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
