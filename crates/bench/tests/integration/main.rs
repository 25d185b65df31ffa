//! The measurement of the gateway: every server that it starts answers, and all streams that it opens are
//! open at a time.

use std::process::Command;

use serde_json::Value;
use throng_testkit::nightly::amount;

/// The lines that the program prints when it measures for a second and opens that many streams.
fn measured(arguments: &[&str], n_streams: usize) -> Vec<Value> {
    let load = ["--rate", "50", "--seconds", "1", "--connections", "4", "--json", "--open-streams"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng-bench"));
    let output = command.args(load).arg(n_streams.to_string()).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn check(lines: &[Value], n_streams: usize) {
    let [bare, gateway, streams] = lines else { panic!("{lines:?}") };
    for (line, name) in [(bare, "server without gateway"), (gateway, "throng")] {
        assert_eq!(
            (&line["name"], &line["n_failed"], &line["n_answered"]),
            (&name.into(), &0.into(), &50.into())
        );
    }
    assert_eq!(streams["n_open"], n_streams);
    assert!(
        streams["bytes_before"].as_u64() > Some(0) && streams["bytes_open"].as_u64() > Some(0),
        "{streams}"
    );
}

#[test]
fn a_gateway_with_its_engine_is_measured_beside_a_server_without_one() {
    check(&measured(&[], 40), 40);
}

/// A worker has one connection for all streams of a gateway: several times as many as a client may have on
/// one.
#[test]
fn a_gateway_over_a_worker_is_measured_beside_a_server_without_one() {
    let n_streams = amount(600, 4200);
    check(&measured(&["--remote"], n_streams), n_streams);
}
