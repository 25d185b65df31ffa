//! Invalid settings are refused before anything is loaded, with status 2 and a message that names the setting
//! and its range.

use std::io::Read;
use std::process::Stdio;

use crate::process::{end, throng};

fn refused(arguments: &[&str], settle: impl FnOnce(&mut std::process::Command)) -> String {
    let mut command = throng(arguments);
    settle(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut process = command.spawn().unwrap();
    let status = end(&mut process);
    let mut told = String::new();
    process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(status.code(), Some(2), "{arguments:?}: {told}");
    assert!(!told.contains("panicked"), "{told}");
    told
}

#[test]
fn flags_out_of_their_range() {
    let huge = "99999999999999999999999999";
    for (flag, range, values) in [
        ("--step-timeout", "from 1 to 86400", &["0", "-1", "86401", "1.5", huge][..]),
        ("--watchdog-timeout", "from 1 to 86400", &["0"]),
        ("--shutdown-timeout", "from 0 to 86400", &["-1", huge]),
        ("--max-logprobs", "from -1 to 1000000", &["-5", "-2", huge, "NaN"]),
        ("--threads", "from 1 to 1024", &["0", "-1", "100000", huge]),
        ("--max-model-len", "from 1 to 4294967295", &["0", "-1", huge]),
        ("--max-num-batched-tokens", "from 1 to 65536", &["0", "-1", "4294967295", huge]),
        ("--max-num-seqs", "from 1 to 4096", &["0", "-1", "4294967295", huge]),
        ("--max-num-queued-reqs", "from 1 to 1000000", &["0", "-1", huge]),
        ("--max-num-queued-tokens", "from 1 to 1000000000000", &["0", "-1", huge]),
        ("--inter-token-target-ms", "from 1 to 3600000", &["0", "-1", huge]),
        ("--kv-cache-memory", "from 1 byte to 1024 TiB", &["0", "-1", "0GiB", "2000TiB"]),
        ("--port", "0..=65535", &["-1", "65536"]),
        ("--speculative-config", "\"eagle\" is not supported yet", &["{\"method\":\"eagle\"}"]),
        ("--speculative-config", "expected ident", &["ngram"]),
        (
            "--served-model-name",
            "1 to 256 bytes and no control characters",
            &["", "a\nb", "\u{1b}[2J", "\u{7f}"],
        ),
    ] {
        for value in values {
            let told = refused(&["serve", flag, value], |_| {});
            let name = if flag == "--watchdog-timeout" { "--step-timeout" } else { flag };
            let (names, says) = (told.contains(&format!("for '{name}")), told.contains(range));
            assert!(names && says, "{flag} {value}: {told}");
        }
    }
    let long = "x".repeat(300);
    assert!(refused(&["--served-model-name", &long], |_| {}).contains("1 to 256 bytes"));
    assert!(refused(&["--served-model-name", "a", "b", "a"], |_| {}).contains("\"a\" is given twice"));
    assert!(
        refused(&["--data-parallel-size", "0"], |_| {}).contains("is not supported (only 1 is accepted)")
    );
}

#[test]
fn words_that_could_be_taken_for_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf").to_str().unwrap().to_owned();
    let config = folder.path().join("throng.toml").to_str().unwrap().to_owned();
    std::fs::write(&config, "[model]\nserved_names = [\"mine\"]").unwrap();
    let path_is_name = format!("no model is named: {path:?} is taken for a name");
    for (arguments, words) in [
        (&["serve", "--served-model-name", "mine", &path][..], path_is_name.as_str()),
        (&["--served-model-name", "mine", &path, "--port", "0"], &path_is_name),
        (&["serve", "--served-model-name", "mine"], "no model is named that could be served as \"mine\""),
        (&["serve", "--config", &config], "no model is named that could be served as \"mine\""),
        (&["serve", "--api-key", "first", "second-key"], "separated by commas: --api-key KEY1,KEY2"),
        (&["serve", "throng-starter", "--api-key", "first", "second-key"], "separated by commas"),
        (&["serve", "-dp", "2"], "--data-parallel-size is not supported (only 1 is accepted)"),
        (&["serve", "-tp=0"], "must be a number from 1 to 32, or auto"),
        (&["serve", "-tp", "8", "-pp", "8"], "processes of the model = 64: "),
        (&["serve", "-pp", "x"], "--pipeline-parallel-size"),
        (&["go"], "\"go\" is neither a command (serve, worker,"),
        (&["serv", "org/name"], "tip: Did you mean serve?"),
        (&["ps"], "tip: throng fleet status"),
        (&["pul", "org/name"], "tip: Did you mean pull?"),
        (
            &["serve", "-ngl", "99", "--hf-file", "x.gguf"],
            "--hf-file is not supported: the file stands after",
        ),
    ] {
        let told = refused(arguments, |_| {});
        assert!(told.contains(words), "{arguments:?}: {told}");
        assert!(!told.contains("second-key"), "a key is shown: {told}");
    }
}

