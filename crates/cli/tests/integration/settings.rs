//! Profiles and the table `[expert]` of a configuration file: which value holds, and what is told.

use std::process::Output;

use clap::Parser;
use throng_cli::args::{Command, CommandLine, ServeArgs};
use throng_cli::config::Settings;
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_gateway::GatewayConfig;

use crate::process::throng;

/// The settings that a file and flags give.
fn settings(file: &str, flags: &[&str]) -> Settings {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.toml");
    std::fs::write(&path, file).unwrap();
    let words = [&["throng", "serve", "--config", path.to_str().unwrap()][..], flags].concat();
    let Some(Command::Serve(arguments)) = CommandLine::try_parse_from(words).unwrap().command else {
        panic!("another command")
    };
    Settings::of(&arguments).unwrap()
}

/// `throng config check` of a file.
fn check(file: &str) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.toml");
    std::fs::write(&path, file).unwrap();
    let output = throng(&["config", "check", path.to_str().unwrap()]).output().unwrap();
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    (output, told)
}

#[test]
fn a_profile_sets_what_nothing_else_sets() {
    let desktop = settings("profile = \"desktop\"", &[]);
    assert_eq!(desktop.gateway, GatewayConfig::default());
    assert_eq!(desktop.engine.scheduler(), SchedulerConfig::default());

    let service = settings("profile = \"service\"", &[]);
    let (server, api) = (&service.gateway.server, &service.gateway.api);
    assert_eq!((server.max_connections, server.header_timeout_s, server.idle_timeout_s), (65_536, 5, 75));
    assert_eq!(server.max_request_memory_bytes, 1 << 30);
    assert_eq!((api.max_queued_tokenizations, api.tokenization_timeout_s), (4096, 10));
    assert_eq!(service.gateway.overload.max_queue_wait_ms, 10_000);
    assert_eq!(service.gateway.observability.max_explained_requests, 8192);
    let scheduler = service.engine.scheduler();
    assert_eq!((scheduler.max_queued_requests, scheduler.max_queued_tokens), (8192, 32_000_000));

    // The flag's profile replaces the file's.
    let edge = settings("profile = \"service\"", &["--profile", "edge"]);
    let (server, api) = (&edge.gateway.server, &edge.gateway.api);
    assert_eq!((server.max_connections, server.header_timeout_s, server.idle_timeout_s), (256, 10, 15));
    assert_eq!(server.max_request_memory_bytes, 32 << 20);
    assert_eq!((api.max_body_bytes, api.max_answer_bytes), (1 << 20, 8 << 20));
    assert_eq!((api.max_concurrent_tokenizations, api.max_queued_tokenizations), (1, 32));
    let scheduler = edge.engine.scheduler();
    assert_eq!((scheduler.max_batch_tokens, scheduler.max_batch_sequences), (128, 8));
    assert_eq!((scheduler.max_queued_requests, scheduler.max_queued_tokens), (64, 262_144));
    assert_eq!((edge.adapters.max_loras, edge.adapters.max_lora_memory_bytes), (Some(4), Some(256 << 20)));
    assert_eq!(edge.gateway.observability.max_explained_requests, 64);
}

#[test]
fn a_profile_needs_no_file() {
    for command in ["serve", "gateway"] {
        let words = ["throng", command, "--profile", "edge"];
        let arguments: ServeArgs = match CommandLine::try_parse_from(words).unwrap().command {
            Some(Command::Serve(arguments)) => *arguments,
            Some(Command::Gateway(arguments)) => arguments.as_serve(),
            _ => panic!("another command"),
        };
        assert_eq!(Settings::of(&arguments).unwrap().gateway.server.max_connections, 256);
    }
}

