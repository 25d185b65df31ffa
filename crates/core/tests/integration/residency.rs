//! Residency of models on demand: which one makes room, and when an idle one leaves.

use std::time::Duration;

use throng_core::fleet::{Residency, Standing, Step};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_one_unused_for_longest_makes_room() {
    let mut models = Residency::new([40, 40, 40, 200], 100);
    for (model, at) in [(0, 1), (1, 2)] {
        assert_eq!(models.wanted(model, s(at), |_| true), Step::Load);
        assert_eq!(models.wanted(model, s(at), |_| true), Step::Wait);
        models.loaded(model, Some(45), s(at));
    }
    assert_eq!(models.wanted(0, s(3), |_| true), Step::Ask);
    assert_eq!(models.wanted(2, s(10), |model| model != 1), Step::Unload(0), "1 has requests");
    assert_eq!(models.wanted(2, s(10), |_| true), Step::Wait);
    assert_eq!(models.wanted(0, s(10), |_| true), Step::Wait, "it leaves");
    models.left(0);
    assert_eq!(models.wanted(2, s(11), |_| true), Step::Load);
    models.loaded(2, None, s(11));
    assert_eq!(models.standing(2), Standing::Absent);
    assert_eq!(models.wanted(3, s(12), |_| false), Step::Wait, "nobody can go");
    assert_eq!(models.wanted(3, s(12), |_| true), Step::Unload(1));
    models.left(1);
    assert_eq!(models.wanted(3, s(13), |_| true), Step::Load, "too large, but alone");
}

#[test]
fn idle_models_go_and_used_ones_stay() {
    let mut models = Residency::new([1, 1], u64::MAX);
    for model in [0, 1] {
        assert_eq!(models.wanted(model, s(0), |_| true), Step::Load);
        models.loaded(model, Some(1), s(0));
    }
    assert_eq!(models.idle_for(s(10), s(5), |_| true), None);
    assert_eq!(models.idle_for(s(10), s(12), |model| model == 0), Some(0));
    assert_eq!(models.idle_for(s(10), s(15), |_| true), None, "1 was in use at 12");
    assert!(!models.leave(0) && models.leave(1) && !models.leave(1));
}

#[test]
fn a_request_sets_how_long_its_model_stays() {
    let mut models = Residency::new([1, 1], u64::MAX);
    for model in [0, 1] {
        assert_eq!(models.wanted(model, s(0), |_| true), Step::Load);
        models.loaded(model, Some(1), s(0));
    }
    assert_eq!([0, 1].map(|model| models.leaves_at(model, s(10))), [Some(s(10)); 2]);
    models.keep(0, Duration::MAX);
    models.keep(1, Duration::ZERO);
    assert_eq!([0, 1].map(|model| models.leaves_at(model, s(10))), [None, Some(s(1))], "0 stays");
    assert_eq!(models.idle_for(s(10), s(2), |model| model == 0), None, "1 has requests");
    assert_eq!(models.leaves_at(1, s(10)), Some(s(3)), "it was in use at 2");
    assert_eq!(models.idle_for(s(10), s(4), |_| true), Some(1));
    assert_eq!(models.idle_for(s(10), s(1000), |_| true), None, "0 stays");
    models.left(1);
    assert_eq!(models.wanted(1, s(1001), |_| true), Step::Load);
    models.loaded(1, Some(1), s(1001));
    assert_eq!(models.idle_for(s(10), s(1005), |_| true), None, "the usual time holds again");
}

/// Random requests, ends of loads and unloads: the bound holds unless a larger model is alone, and
/// every waiting request is served.
#[test]
fn random_schedules_keep_the_bound_and_come_to_an_end() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..2_000 {
        let sizes: Vec<u64> = (0..random.usize(1..6)).map(|_| random.u64(1..60)).collect();
        let max_bytes = random.u64(1..100);
        let mut models = Residency::new(sizes.clone(), max_bytes);
        let (mut now, mut busy) = (s(0), vec![false; sizes.len()]);
        let mut waiting: Vec<usize> = Vec::new();
        for step in 0..400 {
            now += Duration::from_millis(random.u64(0..2_000));
            if step < 200 && random.bool() {
                waiting.push(random.usize(..sizes.len()));
            }
            for model in 0..sizes.len() {
                busy[model] = step < 200 && random.u8(..4) == 0;
                match models.standing(model) {
                    Standing::Loading if random.bool() => models.loaded(model, Some(sizes[model]), now),
                    Standing::Leaving if random.bool() => models.left(model),
                    _ => {}
                }
            }
            waiting.retain(|&model| models.wanted(model, now, |n| !busy[n]) != Step::Ask);
            let n_present = (0..sizes.len()).filter(|&n| models.standing(n) != Standing::Absent).count();
            assert!(models.n_bytes() <= max_bytes || n_present == 1, "seed {seed}");
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?}");
    }
}

#[test]
fn the_main_model_goes_only_when_told_to_and_takes_no_room() {
    let mut models = Residency::new([100], 100);
    let main = models.add_main();
    assert_eq!(models.wanted(0, s(5), |_| true), Step::Load, "the main model takes no room");
    models.loaded(0, Some(100), s(5));
    assert_eq!(models.idle_for(s(1), s(100), |number| number == main), None);
    assert!(models.leave(main));
    assert_eq!(models.wanted(main, s(6), |_| true), Step::Wait, "it leaves");
    models.left(main);
    assert_eq!(models.wanted(main, s(7), |_| false), Step::Load, "it needs no room");
    models.loaded(main, Some(400), s(8));
    assert_eq!((models.wanted(main, s(9), |_| true), models.n_bytes()), (Step::Ask, 100));
}
