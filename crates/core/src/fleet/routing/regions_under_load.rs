//! Tests of the choice between regions under random loads, distances and residency rules. A failing seed is
//! printed.

use fastrand::Rng;

use super::*;
use crate::scheduling::StepTime;
use crate::time::{Nanos, Timestamp};

const NOW: Timestamp = Timestamp::from_ns(0);
const N_SCHEDULES: u64 = 20_000;

#[test]
fn no_other_region_would_answer_sooner_and_no_rule_is_broken() {
    let first = fastrand::u64(..);
    let (mut n_spilled, mut n_stayed, mut n_refused) = (0, 0, 0);
    for seed in (0..N_SCHEDULES).map(|n| first.wrapping_add(n)) {
        let mut rng = Rng::with_seed(seed);
        let names: [Region; 3] = ["home", "near", "far"].map(Region::from);
        let policy = Policy::ALL[rng.usize(..Policy::ALL.len())];
        let mut router = Router::new(policy, seed).at(Some(names[0].clone()));
        let distances = [0, rng.u64(1..20), rng.u64(20..200)].map(Nanos::from_ms);
        let mut replicas = Vec::new();
        for idx in 0..rng.usize(1..8) {
            let id = router.add(&idx.to_string(), PrefixIndex::Inferred, 8);
            let region = rng.usize(..4);
            router.set_region(id, names.get(region).cloned());
            if let Some(distance) = distances.get(region) {
                router.measured(id, Nanos(distance.0 + rng.u64(..1_000)));
                router.measured(id, *distance);
            }
            let n_queued_tokens = if rng.bool() { 0 } else { rng.u64(..4_000) };
            let step_time = StepTime::default();
            router.report(id, LoadReport { n_queued_tokens, step_time, ..LoadReport::default() }, NOW);
            // A replica without a region stands alone, at an unknown distance.
            let way = distances.get(region).copied().unwrap_or(UNMEASURED);
            replicas.push((id, region, step_time.prefill(n_queued_tokens + 10, 0).0 + way.0));
        }
        let permitted: Option<Vec<Region>> =
            rng.bool().then(|| names.iter().filter(|_| rng.bool()).cloned().collect());
        let may = |region: usize| match &permitted {
            None => true,
            Some(regions) => names.get(region).is_some_and(|name| regions.contains(name)),
        };
        let eligible: Vec<_> = replicas.iter().map(|(id, ..)| *id).collect();
        let regions = permitted.as_deref();
        let query =
            Query { n_tokens: 10, blocks: &[], session: None, pinned: None, eligible: &eligible, regions };
        let chosen = router.choose(&query, NOW);
        let soonest = replicas.iter().filter(|(_, region, _)| may(*region)).min_by_key(|(.., at)| *at);
        let (Some(choice), Some((_, _, best))) = (chosen, soonest) else {
            assert!(chosen.is_none() && soonest.is_none(), "seed {seed}: {chosen:?}, {soonest:?}");
            n_refused += 1;
            continue;
        };
        let (_, region, _) = replicas.iter().find(|(id, ..)| *id == choice.replica).expect("one of them");
        assert!(may(*region), "seed {seed}: {choice:?} breaks {permitted:?}");
        let of_region = replicas.iter().filter(|(_, other, _)| other == region).map(|(.., at)| *at).min();
        assert_eq!(of_region, Some(*best), "seed {seed}: another region than {region} answers sooner");
        let has_nearer = replicas.iter().any(|(_, other, _)| other < region && may(*other));
        *(if has_nearer { &mut n_spilled } else { &mut n_stayed }) += 1;
    }
    assert!(n_spilled > 100 && n_stayed > 100 && n_refused > 100, "first seed {first}: too alike");
}