#[test]
fn a_model_that_is_missing() {
    for model in ["/nowhere/model.gguf", "./model.gguf", "src/model.gguf", ""] {
        let mut process = throng(&["serve", "--port", "0", model]).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(end(&mut process).code(), Some(1), "{model}");
        let mut told = String::new();
        process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(told.contains("is neither a file or folder here nor a hub id"), "{model}: {told}");
    }
}

#[test]
fn flags_of_the_other_commands() {
    for (arguments, words) in [
        (&["generate", "--max-tokens", "0"][..], "'--max-tokens"),
        (&["generate", "--temperature", "NaN"], "from 0 to 2"),
        (&["chat", "--temperature", "-1"], "from 0 to 2"),
        (&["chat", "--top-p", "0"], "above 0 and at most 1"),
        (&["bench", "--concurrency", "1,0"], "from 1 to 4096"),
        (&["bench", "--prompt-tokens", "4294967295"], "from 1 to 16777216"),
        (&["bench", "machine", "--threads", "100000"], "from 1 to 1024"),
        (&["bench", "--json", "machine"], "'machine' for '[MODEL]': this is a command"),
        (&["--threads", "2", "chat"], "'chat' for '[MODEL]': this is a command"),
    ] {
        let told = refused(arguments, |_| {});
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
}

#[test]
fn the_file_has_the_same_ranges_as_the_flags() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.toml");
    for (text, words) in [
        ("[engine]\nstep_timeout_s = 0", "engine.step_timeout_s = 0: must be a number from 1 to 86400"),
        ("[engine]\nstep_timeout_s = 9223372036854775807", "must be a number from 1 to 86400"),
        (
            "[engine.speculation]\nmethod = \"medusa\"",
            "engine.speculation: the method \"medusa\" is not supported",
        ),
        ("[engine.speculation]\nk = 1", "unknown field `k`"),
        (
            "[engine]\nmax_batch_sequences = 0",
            "engine.max_batch_sequences = 0: must be a number from 1 to 4096",
        ),
        ("[engine]\nmax_batch_tokens = 4294967295", "must be a number from 1 to 65536"),
        (
            "[gateway.tools.hosted_limits]\ntimeout_s = 9223372036854775807",
            "gateway.tools.hosted_limits.timeout_s = 9223372036854775807: must be a number from 1 to 86400",
        ),
        (
            "[[gateway.tools.server]]\nname = \"a\"\nlimits = { concurrency = 0 }",
            "gateway.tools.server 'a': limits.concurrency = 0: must be a number from 1 to 1000000",
        ),
        ("[engine]\nmax_queued_requests = 0", "engine.max_queued_requests = 0: must be"),
        ("[model]\nn_threads = 100000", "model.n_threads = 100000: must be a number from 1 to 1024"),
        ("[model]\nn_threads = -1", "n_threads = -1"),
        ("[model]\nkv_cache_memory_bytes = 0", "model.kv_cache_memory_bytes = 0: must be"),
        (
            "[model]\nserved_names = [\"a\\nb\"]",
            "the name \"a\\nb\" in model.served_names must have 1 to 256 bytes",
        ),
        ("[gateway.server]\nheader_timeout_s = 0", "gateway.server.header_timeout_s = 0: must be"),
        ("[gateway.server]\nidle_timeout_s = 9223372036854775807", "from 1 to 28800"),
        ("[gateway.api]\nmax_logprobs = -5", "max_logprobs = -5"),
        ("[gateway.api]\nmax_concurrent_tokenizations = 9223372036854775807", "from 1 to 256"),
        ("[gateway.api]\nping_interval_s = 0", "gateway.api.ping_interval_s = 0: must be"),
        ("[gateway]\nport = 1", "unknown field `port`"),
    ] {
        std::fs::write(&path, text).unwrap();
        let told = refused(&["serve", "--config", path.to_str().unwrap()], |_| {});
        assert!(told.contains(words), "{text}: {told}");
    }
    let told = refused(&["serve", "--config", "/nowhere/throng.toml"], |_| {});
    assert!(told.contains("cannot read /nowhere/throng.toml"), "{told}");
}

