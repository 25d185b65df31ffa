//! Estimates of the share of accepted drafts.

use throng_core::scheduling::speculation::Acceptance;

#[test]
fn it_approaches_the_share_of_accepted_drafts() {
    let mut rng = fastrand::Rng::with_seed(1);
    for truth in [0.1, 0.5, 0.9] {
        let (mut acceptance, mut sum) = (Acceptance::default(), 0.0);
        for _ in 0..5_000 {
            let n_accepted = (0..4).take_while(|_| rng.f64() < truth).count();
            acceptance.observe(4, n_accepted);
            sum += acceptance.probability();
        }
        let mean = sum / 5_000.0;
        assert!((mean - truth).abs() < 0.06, "{mean} is estimated, {truth} is true");
    }
}

#[test]
fn it_returns_to_the_prior_while_nothing_is_verified() {
    for n_accepted in [0, 1] {
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.observe(1, n_accepted));
        let before = acceptance.probability();
        assert!((before - n_accepted as f64).abs() < 0.01);
        acceptance.observe(0, 0);
        assert!((acceptance.probability() - before).abs() < 0.01, "it returns at once");
        (0..1000).for_each(|_| acceptance.observe(0, 0));
        assert!((acceptance.probability() - Acceptance::default().probability()).abs() < 0.01);
    }
}
