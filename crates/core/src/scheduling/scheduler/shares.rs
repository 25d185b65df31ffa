//! Fair shares of sequences and blocks. While a tenant below its share waits, a tenant above its share loses
//! sequences: a tenant that filled the machine first cannot keep the others out until its requests end. Does
//! not choose the next tenant: [`super::fairness`] does.

use std::collections::BTreeSet;

use super::Scheduler;
use super::budget::StepBudget;
use crate::request::TenantId;
use crate::scheduling::block_table::blocks_for;
use crate::scheduling::sequence::{Running, Sequence};
use crate::timeline::request_trace::QueueCause;

/// Missing resource that keeps the next sequence from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// A place for a sequence in the batch.
    Sequence,
    /// Number of KV blocks missing.
    Blocks(usize),
}

impl Lack {
    /// The cause as `/explain` reports it.
    pub(super) fn cause(self) -> QueueCause {
        match self {
            Self::Sequence => QueueCause::Sequences,
            Self::Blocks(_) => QueueCause::Blocks,
        }
    }

    /// Amount of the resource that a running sequence holds.
    fn held_by(self, sequence: &Sequence<Running>) -> usize {
        match self {
            Self::Sequence => 1,
            Self::Blocks(_) => sequence.blocks().len(),
        }
    }
}

impl Scheduler {
    /// Cause that kept the next request from starting in the newest step, if one waits.
    pub fn queue_cause(&self) -> Option<QueueCause> {
        self.waiting.cause.filter(|_| !self.waiting.is_empty())
    }

    /// Preempts sequences in favour of the next tenant, if that tenant stays within its share (the whole
    /// divided by the tenants that run or wait) with this request, and another tenant, which was served more,
    /// is above its share. The victims are the least urgent sequences of the tenant that holds most. Returns
    /// false, and preempts nothing, if that would not be enough. A tenant cannot regain by this rule the
    /// sequences that it lost by it: it would be above its share again. The victims' tenant was served more,
    /// so the same sequence is still next, and now has the missing resources.
    pub(super) fn give_way(&mut self, lack: Lack, n_promised: &mut usize, budget: &mut StepBudget) -> bool {
        let Some((tenant, n_wanted)) = self.wanted_by_next(lack) else { return false };
        if self.running.iter().all(|sequence| sequence.request.tenant == tenant) {
            return false;
        }
        let share = self.share_of_each(lack);
        if self.held_in_all(&tenant, lack) + n_wanted > share {
            return false;
        }
        let holders: BTreeSet<&TenantId> = self.running.iter().map(|s| &s.request.tenant).collect();
        let most = holders.into_iter().map(|holder| (self.held_in_all(holder, lack), holder)).max();
        let Some((n_held, holder)) = most else { return false };
        // Otherwise what is preempted would go next itself.
        if self.waiting.served(holder) <= self.waiting.served(&tenant) {
            return false;
        }
        let victims = self.victims(lack, holder, n_held.saturating_sub(share));
        for &victim in &victims {
            *n_promised -= Scheduler::n_promised_blocks(&self.running[victim]);
            self.preempt(victim, budget);
        }
        !victims.is_empty()
    }

    /// Sequences of `holder`, which holds `n_above` more than its share, that must be preempted, the last
    /// ones first; empty if that is not enough.
    fn victims(&self, lack: Lack, holder: &TenantId, mut n_above: usize) -> Vec<usize> {
        let mut n_missing = match lack {
            Lack::Sequence => 1,
            Lack::Blocks(n) => n,
        };
        let mut victims = Vec::new();
        let own = self.running.iter().enumerate().rev().filter(|(_, s)| s.request.tenant == *holder);
        for (i, sequence) in own {
            if n_missing == 0 || n_above == 0 {
                break;
            }
            n_above = n_above.saturating_sub(lack.held_by(sequence));
            n_missing = n_missing.saturating_sub(match lack {
                Lack::Sequence => 1,
                // What it alone holds, what it was promised, and the block that is kept free for each that runs.
                Lack::Blocks(_) => self.n_own_blocks(sequence) + Scheduler::n_promised_blocks(sequence) + 1,
            });
            victims.push(i);
        }
        if n_missing > 0 { Vec::new() } else { victims }
    }

    fn n_own_blocks(&self, sequence: &Sequence<Running>) -> usize {
        sequence.blocks().iter().filter(|&&block| self.pool.n_references(block) == 1).count()
    }

    /// The next tenant, and the amount that its first sequence needs.
    fn wanted_by_next(&mut self, lack: Lack) -> Option<(TenantId, usize)> {
        let head = self.waiting.first_mut()?;
        let n_wanted = match lack {
            Lack::Sequence => 1,
            Lack::Blocks(_) => blocks_for(head.tokens().len() + 1),
        };
        Some((head.request.tenant.clone(), n_wanted))
    }

    /// Amount that each running or waiting tenant may hold while others need more.
    fn share_of_each(&self, lack: Lack) -> usize {
        let whole = match lack {
            Lack::Sequence => self.config.max_batch_sequences as usize,
            Lack::Blocks(_) => self.pool.n_total(),
        };
        (whole / self.n_tenants().max(1)).max(1)
    }

    /// Number of tenants that run or wait.
    pub(super) fn n_tenants(&self) -> usize {
        let running = self.running.iter().map(|sequence| &sequence.request.tenant);
        running.chain(self.waiting.tenants()).collect::<BTreeSet<_>>().len()
    }

    /// Amount that all running sequences of a tenant hold together.
    fn held_in_all(&self, tenant: &TenantId, lack: Lack) -> usize {
        let own = self.running.iter().filter(|sequence| sequence.request.tenant == *tenant);
        own.map(|sequence| lack.held_by(sequence)).sum()
    }
}