#[test]
fn every_mistake_of_a_file_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.toml");
    let path = path.to_str().unwrap();
    let text = "[model]\nmax_model_len = 4096\nkv_cache_memory_bytes = \"1 elephant\"\n[gateway.server]\nprot = 1\n\
                max_request_memory_bytes = \"200MiB\"\nheader_timeout_s = 0\n[engine]\nstep_timeout_s = 0\n";
    std::fs::write(path, text).unwrap();
    for command in [&["serve", "--config"][..], &["gateway", "--config"], &["config", "check"]] {
        let told = refused(&[command, &[path]].concat(), |_| {});
        for words in [
            "throng.toml: 5 mistakes\n",
            "line 2: model.max_model_len = 4096: unknown field `max_model_len`",
            "The flag --max-model-len is max_model_len_tokens in [model] in the file",
            "line 3: model.kv_cache_memory_bytes: invalid type: string",
            "use KiB, MiB, GiB or TiB",
            "line 5: gateway.server.prot = 1: unknown field `prot`",
            "Did you mean port?",
            "line 7: gateway.server.header_timeout_s = 0: must be a number from 1 to 28800",
            "line 9: engine.step_timeout_s = 0: must be a number from 1 to 86400",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }
    // What is not TOML is told too, beside settings on other lines.
    std::fs::write(path, "[engine]\nstep_timeout_s = \nstep_timeout = 1\n[gateway.server]\nport = 1 2\n")
        .unwrap();
    let told = refused(&["config", "check", path], |_| {});
    for words in [
        "line 2: ",
        "line 3: engine.step_timeout = 1: unknown field",
        "step_timeout_s in [expert.engine]",
        "line 5: ",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_file_without_mistakes_is_checked_with_what_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("throng.toml");
    let path = path.to_str().unwrap();
    let text = "[model]\nkv_cache_memory_bytes = \"64MiB\"\n[gateway.response_cache]\nmax_memory_bytes = \"1.5MiB\"\n";
    std::fs::write(path, text).unwrap();
    let output = throng(&["config", "check", path]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{path}: no mistakes\n"));
    let absent = "[model]\nmodel = \"/nowhere/m.gguf\"\n[gateway.tls]\ncertificate = \"/nowhere/c\"\nkey = \"/nowhere/k\"\n";
    std::fs::write(path, absent).unwrap();
    let told = refused(&["config", "check", path], |_| {});
    assert!(told.contains("model.model = \"/nowhere/m.gguf\": No such file"), "{told}");
    assert!(told.contains("/nowhere/c"), "{told}");
    std::fs::write(path, "[gateway.server]\nhost = \"0.0.0.0\"\n").unwrap();
    let told = refused(&["config", "check", path], |_| {});
    assert!(told.contains("--allow-unauthenticated"), "{told}");
}

#[test]
fn irregular_large_and_invalid_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("large"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::write(path("latin1"), b"# caf\xe9").unwrap();
    let made = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
    assert!(made.success());
    for (file, reason) in [
        ("/dev/zero".to_owned(), "not a regular file"),
        (path(""), "not a regular file"),
        (path("fifo"), "not a regular file"),
        (path("large"), "it has more than 1024 KiB"),
        (path("latin1"), "it is not UTF-8"),
    ] {
        for flag in ["--config", "--chat-template"] {
            let told = refused(&["serve", "--port", "0", flag, &file], |_| {});
            assert_eq!(told, format!("error: cannot read {file}: {reason}\n"), "{flag}");
        }
    }
}

#[test]
fn a_log_filter_that_cannot_be_read() {
    let told = refused(&["inspect"], |command| {
        command.env("THRONG_LOG", "throng=loud");
    });
    assert!(told.starts_with("error: THRONG_LOG=\"throng=loud\" is no filter"), "{told}");
}
