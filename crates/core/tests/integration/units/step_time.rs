//! The model of the duration of steps.

use throng_core::scheduling::scheduler::{StepShape, StepTimeModel};
use throng_core::time::Nanos;

fn shape(n_tokens: usize, n_attended: usize) -> StepShape {
    StepShape { n_tokens, n_attended }
}

fn true_ms(shape: StepShape) -> f64 {
    5.0 + 0.5 * shape.n_tokens as f64 + 0.001 * shape.n_attended as f64
}

fn observe(model: &mut StepTimeModel, shape: StepShape) {
    model.observe(shape, Nanos((true_ms(shape) * 1e6) as u64));
}

#[test]
fn learns_a_linear_machine() {
    let mut model = StepTimeModel::default();
    for (n, attended) in [(1, 100), (2, 3_000), (8, 2_000), (64, 2_080), (500, 125_000), (300, 400_000)] {
        observe(&mut model, shape(n, attended));
    }
    for _ in 0..10_000 {
        observe(&mut model, shape(4, 4_000));
    }
    for asked in [shape(1, 50), shape(128, 8_256), shape(512, 1_000_000)] {
        let (predicted, truth) = (model.predict_ms(asked).expect("it has observed"), true_ms(asked));
        assert!((predicted / truth - 1.0).abs() < 0.02, "{asked:?}: {predicted} ms, truly {truth} ms");
    }
    let n = model.most_tokens(shape(4, 4_000), 0, 10_000, 60.0).expect("it has observed");
    let ms = |n| true_ms(shape(4, 4_000).plus(StepShape::of_sequence(0, n)));
    assert!(ms(n) < 61.5 && ms(n) > 58.5, "{n} tokens take {} ms", ms(n));
}

#[test]
fn one_observation_is_enough_for_a_guess() {
    let mut model = StepTimeModel::default();
    assert_eq!(model.predict_ms(shape(1, 1)), None);
    observe(&mut model, shape(64, 2_080));
    let guess = model.predict_ms(shape(64, 2_080)).expect("it has observed");
    assert!((guess / true_ms(shape(64, 2_080)) - 1.0).abs() < 0.01, "{guess}");
    assert!(model.predict_ms(shape(128, 8_256)).expect("it has observed") >= guess);
}

#[test]
fn steps_of_single_tokens_do_not_price_a_prompt() {
    let prompt = StepShape::of_sequence(0, 512);
    let mut model = StepTimeModel::default();
    for ms in [10, 12, 9, 11] {
        model.observe(shape(1, 1), Nanos::from_ms(ms));
    }
    let predicted = model.likely_ms(prompt).expect("it has observed");
    assert!((10.0..100.0).contains(&predicted), "{predicted} ms after probes alone");
    // Neither does what two tokens happen to take longer than one.
    model.observe(shape(2, 3_000), Nanos::from_ms(14));
    let predicted = model.likely_ms(prompt).expect("it has observed");
    assert!((10.0..100.0).contains(&predicted), "{predicted} ms after steps of one and two tokens");
    assert!(model.most_tokens(shape(1, 1), 0, 512, 50.0).is_some_and(|n| n < 50), "plans are careful");
    // The first prompt does.
    model.observe(StepShape::of_sequence(0, 64), Nanos::from_ms(10 + 64));
    let predicted = model.likely_ms(prompt).expect("it has observed");
    assert!((10.0 + 512.0) * 0.7 < predicted && predicted < (10.0 + 512.0) * 1.3, "{predicted} ms");
    assert!(model.most_tokens(shape(1, 1), 0, 512, 50.0).is_some_and(|n| (25..60).contains(&n)));
}

#[test]
fn never_predicts_that_more_is_less() {
    let mut model = StepTimeModel::default();
    model.observe(shape(1, 1), Nanos::from_ms(100));
    model.observe(shape(100, 5_000), Nanos::from_ms(10));
    let ms = |n| model.predict_ms(shape(n, n * n)).expect("it has observed");
    assert!(ms(1) <= ms(50) && ms(50) <= ms(500));
    assert_eq!(model.most_tokens(shape(0, 0), 0, 10, 1.0), Some(0));
}
