//! A load from its recording to its replay: a server and a gateway that record, the recording run again and
//! looked at, and load tests of a server.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{Server, end, free_port, throng};

/// Text that must not be in a recording.
const CANARY: &str = "canary-prompt";

/// The output of a command that succeeds.
fn output(arguments: &[&str]) -> String {
    let ran = throng(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{arguments:?}: {told}");
    String::from_utf8(ran.stdout).unwrap()
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let text = output(arguments);
    serde_json::from_str(text.lines().last().unwrap()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn quiet(command: &mut Command) {
    command.stdout(Stdio::null()).stderr(Stdio::null());
}

fn chat(server: &mut Server, question: &str, max_tokens: u32) {
    let body = format!(
        r#"{{"model": "throng-starter", "max_tokens": {max_tokens}, "messages":
        [{{"role": "user", "content": "{CANARY} {question} and then some more words to fill a block or two"}}]}}"#
    );
    let answer = server.ask("POST", "/v1/chat/completions", &body);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_recorded_server_is_run_again_batch_for_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("load.jsonl");
    let file = path.to_str().unwrap();
    let mut server = Server::start(&["--record", file, "--no-speculation"], quiet);
    server.ready();
    for round in 0..12 {
        chat(&mut server, ["one", "two", "three"][round % 3], 6);
    }
    server.signal("TERM");
    server.end();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(CANARY) && text.lines().count() > 40, "{text}");

    let replayed = json(&["replay", file, "--json"]);
    let batches = &replayed["batches"];
    assert!(batches["n_steps"].as_u64().unwrap() >= 24, "{replayed}");
    assert_eq!((&batches["n_different"], &batches["n_lost"]), (&0.into(), &0.into()), "{replayed}");
    assert_eq!(replayed["report"]["n_requests"], 12, "{replayed}");
    let shown = output(&["replay", file, "--replicas", "2", "--kill-after", "0.1"]);
    assert!(shown.contains("steps have the recorded batch") && shown.contains("first token:"), "{shown}");

    let profile = json(&["trace", "profile", file, "--json", "--cache", "1"]);
    assert_eq!(profile["n_requests"], 12, "{profile}");
    assert!(profile["cache"][0]["hit_share"].as_f64().unwrap() > 0.4, "prompts are repeated: {profile}");

    cut_the_last_line(&path, &text);
    let cut = json(&["replay", file, "--json"]);
    assert_eq!(cut["batches"]["n_different"], 0, "{cut}");
    std::fs::write(&path, text.replacen("\"t\":", "\"t\":x", 3)).unwrap();
    let refused = throng(&["replay", file]).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("line 2"), "{told}");
}

fn cut_the_last_line(path: &Path, text: &str) {
    std::fs::write(path, &text[..text.len() - 10]).unwrap();
}

#[test]
fn a_gateway_records_what_it_sends_to_workers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("load.jsonl");
    let file = path.to_str().unwrap();
    let place = format!("127.0.0.1:{}", free_port());
    let mut command = throng(&["worker", "--threads", "2", "--listen", &place]);
    quiet(&mut command);
    let mut worker = command.spawn().unwrap();
    let port = free_port();
    let replica = format!("throng://{place}");
    let port_text = port.to_string();
    let mut command = throng(&["gateway", "--port", &port_text, "--replica", &replica, "--record", file]);
    quiet(&mut command);
    let mut gateway = Server { process: command.spawn().unwrap(), port };
    gateway.ready();
    (0..4).for_each(|_| chat(&mut gateway, "four", 5));
    gateway.signal("TERM");
    gateway.end();
    worker.kill().unwrap();
    end(&mut worker);

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(CANARY), "{text}");
    let profile = json(&["trace", "profile", file, "--json"]);
    assert_eq!((&profile["n_requests"], &profile["output"]["max"]), (&4.into(), &5.into()), "{profile}");
    let refused = throng(&["replay", file]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("recording of a gateway"));
}

#[test]
fn a_server_is_measured_under_load() {
    let mut server = Server::start(&[], quiet);
    server.ready();
    let url = format!("http://127.0.0.1:{}", server.port);
    let common = ["--duration", "3", "--warm-up", "0.5", "--generate-tokens", "4", "--prompt-tokens", "12"];
    let rate = json(&[&["bench", &url, "--rate", "4", "--json"][..], &common].concat());
    let n = rate["n_requests"].as_u64().unwrap();
    assert!((3..40).contains(&n) && rate["n_whole"] == rate["n_requests"], "{rate}");
    assert!(rate["first_token"]["p50_ms"].as_f64().unwrap() > 0.0, "{rate}");
    assert!(rate["prompt_tokens_per_second"].as_f64().unwrap() > 0.0, "the server counts tokens: {rate}");
    let users = output(&[&["bench", &url, "--concurrency", "2"][..], &common].concat());
    assert!(users.contains("2 users") && users.contains("first token p50"), "{users}");
    let unknown = json(&[&["bench", &url, "--rate", "4", "--model", "none", "--json"][..], &common].concat());
    assert_eq!(unknown["n_whole"], 0, "{unknown}");
    assert!(unknown["errors"]["http_404"].as_u64().unwrap() > 0, "{unknown}");
    for arguments in [&["--load", "chat"][..], &["--load", "agent", "--rate", "1", "--ramp"]] {
        let refused = throng(&[&["bench", &url][..], arguments].concat()).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && told.contains("sessions at a --rate"), "{told}");
    }
    server.signal("TERM");
    server.end();
    let gone = throng(&["bench", &url, "--rate", "4"]).output().unwrap();
    assert!(!gone.status.success());
}

#[test]
fn files_that_are_no_load_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let file = path.to_str().unwrap();
    for (text, expected) in [
        ("", "no request"),
        ("nonsense\n", "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,NaN,44\n", "line 2: ContextTokens"),
        (
            "{\"timestamp\": 5, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n\
             {\"timestamp\": 4, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n",
            "line 2: time runs backwards",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let refused = throng(&["trace", "profile", file]).output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && told.contains(expected) && told.contains(file), "{told}");
    }
}
