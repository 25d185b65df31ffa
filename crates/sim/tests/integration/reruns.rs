//! Equal inputs give equal bytes, whatever the number of threads.

use throng_core::fleet::overload::GateConfig;
use throng_core::fleet::routing::Policy;
use throng_core::time::{Nanos, Timestamp};
use throng_core::timeline::latency::Objective;
use throng_sim::fleet::{ClientConfig, Fault, FleetConfig, GatewaySettings};
use throng_sim::report::ReportBuilder;
use throng_sim::simulation::Simulation;
use throng_sim::sweep;

use crate::fleets::{replica, requests};

fn report(seed: u64) -> String {
    let gateway = GatewaySettings {
        policy: Policy::ALL[seed as usize % 4],
        overload: Some(GateConfig { max_wait: Nanos::from_ms(2_000) }),
        ..GatewaySettings::default()
    };
    let clients =
        ClientConfig { max_retries: 2, patience: Some(Nanos::from_ms(5_000)), ..ClientConfig::default() };
    let sample_interval = Some(Nanos::from_ms(1_000));
    let fleet = FleetConfig { gateway, clients, sample_interval, ..FleetConfig::uniform(replica(), 3) };
    let at = |s: u64| Timestamp::default() + Nanos::from_ms(s * 1000);
    let faults = vec![
        Fault::Kill { replica: 0, at: at(5), restart_after: Some(Nanos::from_ms(4_000)) },
        Fault::Partition { replica: 1, at: at(8), lasting: Nanos::from_ms(3_000) },
        Fault::Slow { replica: 2, at: at(12), lasting: Nanos::from_ms(3_000), factor: 3.0 },
    ];
    let mut report = ReportBuilder::new(Objective::default(), Nanos(0));
    let simulation = Simulation::new(fleet, requests(60.0, 20, seed), seed).expect("valid");
    let totals = simulation.with_faults(faults).expect("valid").run(&mut report).expect("it runs");
    serde_json::to_string(&report.finish(totals)).expect("plain numbers")
}

#[test]
fn reruns_are_byte_identical_whatever_the_number_of_threads() {
    let seeds: Vec<u64> = (0..8).collect();
    let alone = sweep::run(&seeds, 1, |seed| report(*seed));
    assert_eq!(alone, sweep::run(&seeds, 4, |seed| report(*seed)));
    assert!(alone.windows(2).all(|pair| pair[0] != pair[1]), "seeds differ");
}
