//! One download of a model at a time, watched by any number of requests. It continues when they have gone,
//! and a later request for the same model watches it. Does not know where models come from.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Progress of a file's download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileProgress {
    /// Name of the file.
    pub file: Arc<str>,
    /// Bytes already on this machine.
    pub done_bytes: u64,
    /// Bytes of the whole file.
    pub total_bytes: u64,
}

/// Reason why a model is not downloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullFault {
    /// The operator does not allow it.
    #[error("this server brings no models into its cache; its operator can allow it with --max-pulled-bytes")]
    Forbidden,
    /// The name is not that of a model of the hub.
    #[error("{0:?} is no model of the hub: name it ORG/NAME, or ORG/NAME:Q4_K_M for one of its GGUF files")]
    NotAModel(String),
    /// The files of the model exceed the rest of the operator's bound.
    #[error("{file} has {n_bytes} bytes, and --max-pulled-bytes leaves {left_bytes} for models")]
    NoRoom {
        /// The first file that does not fit.
        file: String,
        /// Size of the file.
        n_bytes: u64,
        /// Bytes that the bound still permits.
        left_bytes: u64,
    },
    /// Too many models were downloaded since the server started; the number is the loader's bound.
    #[error("{0} models were brought since the server began, and it takes no more")]
    TooMany(usize),
    /// The hub does not have the model, or the download failed.
    #[error("{0}")]
    Failed(String),
}

impl From<PullFault> for ApiError {
    fn from(fault: PullFault) -> Self {
        let reason = fault.to_string();
        match fault {
            PullFault::Forbidden => Self::pull_forbidden(&reason),
            PullFault::NotAModel(_) => Self::invalid_value("model", format!("{reason}.")),
            PullFault::NoRoom { .. } | PullFault::TooMany(_) => Self::no_room_for_model(&reason),
            PullFault::Failed(_) => Self::pull_failed(&reason),
        }
    }
}

/// State of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PullState {
    /// The list of files is requested.
    Listing,
    /// A file is being downloaded.
    File(FileProgress),
    /// The download has ended, with its result.
    Ended(Result<(), PullFault>),
}

/// The running download, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    running: Mutex<Option<(String, watch::Receiver<PullState>)>>,
}

impl Pulls {
    /// Watches the download of `name`, which `pull` runs on a thread of its own unless it runs already.
    ///
    /// # Errors
    /// 503 while another download runs.
    pub fn watch(
        &self,
        name: &str,
        pull: impl FnOnce(&str, &mut dyn FnMut(FileProgress)) -> Result<(), PullFault> + Send + 'static,
    ) -> Result<watch::Receiver<PullState>, ApiError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, state)) = running.as_ref()
            && state.has_changed().is_ok()
        {
            return match other == name {
                true => Ok(state.clone()),
                false => Err(ApiError::pull_in_progress(other, retry_after_s())),
            };
        }
        let (tell, state) = watch::channel(PullState::Listing);
        let owned = name.to_owned();
        tokio::task::spawn_blocking(move || {
            tracing::info!(model = owned, "bringing a model into the cache");
            let mut report = |progress| drop(tell.send_replace(PullState::File(progress)));
            let ended = pull(&owned, &mut report);
            match &ended {
                Ok(()) => tracing::info!(model = owned, "brought a model into the cache"),
                Err(fault) => tracing::warn!(model = owned, %fault, "a model was not brought"),
            }
            tell.send_replace(PullState::Ended(ended));
        });
        *running = Some((name.to_owned(), state.clone()));
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn end_of(mut state: watch::Receiver<PullState>) -> PullState {
        let ended = state.wait_for(|state| matches!(state, PullState::Ended(_))).await;
        ended.expect("it ends").clone()
    }

    #[tokio::test]
    async fn one_model_is_brought_at_a_time_and_watched_by_all_who_ask_for_it() {
        let pulls = Pulls::default();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let first = pulls.watch("a", move |_, report| {
            report(FileProgress { file: "f".into(), done_bytes: 1, total_bytes: 2 });
            let _ = wait.recv();
            Err(PullFault::Failed("no".to_owned()))
        });
        let first = first.expect("nothing runs");
        let second = pulls.watch("a", |_, _| panic!("it runs already")).expect("watched");
        let busy = pulls.watch("b", |_, _| Ok(())).expect_err("another one runs");
        assert_eq!((busy.code(), busy.status().as_u16()), ("pull_in_progress", 503));
        drop(go);
        let failed = PullState::Ended(Err(PullFault::Failed("no".to_owned())));
        assert_eq!((end_of(first).await, end_of(second).await), (failed.clone(), failed));
        // The thread may still hold its end of the channel.
        let third = loop {
            match pulls.watch("b", |_, _| Ok(())) {
                Ok(state) => break state,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!(end_of(third).await, PullState::Ended(Ok(())));
    }
}
