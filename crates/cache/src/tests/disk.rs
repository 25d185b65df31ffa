//! Answers on disk, over a restart.

use super::*;

#[test]
fn answers_on_disk_outlive_the_process_and_belong_to_their_tenant_and_model() {
    let mut rng = Rng::with_seed(3);
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        let disk = DiskTier::open(folder.path(), 1 << 20).expect("a folder of its own");
        ResponseCache::new(1 << 20, Some(Arc::new(disk)), None)
    };
    let (request, text, _) = std::iter::repeat_with(|| random_request(&mut rng))
        .find(|(request, text, _)| request.adapter.is_none() && text.stop.is_empty())
        .expect("one of them");
    let fingerprints: [Arc<str>; 2] = ["one".into(), "another".into()];
    let n = request.n_continuations();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ask = |cache: &ResponseCache, request: &ReplicaRequest, fingerprint, model, value| {
        let sharing =
            Sharing { policy: CachePolicy::Use, is_deterministic: true, text: Some(&text), fingerprint };
        let start = |_| starting(script(value, n, 3, &mut Rng::with_seed(5)));
        let begun =
            runtime.block_on(cache.generate(ModelInstance(model), request.clone(), sharing, None, start));
        let (mut generation, cache_use) = begun.expect("taken in");
        let events: Vec<ReplicaEvent> = std::iter::from_fn(|| next(&mut generation)).collect();
        (events, cache_use)
    };
    let cache = open();
    let (events, cache_use) = ask(&cache, &request, Some(&fingerprints[0]), 0, 77);
    assert_eq!(cache_use, Some(CacheUse::Miss));
    drop(cache);
    // As after a restart: another process, in which the model has another number.
    let cache = open();
    assert_eq!(cache.stats().expect("a cache").on_disk.0, 1);
    let other = ReplicaRequest { tenant: TenantId(Arc::from("somebody else")), ..request.clone() };
    for (request, fingerprint) in
        [(&request, Some(&fingerprints[1])), (&request, None), (&other, Some(&fingerprints[0]))]
    {
        assert_eq!(ask(&cache, request, fingerprint, 9, 78).1, Some(CacheUse::Miss));
    }
    let (again, cache_use) = ask(&cache, &request, Some(&fingerprints[0]), 10, 78);
    assert_eq!(cache_use, Some(CacheUse::Hit));
    let told = |events: &[ReplicaEvent]| {
        let told = events.iter().map(|event| match event {
            ReplicaEvent::Finished { index, reason, timing } => {
                format!("{index} {reason:?} {}", timing.n_output)
            }
            other => format!("{other:?}"),
        });
        told.collect::<Vec<String>>()
    };
    assert_eq!(told(&again), told(&events));
    assert!(DiskTier::open(folder.path(), 1 << 20).is_err(), "one process at a time");
}
