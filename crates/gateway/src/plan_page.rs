//! The page of a capacity plan, which the program around the gateway computes from its recording. Computed
//! for one caller at a time, and kept for a while.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Returns the page, in HTML; the error is a whole sentence with the reason why there is none yet. Runs on a
/// thread for blocking work.
pub type MakePlanPage = dyn Fn() -> Result<String, String> + Send + Sync;

/// Time for which a page is sent again.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// The page and the task that computes it.
pub(crate) struct PlanPage {
    make: Arc<MakePlanPage>,
    made: Mutex<Option<(Instant, Arc<str>)>>,
}

impl fmt::Debug for PlanPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanPage").finish_non_exhaustive()
    }
}

impl PlanPage {
    pub(crate) fn new(make: Arc<MakePlanPage>) -> Self {
        Self { make, made: Mutex::default() }
    }

    /// The page; callers wait for the one that is being made.
    pub(crate) async fn page(&self) -> Result<Arc<str>, String> {
        let mut made = self.made.lock().await;
        if let Some((at, page)) = &*made
            && at.elapsed() < KEPT_FOR
        {
            return Ok(Arc::clone(page));
        }
        let make = Arc::clone(&self.make);
        let page = tokio::task::spawn_blocking(move || make()).await;
        let page: Arc<str> = page.unwrap_or_else(|_| Err("The page could not be made.".to_owned()))?.into();
        *made = Some((Instant::now(), Arc::clone(&page)));
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_page_is_made_once_a_minute_and_a_failure_is_not_kept() {
        let n_made = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&n_made);
        let page = PlanPage::new(Arc::new(move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err("Too few steps.".to_owned()),
            n => Ok(format!("page {n}")),
        }));
        assert_eq!(page.page().await, Err("Too few steps.".to_owned()));
        assert_eq!(page.page().await.as_deref(), Ok("page 1"));
        assert_eq!(page.page().await.as_deref(), Ok("page 1"));
        tokio::time::advance(KEPT_FOR).await;
        assert_eq!(page.page().await.as_deref(), Ok("page 2"));
    }
}