#[test]
fn a_given_value_replaces_that_of_the_profile() {
    let file = "profile = \"edge\"\n[expert.gateway.server]\nmax_connections = 7\n\
                max_request_memory_bytes = \"1GiB\"\n[engine]\nmax_queued_requests = 9\n[gateway.server]\nport = 1\n";
    let given = settings(file, &["--max-num-seqs", "3"]);
    let server = &given.gateway.server;
    assert_eq!((server.max_connections, server.max_request_memory_bytes, server.port), (7, 1 << 30, 1));
    assert_eq!(server.idle_timeout_s, 15);
    let scheduler = given.engine.scheduler();
    assert_eq!((scheduler.max_batch_sequences, scheduler.max_queued_requests), (3, 9));
    assert_eq!(scheduler.max_batch_tokens, 128);
}

#[test]
fn an_old_key_works_and_warns_with_the_new_one() {
    let (output, told) = check("[engine]\nmax_queued_requests = 9\n[expert.engine]\nstep_timeout_s = 7\n");
    assert!(output.status.success(), "{told}");
    let words =
        "throng.toml: line 2: engine.max_queued_requests is now max_queued_requests in [expert.engine]";
    assert!(told.contains(words) && !told.contains("step_timeout_s"), "{told}");
    let given =
        settings("[gateway.server]\nidle_timeout_s = 9\n[expert.gateway.api]\nmax_choices = 2\n", &[]);
    assert_eq!((given.gateway.server.idle_timeout_s, given.gateway.api.max_choices), (9, 2));
    let file = "[gateway.api]\nresponse_retention_s = 90\n";
    let (output, told) = check(file);
    assert!(output.status.success(), "{told}");
    let words = "line 2: gateway.api.response_retention_s is now gateway.state.retention_days";
    assert!(told.contains(words), "{told}");
    assert_eq!(settings(file, &[]).gateway.api.response_retention_s, Some(90));
}

#[test]
fn replicas_and_policies_that_cannot_start_are_mistakes() {
    for (file, words) in [
        ("[[replica]]\nurl = \"htp://x\"\n", "htp://x"),
        ("[[replica]]\nurl = \"kubernetes://x\"\n", "kubernetes://x"),
        ("[[replica]]\nurl = \"http://127.0.0.1:1\"\nengine_path = \"v1\"\n", "engine_path"),
        (
            "[gateway.autoscale]\nmin_replicas = 9\nmax_replicas = 4\n",
            "gateway.autoscale.min_replicas = \"9\"",
        ),
    ] {
        let (output, told) = check(file);
        assert!(output.status.code() == Some(2) && told.contains(words), "{file}: {told}");
    }
    let (output, told) = check("[[replica]]\nurl = \"throng://127.0.0.1:1\"\n");
    assert!(output.status.success(), "{told}");
}

#[test]
fn mistakes_in_the_expert_table_are_told_with_their_lines() {
    let file = "profile = \"edgy\"\n[gateway.server]\nidle_timeout_s = 9\n[expert.gateway.server]\n\
                header_timout_s = 5\nport = 1\nidle_timeout_s = 8\nbody_timeout_s = 0\n\
                max_connections = \"many\"\n[expert.model]\nx = 1\n[expert]\nengine = 3\n";
    let (output, told) = check(file);
    assert_eq!(output.status.code(), Some(2), "{told}");
    for words in [
        "8 mistakes\n",
        "line 1: profile: unknown variant `edgy`",
        "Did you mean \"edge\"?",
        "line 5: expert.gateway.server.header_timout_s: unknown field `header_timout_s`, expected one of `max_connections`",
        "Did you mean header_timeout_s?",
        "line 6: expert.gateway.server.port: unknown field `port`",
        "port in [gateway.server]",
        "line 7: expert.gateway.server.idle_timeout_s: gateway.server.idle_timeout_s is set besides",
        "line 8: gateway.server.body_timeout_s = 0: must be a number from 1 to 28800",
        "line 9: gateway.server.max_connections: invalid type: string \"many\"",
        "line 10: expert.model: unknown field `model`, expected one of `engine`, `adapters`, `gateway`",
        "line 13: expert.engine: must be a table",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let (output, told) = check("expert = 5\n");
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("expert: must be a table"), "{told}");
}
