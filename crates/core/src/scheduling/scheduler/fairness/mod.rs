//! Order of waiting sequences: the tenant that was served least comes first (virtual token counters, Sheng
//! et al., OSDI'24); within a tenant the smallest rank, which is priority, then arrival. A priority never
//! counts against another tenant. Does not know blocks and budgets.

mod low_share;
mod masks;

use std::collections::BTreeMap;

use crate::request::TenantId;
use crate::scheduling::sequence::{Rank, Sequence, Waiting};
use crate::timeline::request_trace::QueueCause;

pub(super) use low_share::LowShareTenants;
pub use masks::{MaskReport, SLOW_MASKS, SLOW_MASKS_REMEMBERED};
pub(super) use masks::{SlowMasks, has_others};

/// Cost of one prompt token. An output token costs twice as much, as in the paper.
const PROMPT_TOKEN_COST: u64 = 1;
const OUTPUT_TOKEN_COST: u64 = 2;

/// Maximum number of tenants without waiting sequences whose service is kept.
const MAX_IDLE_TENANTS: usize = 1024;

/// Waiting sequences, and the service that each tenant has had.
#[derive(Debug, Default)]
pub struct WaitingQueue {
    tenants: BTreeMap<TenantId, Tenant>,
    n_sequences: usize,
    /// Service level below which no new or returning tenant starts, so that absence saves up no credit.
    floor: u64,
    /// Cause that kept the next sequence from starting in the newest step.
    pub(super) cause: Option<QueueCause>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Service that the tenant has received, in token costs.
    served: u64,
    queue: BTreeMap<Rank, Sequence<Waiting>>,
}

impl WaitingQueue {
    /// Number of waiting sequences.
    pub fn len(&self) -> usize {
        self.n_sequences
    }

    /// Whether no sequence waits.
    pub fn is_empty(&self) -> bool {
        self.n_sequences == 0
    }

    /// Number of waiting sequences of a tenant.
    pub fn len_of(&self, tenant: &TenantId) -> usize {
        self.tenants.get(tenant).map_or(0, |tenant| tenant.queue.len())
    }

    /// Tenants with waiting sequences.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.tenants.iter().filter(|(_, tenant)| !tenant.queue.is_empty()).map(|(id, _)| id)
    }

    /// Service that a tenant has received.
    pub fn served(&self, tenant: &TenantId) -> u64 {
        self.tenants.get(tenant).map_or(self.floor, |tenant| tenant.served)
    }

    /// Adds a sequence that has arrived or was paused.
    pub fn insert(&mut self, sequence: Sequence<Waiting>) {
        let floor = self.floor;
        let tenant = self.tenants.entry(sequence.request.tenant.clone()).or_default();
        if tenant.queue.is_empty() {
            tenant.served = tenant.served.max(floor);
        }
        self.put_back(sequence);
        self.bound_idle_tenants();
    }

    /// Adds a sequence that waited before, without raising its tenant's service to the floor.
    pub fn put_back(&mut self, sequence: Sequence<Waiting>) {
        let tenant = self.tenants.entry(sequence.request.tenant.clone()).or_default();
        let before = tenant.queue.insert(sequence.rank, sequence);
        assert!(before.is_none(), "two sequences of one rank");
        self.n_sequences += 1;
    }

    /// The sequence that is next.
    pub fn first_mut(&mut self) -> Option<&mut Sequence<Waiting>> {
        let tenant = self.first_tenant()?.clone();
        Some(self.tenants.get_mut(&tenant)?.queue.first_entry()?.into_mut())
    }

    /// Takes the next sequence.
    pub fn take_first(&mut self) -> Option<Sequence<Waiting>> {
        let id = self.first_tenant()?.clone();
        let tenant = self.tenants.get_mut(&id)?;
        let (_, sequence) = tenant.queue.pop_first()?;
        self.floor = self.floor.max(tenant.served);
        self.n_sequences -= 1;
        Some(sequence)
    }

    /// Takes the sequence with this rank, if it waits.
    pub fn remove(&mut self, tenant: &TenantId, rank: Rank) -> Option<Sequence<Waiting>> {
        let sequence = self.tenants.get_mut(tenant)?.queue.remove(&rank)?;
        self.n_sequences -= 1;
        Some(sequence)
    }

    /// Charges `tenant` for `n_tokens` computed prompt tokens.
    pub fn charge_prompt(&mut self, tenant: &TenantId, n_tokens: usize) {
        self.charge(tenant, n_tokens as u64 * PROMPT_TOKEN_COST);
    }

    /// Charges `tenant` for an output token.
    pub fn charge_output(&mut self, tenant: &TenantId) {
        self.charge(tenant, OUTPUT_TOKEN_COST);
    }

    /// Charges `tenant` for output tokens.
    pub fn charge_outputs(&mut self, tenant: &TenantId, n_tokens: u64) {
        if n_tokens > 0 {
            self.charge(tenant, n_tokens * OUTPUT_TOKEN_COST);
        }
    }

    /// Resets the service of all tenants, for when none has sequences any more.
    pub fn forget_service(&mut self) {
        self.tenants.retain(|_, tenant| !tenant.queue.is_empty());
        self.floor = 0;
        for tenant in self.tenants.values_mut() {
            tenant.served = 0;
        }
    }

    /// Charges a tenant this cost.
    pub fn charge(&mut self, id: &TenantId, cost: u64) {
        match self.tenants.get_mut(id) {
            Some(tenant) => tenant.served += cost,
            None => {
                let served = self.floor + cost;
                self.tenants.insert(id.clone(), Tenant { served, queue: BTreeMap::new() });
                self.bound_idle_tenants();
            }
        }
    }

    fn first_tenant(&self) -> Option<&TenantId> {
        let heads = self.tenants.iter().filter_map(|(id, tenant)| {
            let (rank, _) = tenant.queue.first_key_value()?;
            Some((tenant.served, rank.arrival, rank.index, id))
        });
        heads.min().map(|(.., id)| id)
    }

    fn bound_idle_tenants(&mut self) {
        if self.tenants.len() <= MAX_IDLE_TENANTS {
            return;
        }
        let floor = self.floor;
        self.tenants.retain(|_, tenant| !tenant.queue.is_empty() || tenant.served > floor);
        let idle = self.tenants.iter().filter(|(_, tenant)| tenant.queue.is_empty());
        if idle.clone().count() > MAX_IDLE_TENANTS {
            let least_served = idle.min_by_key(|(_, tenant)| tenant.served).map(|(id, _)| id.clone());
            least_served.map(|id| self.tenants.remove(&id));
        }
    }
}
