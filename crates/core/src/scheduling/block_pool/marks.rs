//! Marks: blocks that a client asked to keep, for a time after each use. They are a preference among cached
//! blocks and bounded: beyond the bound the tenant with the most marked blocks loses its own. Does not know
//! which blocks are cached.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::TenantId;
use crate::time::{Nanos, Timestamp};

/// Time since its last use for which an unmarked block is safe from a tenant with too many marked ones.
const FRESH: Nanos = Nanos::from_ms(300_000);

/// Number of a tenant with marked blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(u32);

/// Mark of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub owner: Owner,
    /// Time after the last use for which the block is kept.
    pub keep: Nanos,
}

/// Mark of a group of cached blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupMark {
    /// Never marked.
    None,
    /// Marked until a time.
    Until(Owner, Timestamp),
    /// Marked until a time that has passed.
    Expired,
}

/// Numbers of blocks whose content was dropped, by the mark that they had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EvictionCounters {
    /// Blocks that no client asked to keep.
    pub unmarked: u64,
    /// Blocks whose time was over.
    pub expired: u64,
    /// Marked blocks of the tenant with the most, while there were more than may be marked.
    pub over_share: u64,
    /// Marked blocks, because nothing else was left.
    pub marked: u64,
}

/// The marked blocks of each tenant.
#[derive(Debug)]
pub(super) struct Marks {
    /// Number of cached blocks that may be marked.
    max_cached: usize,
    by_tenant: BTreeMap<TenantId, Owner>,
    owners: Vec<Option<OwnerState>>,
    free: Vec<Owner>,
    /// Tenants with marked blocks that are cached, by their number.
    by_n_cached: BTreeSet<(usize, Owner)>,
    n_cached: usize,
}

#[derive(Debug)]
struct OwnerState {
    tenant: TenantId,
    /// Number of its marked blocks, used and cached.
    n_marked: usize,
    /// Number of them that are cached.
    n_cached: usize,
}

impl Marks {
    /// Creates the state of a pool in which at most `max_cached` cached blocks may be marked.
    pub fn new(max_cached: usize) -> Self {
        Self {
            max_cached,
            by_tenant: BTreeMap::new(),
            owners: Vec::new(),
            free: Vec::new(),
            by_n_cached: BTreeSet::new(),
            n_cached: 0,
        }
    }

    /// Whether marks have an effect.
    pub fn are_on(&self) -> bool {
        self.max_cached > 0
    }

    /// Number of cached blocks that are marked.
    pub fn n_cached(&self) -> usize {
        self.n_cached
    }

    /// The number of a tenant, which must be given back by [`Self::note_unmarked`] once for each block that
    /// [`Self::note_marked`] counted.
    pub fn owner(&mut self, tenant: &TenantId) -> Owner {
        if let Some(&owner) = self.by_tenant.get(tenant) {
            return owner;
        }
        let state = OwnerState { tenant: tenant.clone(), n_marked: 0, n_cached: 0 };
        let owner = match self.free.pop() {
            Some(owner) => owner,
            None => {
                self.owners.push(None);
                Owner(self.owners.len() as u32 - 1)
            }
        };
        self.owners[owner.0 as usize] = Some(state);
        self.by_tenant.insert(tenant.clone(), owner);
        owner
    }

    /// Notes that a block got a mark of this tenant.
    pub fn note_marked(&mut self, owner: Owner) {
        if let Some(state) = &mut self.owners[owner.0 as usize] {
            state.n_marked += 1;
        }
    }

    /// Notes that a block lost its mark.
    pub fn note_unmarked(&mut self, owner: Owner) {
        let Some(state) = &mut self.owners[owner.0 as usize] else { return };
        state.n_marked -= 1;
        self.forget_if_unused(owner);
    }

    /// Removes a tenant without marked blocks.
    pub fn forget_if_unused(&mut self, owner: Owner) {
        let slot = &mut self.owners[owner.0 as usize];
        if let Some(state) = slot.take_if(|state| state.n_marked == 0) {
            self.by_tenant.remove(&state.tenant);
            self.free.push(owner);
        }
    }

    /// Notes that a marked block is cached from now on.
    pub fn note_cached(&mut self, owner: Owner) {
        self.n_cached += 1;
        self.change_cached(owner, |n| n + 1);
    }

    /// Notes that a marked block is no longer cached, or no longer marked.
    pub fn note_not_cached(&mut self, owner: Owner) {
        self.n_cached -= 1;
        self.change_cached(owner, |n| n - 1);
    }

    fn change_cached(&mut self, owner: Owner, change: impl FnOnce(usize) -> usize) {
        let Some(state) = &mut self.owners[owner.0 as usize] else { return };
        self.by_n_cached.remove(&(state.n_cached, owner));
        state.n_cached = change(state.n_cached);
        if state.n_cached > 0 {
            self.by_n_cached.insert((state.n_cached, owner));
        }
    }

    /// The tenant whose marked blocks go first, if more blocks are marked than may be.
    pub fn over_share(&self) -> Option<Owner> {
        let (_, owner) = self.by_n_cached.last().filter(|_| self.n_cached > self.max_cached)?;
        Some(*owner)
    }

    /// Rank of a group of blocks: of two, the one with the smaller rank goes first.
    pub fn rank(&self, mark: GroupMark, last_use: Timestamp, now: Timestamp) -> u8 {
        match (mark, self.over_share()) {
            (GroupMark::Until(owner, _), over) => 2 * u8::from(over != Some(owner)),
            (GroupMark::None | GroupMark::Expired, None) => 0,
            (GroupMark::None | GroupMark::Expired, Some(_)) => u8::from(now.since(last_use) < FRESH),
        }
    }

    /// Counts a block whose content is dropped.
    pub fn count_eviction(&self, mark: GroupMark, counters: &mut EvictionCounters) {
        let counter = match mark {
            GroupMark::None => &mut counters.unmarked,
            GroupMark::Expired => &mut counters.expired,
            GroupMark::Until(owner, _) if self.over_share() == Some(owner) => &mut counters.over_share,
            GroupMark::Until(..) => &mut counters.marked,
        };
        *counter += 1;
    }

    /// Checks the counts against the marks of all blocks: each with whether the block is cached.
    ///
    /// # Errors
    /// The count that is wrong.
    pub fn check_invariants(&self, marks: impl Iterator<Item = (Owner, bool)>) -> Result<(), String> {
        let mut counts = vec![(0, 0); self.owners.len()];
        for (Owner(owner), is_cached) in marks {
            let (n_marked, n_cached) = &mut counts[owner as usize];
            *n_marked += 1;
            *n_cached += usize::from(is_cached);
        }
        let sum: usize = counts.iter().map(|(_, n_cached)| n_cached).sum();
        let n_tenants = counts.iter().filter(|(n_marked, _)| *n_marked > 0).count();
        if sum != self.n_cached || n_tenants != self.by_tenant.len() {
            return Err(format!("{sum} marked blocks of {n_tenants} tenants, counted {}", self.n_cached));
        }
        for (state, (n_marked, n_cached)) in self.owners.iter().zip(counts) {
            let counted = state.as_ref().map_or((0, 0), |state| (state.n_marked, state.n_cached));
            if counted != (n_marked, n_cached) {
                return Err(format!("{n_marked} marked blocks, {n_cached} cached: counted {counted:?}"));
            }
        }
        let is_listed = |&(n, owner): &(usize, Owner)| {
            self.owners[owner.0 as usize].as_ref().is_some_and(|state| state.n_cached == n)
        };
        if self.by_n_cached.iter().all(is_listed) { Ok(()) } else { Err("a tenant's rank is wrong".into()) }
    }
}
