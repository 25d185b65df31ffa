//! Finds batches that wait, and those whose runner has died, and answers them. Several gateways that share a
//! database each have a runner; which one answers a batch is decided by its lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use throng_store::{ClaimBeat, Lease, ObjectKey, PendingObject, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::context::{Context, RunnerSettings, stopped};
use super::work::work;
use super::{Answerer, BatchForm};

/// Maximum number of waiting batches of each form that are checked.
const MAX_SEEN: usize = 1_000;
/// Pause between two deletions of expired objects.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of steps of a deletion of expired objects.
const MAX_FORGET_STEPS: usize = 100;

/// Task that answers batches.
#[derive(Debug)]
pub struct Runner {
    context: Context,
    /// Last renewals of other runners' leases, and since when they are unchanged.
    beats: HashMap<ObjectKey, (ClaimBeat, Instant)>,
    running: JoinSet<ObjectKey>,
    /// Keys of the batches that run in this process.
    own: Vec<ObjectKey>,
}

impl Runner {
    /// Creates a runner that ends when `stop` becomes true.
    pub fn new(
        store: Arc<dyn Store>,
        answerer: Arc<dyn Answerer>,
        settings: RunnerSettings,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let context = Context { store, answerer, settings, stop };
        Self { context, beats: HashMap::new(), running: JoinSet::new(), own: Vec::new() }
    }

    /// Answers batches until the process is ending. Then the leases are released, so that another process
    /// continues at once.
    pub async fn run(mut self) {
        let mut stop = self.context.stop.clone();
        let mut forget_at = Instant::now();
        while !*stop.borrow() {
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "the database of batches does not answer");
            }
            if Instant::now() >= forget_at {
                self.forget().await;
                forget_at = Instant::now() + FORGET_INTERVAL;
            }
            tokio::select! {
                () = sleep(self.context.settings.beat_interval()) => {}
                Some(ended) = self.running.join_next() => self.ended(ended),
                () = stopped(&mut stop) => break,
            }
        }
        while let Some(ended) = self.running.join_next().await {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Result<ObjectKey, tokio::task::JoinError>) {
        match ended {
            Ok(key) => self.own.retain(|own| *own != key),
            Err(error) => {
                tracing::error!(%error, "the work of a batch ended by itself; it is taken up again");
                if self.running.is_empty() {
                    self.own.clear();
                }
            }
        }
    }

    /// Claims batches while there is room, first those of tenants without a running one.
    async fn look(&mut self) -> Result<(), StoreError> {
        let mut found = Vec::new();
        for form in BatchForm::ALL {
            let pending = self.context.store.pending_objects(form.kind(), 0, MAX_SEEN).await?;
            found.extend(pending.into_iter().map(|pending| (form, pending)));
        }
        found.retain(|(_, pending)| !self.own.contains(&pending.key));
        self.beats.retain(|key, _| found.iter().any(|(_, pending)| pending.key == *key));
        for is_first in [true, false] {
            for (form, pending) in &found {
                if self.running.len() >= self.context.settings.max_batches {
                    break;
                }
                let has_running = self.own.iter().any(|own| own.tenant == pending.key.tenant);
                if !self.own.contains(&pending.key) && has_running != is_first {
                    self.take_up(*form, pending).await?;
                }
            }
        }
        Ok(())
    }

    async fn take_up(&mut self, form: BatchForm, pending: &PendingObject) -> Result<(), StoreError> {
        let dead = match &pending.beat {
            None => None,
            Some(beat) => match self.beats.get(&pending.key) {
                Some((seen, since)) if seen == beat => {
                    if since.elapsed() < self.context.settings.dead_after {
                        return Ok(());
                    }
                    Some(beat)
                }
                _ => {
                    self.beats.insert(pending.key.clone(), (beat.clone(), Instant::now()));
                    return Ok(());
                }
            },
        };
        let owner = Uuid::new_v4().simple().to_string();
        if self.context.store.claim_object(&pending.key, &owner, dead).await? == Lease::Granted {
            if dead.is_some() {
                tracing::info!(batch = pending.key.id, "a batch whose runner has died is taken over");
            }
            self.own.push(pending.key.clone());
            let (context, key) = (self.context.clone(), pending.key.clone());
            self.running.spawn(async move {
                work(context, form, &key, owner).await;
                key
            });
        }
        Ok(())
    }

    /// Deletes expired objects.
    async fn forget(&self) {
        for _ in 0..MAX_FORGET_STEPS {
            match self.context.store.forget_objects().await {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return tracing::warn!(%error, "what has expired cannot be deleted now"),
            }
        }
    }
}
