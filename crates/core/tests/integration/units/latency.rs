//! Latencies of requests, objectives and percentiles.

use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::{
    LatencyHistogram, LatencyStats, Objective, RequestLatency, TokenClock, percentile,
};

fn at(ms: u64) -> Timestamp {
    Timestamp::default() + Nanos::from_ms(ms)
}

#[test]
fn latencies_follow_from_the_times_of_tokens() {
    let mut clock = TokenClock::new(at(100));
    let gaps: Vec<_> = [130, 140, 170, 170].map(|ms| clock.note(at(ms))).into_iter().flatten().collect();
    assert_eq!(gaps, [10, 30, 0].map(Nanos::from_ms));
    let latency = clock.end(at(175), true);
    assert_eq!(latency.first_token, Some(Nanos::from_ms(30)));
    assert_eq!(latency.mean_gap, Some(Nanos(13_333_333)));
    assert_eq!(latency.end_to_end, Nanos::from_ms(75));
    let empty = TokenClock::new(at(0)).end(at(5), false);
    assert_eq!((empty.first_token, empty.mean_gap, empty.end_to_end), (None, None, Nanos::from_ms(5)));
}

#[test]
fn an_objective_is_met_by_whole_answers_within_it() {
    let objective =
        Objective { first_token: Some(Nanos(10)), mean_gap: Some(Nanos(5)), end_to_end: Some(Nanos(100)) };
    let good = RequestLatency {
        first_token: Some(Nanos(10)),
        mean_gap: Some(Nanos(5)),
        end_to_end: Nanos(100),
        is_whole: true,
    };
    assert!(objective.is_met_by(&good) && objective.is_met_by(&RequestLatency { mean_gap: None, ..good }));
    for bad in [
        RequestLatency { is_whole: false, ..good },
        RequestLatency { first_token: Some(Nanos(11)), ..good },
        RequestLatency { first_token: None, ..good },
        RequestLatency { mean_gap: Some(Nanos(6)), ..good },
        RequestLatency { end_to_end: Nanos(101), ..good },
    ] {
        assert!(!objective.is_met_by(&bad), "{bad:?}");
    }
    let mut stats = LatencyStats::new(objective);
    stats.record(&good);
    stats.record(&RequestLatency { is_whole: false, ..good });
    assert_eq!((stats.n_requests, stats.n_whole, stats.n_good), (2, 1, 1));
    assert_eq!(stats.goodput(Nanos::from_ms(500)), 2.0);
}

#[test]
fn percentiles_are_nearest_ranks() {
    let values: Vec<u64> = (1..=100).collect();
    for (percent, expected) in [(0.0, 1), (1.0, 1), (50.0, 50), (99.0, 99), (99.5, 100), (100.0, 100)] {
        assert_eq!(percentile(&values, percent), Some(expected), "{percent}");
    }
    assert_eq!((percentile(&[7], 50.0), percentile::<u64>(&[], 50.0)), (Some(7), None));
}

#[test]
fn a_histogram_gives_percentiles_to_within_a_bucket() {
    let mut random = 1_u64;
    let mut values: Vec<u64> = (0..10_000)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> (random % 60)
        })
        .collect();
    let mut histogram = LatencyHistogram::default();
    values.iter().for_each(|value| histogram.record(Nanos(*value)));
    values.sort_unstable();
    for percent in [0.1, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
        let exact = percentile(&values, percent).expect("values");
        let found = histogram.percentile(percent).expect("values").0;
        assert!(found >= exact && found - exact <= exact / 64 + 1, "{percent}: {found} for {exact}");
    }
    assert_eq!((histogram.max().0, histogram.len()), (values[9_999], 10_000));
}
