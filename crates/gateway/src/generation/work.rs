//! Work that is too long for the threads that serve sockets: parsing, rendering, tokenizing and writing large
//! answers. It runs on blocking threads, a bounded number at a time, and stops when its client has
//! disconnected; only short work runs on the calling thread. Does not know the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tokenization_queue::{NoTurn, TokenizationQueue};
use crate::caller::Caller;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;
use throng_metering::observation::Stage;

/// Largest body that is parsed and prepared on a thread that serves sockets, which takes some tens of
/// microseconds.
const QUICK_BYTES: usize = 4 << 10;

/// Flag that is set when the client of some work has disconnected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    /// Whether the client has disconnected.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for work that reads it directly.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Stops the work if the client has disconnected.
    ///
    /// # Errors
    /// An error without a reader.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.is_set() { Err(ApiError::incomplete_body()) } else { Ok(()) }
    }
}

/// Sets the flag when the request's task is dropped, which happens when the client has disconnected.
struct AbandonOnDrop(Abandoned);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work`, which processes about `n_bytes` bytes, on a blocking thread in its turn. The place is
/// occupied until the work has ended, even if its client has disconnected.
///
/// # Errors
/// Errors of `work`; 503 when too many wait; 500 if it panics.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    turns: &TokenizationQueue,
    caller: &Caller,
    n_bytes: usize,
    work: impl FnOnce(&Abandoned) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let result = in_turn(turns, caller, n_bytes, work).await;
    caller.pass(Stage::Tokenized);
    result
}

/// Runs a part of the work before tokenization in the same way.
///
/// # Errors
/// The errors of [`on_blocking_thread`].
pub(crate) async fn in_turn<T: Send + 'static>(
    turns: &TokenizationQueue,
    caller: &Caller,
    n_bytes: usize,
    work: impl FnOnce(&Abandoned) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let turn = turns.take(&caller.tenant(), n_bytes).await.map_err(no_turn)?;
    caller.pass(Stage::Turn);
    let abandoned = Abandoned::default();
    let _abandons = AbandonOnDrop(abandoned.clone());
    let done = tokio::task::spawn_blocking(move || {
        let result = abandoned.check().and_then(|()| work(&abandoned));
        drop(turn);
        result
    });
    done.await.map_err(|_| ApiError::internal_error(caller.id_text()))?
}

/// Parses a body of `n_bytes` bytes and prepares the request. Short bodies are parsed on this thread, and
/// prepared on it if that `is_quick`: handing such work to another thread would take longer than the work,
/// and no turn is needed, since no more of it runs at a time than there are threads that serve sockets.
/// Other work runs [on a blocking thread](in_turn).
///
/// # Errors
/// Errors of `read` and `prepare`; those of [`on_blocking_thread`].
pub(crate) async fn read_and_prepare<R: Send + 'static, T: Send + 'static>(
    turns: &TokenizationQueue,
    caller: &Caller,
    n_bytes: usize,
    read: impl FnOnce() -> Result<R, ApiError> + Send + 'static,
    is_quick: impl FnOnce(&R) -> bool,
    prepare: impl FnOnce(R, &Abandoned) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if n_bytes > QUICK_BYTES {
        return in_turn(turns, caller, n_bytes, |abandoned| prepare(read()?, abandoned)).await;
    }
    let read = read()?;
    if !is_quick(&read) {
        return in_turn(turns, caller, n_bytes, |abandoned| prepare(read, abandoned)).await;
    }
    caller.pass(Stage::Turn);
    prepare(read, &Abandoned::default())
}

fn no_turn(reason: NoTurn) -> ApiError {
    let message = match reason {
        NoTurn::Full => "Too many requests wait to be tokenized.",
        NoTurn::TimedOut => "The request waited too long to be tokenized.",
    };
    ApiError::overloaded(message, retry_after_s())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use http::HeaderMap;

    use super::*;

    #[tokio::test]
    async fn a_place_is_taken_until_the_work_has_ended_though_its_client_has_gone() {
        let turns = TokenizationQueue::new(1, 512, Duration::from_secs(30));
        let caller = Caller::new(&HeaderMap::new(), "");
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel();
        let mut first = Box::pin(on_blocking_thread(&turns, &caller, 1, move |abandoned| {
            begun.send(()).expect("the test listens");
            may_end.recv().expect("the test tells");
            Ok(abandoned.is_set())
        }));
        assert!((&mut first).now_or_never().is_none());
        has_begun.recv().expect("it begins");
        drop(first);
        let mut second = Box::pin(on_blocking_thread(&turns, &caller, 1, |abandoned| Ok(abandoned.is_set())));
        assert!((&mut second).now_or_never().is_none());
        assert!(turns.take(&caller.tenant(), 1).now_or_never().is_none(), "the only place is taken");
        end.send(()).expect("the work waits");
        assert!(!second.await.expect("its turn comes"));
    }

    #[tokio::test]
    async fn only_what_is_short_and_quick_needs_no_turn() {
        let turns = TokenizationQueue::new(1, 512, Duration::from_secs(30));
        let caller = Caller::new(&HeaderMap::new(), "");
        let short = turns.take(&caller.tenant(), 1).await.expect("the only place");
        let long = turns.take(&caller.tenant(), usize::MAX).await.expect("the only place of its line");
        let prepared = |n_bytes, is_quick| {
            let prepare = |n: u32, _: &Abandoned| Ok(n + 1);
            let prepared = read_and_prepare(&turns, &caller, n_bytes, || Ok(1), move |_| is_quick, prepare);
            prepared.now_or_never().map(|result| result.expect("nothing fails"))
        };
        assert_eq!(prepared(QUICK_BYTES, true), Some(2));
        assert_eq!(prepared(QUICK_BYTES, false), None);
        assert_eq!(prepared(QUICK_BYTES + 1, true), None);
        drop((short, long));
        let prepare = |n: u32, _: &Abandoned| Ok(n + 1);
        let later = read_and_prepare(&turns, &caller, QUICK_BYTES, || Ok(1), |_| false, prepare);
        assert_eq!(later.await.expect("its turn comes"), 2);
    }
}
