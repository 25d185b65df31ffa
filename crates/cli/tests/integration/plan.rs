//! `throng plan` and `throng calibrate` as programs: tables, JSON, the page, bad input.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::{LIMIT, POLL, Server, throng};

const SHAPE: &str =
    "layers=32,hidden=4096,heads=32,kv-heads=8,head-dim=128,ffn=14336,vocabulary=128256,context=8192";

fn run(arguments: &[&str]) -> Output {
    throng(arguments).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[&["plan", "--json"], arguments].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

fn error(arguments: &[&str]) -> String {
    let output = run(&[&["plan"], arguments].concat());
    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}: {told}");
    assert!(!told.contains("panicked"), "{told}");
    told
}

#[test]
fn a_plan_is_a_table_and_the_same_numbers_in_json() {
    let arguments = ["--shape", SHAPE, "--machine", "h100,l40s", "--rate", "50", "--gap-ms", "200"];
    let output = run(&[&["plan"], &arguments[..]].concat());
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        table.starts_with("model: 8.03 B parameters, 14.96 GiB of weights, 128.00 KiB of keys and values"),
        "{table}"
    );
    assert!(table.contains("Not checked: the sizes were typed in"), "{table}");
    let plan = json(&arguments);
    let best = &plan["fleets"][0];
    let first = table.lines().nth(3).expect("a row of the best fleet");
    let name = format!("{} × {}", best["replicas"], best["machine"].as_str().expect("a name"));
    assert!(first.trim_start().starts_with(&name), "{first}");
    assert_eq!(plan["model"]["kv_bytes_per_token"], 131_072.0);
    assert!(best["gap"]["p99_ms"].as_f64().expect("a time") <= 200.0);
    assert!(best["curve"].as_array().expect("points").len() > 30);
    assert!(best["price_per_hour"].is_null(), "prices are the operator's");
}

#[test]
fn the_cheapest_fleet_needs_prices_and_has_the_lowest() {
    let told = error(&["--shape", SHAPE, "--machine", "h100", "--goal", "cheapest"]);
    assert!(told.contains("the machine h100 has no price_per_hour"), "{told}");
    let plan =
        json(&["--shape", SHAPE, "--machine", "h100,a100", "--goal", "cheapest", "--price", "h100=4,a100=1"]);
    let price = |i: usize| plan["fleets"][i]["price_per_hour"].as_f64().expect("a price");
    assert!(plan["fleets"][0]["machine"] == "a100" && price(0) <= price(1));
}

/// The product's own reader of files gives the numbers, and its loader says whether the model starts.
#[test]
fn a_model_on_this_machine_is_checked_by_the_loader() {
    let small = [
        "--machine",
        "xeon-8580",
        "--machine-memory",
        "8GiB",
        "--prompt-tokens",
        "50",
        "--output-tokens",
        "20",
    ];
    let plan = json(&[&["throng-starter"], &small[..]].concat());
    assert!(
        plan["notes"][0].as_str().expect("a note").starts_with("Checked: throng serve starts this model")
    );
    let told = error(&["throng-starter", "--machine", "xeon-8580", "--machine-memory", "8GiB"]);
    assert!(told.contains("the tokens of a long request, prompt and answer"), "{told}");
}

/// The configuration of the sizes in [`SHAPE`].
const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;

/// A hub id whose configuration alone is in the cache is planned for, and the hub is not asked.
#[test]
fn a_configuration_in_the_cache_is_enough() {
    let home = tempfile::tempdir().expect("a folder");
    let model = home.path().join("hub/models--org--model");
    std::fs::create_dir_all(model.join("snapshots/0123abc")).expect("a folder");
    std::fs::create_dir_all(model.join("refs")).expect("a folder");
    std::fs::write(model.join("refs/main"), "0123abc").expect("a file");
    std::fs::write(model.join("snapshots/0123abc/config.json"), CONFIG).expect("a file");
    let mut plan = throng(&["plan", "org/model", "--machine", "h100"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    plan.env("HF_HOME", home.path()).env("HF_ENDPOINT", endpoint).env_remove("HF_HUB_CACHE");
    let output = plan.output().expect("it starts");
    let table = text(&output.stdout);
    assert!(table.starts_with("org/model: 8.03 B parameters"), "{table}{}", text(&output.stderr));
    assert!(listener.accept().is_err(), "nothing asks the hub");
}

/// Files have one matrix where the gate of a squared ReLU is the network itself.
#[test]
fn parameters_are_those_of_the_files() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/fixtures/nemotron-h");
    let small = ["--machine", "h100", "--prompt-tokens", "50", "--output-tokens", "20"];
    let plan = json(&[&[fixture], &small[..]].concat());
    let file = std::fs::metadata(format!("{fixture}/model.safetensors")).expect("a file").len() as f64;
    let counted = 4.0 * plan["model"]["parameters"].as_f64().expect("a number");
    assert!((0.9..=1.0).contains(&(counted / file)), "{counted} of {file}");
}

#[test]
fn the_type_of_weights_is_that_of_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let bits = |more: &str| {
        let config = CONFIG.replace("\"torch_dtype\": \"bfloat16\"}", &format!("{more}}}"));
        std::fs::write(folder.path().join("config.json"), config).expect("a file");
        let plan = json(&[path, "--machine", "h100"]);
        let of = |name: &str| plan["model"][name].as_f64().expect("a number");
        8.0 * of("weight_bytes") / of("parameters")
    };
    assert_eq!(bits("\"torch_dtype\": \"float32\""), 32.0);
    // Embeddings and logits, an eighth of the parameters, are not quantized.
    let fp8 = bits(r#""quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}"#);
    assert!((8.9..9.2).contains(&fp8), "{fp8}");
    let awq = bits(
        r#""quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"}"#,
    );
    assert!((5.6..5.8).contains(&awq), "{awq}");
}

#[test]
fn fleets_that_differ_in_batches_differ_in_name() {
    let plan =
        json(&["--shape", SHAPE, "--machine", "h100", "--tensor-parallel", "1", "--max-num-seqs", "64,256"]);
    let names: Vec<&str> = plan["fleets"]
        .as_array()
        .expect("fleets")
        .iter()
        .filter_map(|fleet| fleet["name"].as_str())
        .collect();
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    assert!(names.iter().all(|name| name.ends_with("sequences and 2048 tokens")), "{names:?}");
}

#[test]
fn a_configuration_without_weights_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), CONFIG).expect("a file");
    let path = folder.path().to_str().expect("a path");
    let plan = json(&[path, "--machine", "h100"]);
    assert_eq!(
        plan["model"]["parameters"],
        json(&["--shape", SHAPE, "--machine", "h100"])["model"]["parameters"]
    );
    assert!(plan["notes"][0].as_str().expect("a note").contains("Throng reads this configuration"));
}

#[test]
fn the_page_is_one_file_that_names_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.html");
    let file = path.to_str().expect("a path");
    let seed = u64::MAX.to_string();
    let arguments = ["plan", "--shape", SHAPE, "--machine", "h100", "--simulate", "5", "--seed", &seed];
    let output = run(&[&arguments[..], &["--html", file]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&path).expect("the page");
    for word in ["src=", "href=", "@import", "url(", "fetch(", "{{plan}}"] {
        assert!(!page.contains(word), "{word}");
    }
    // The one address is the name of a namespace.
    assert_eq!(
        page.matches("http").count(),
        page.matches("http-equiv").count() + page.matches("http://www.w3.org/2000/svg").count()
    );
    let from = page.find("id=\"plan\">").expect("the numbers") + 10;
    let numbers = &page[from..from + page[from..].find("</script>").expect("their end")];
    let plan: Value = serde_json::from_str(numbers).expect("JSON");
    assert!(plan["simulation"]["timeline"].as_array().expect("points").len() > 100);
    assert!(text(&output.stdout).contains("simulated 1 of 1 replicas"), "{}", text(&output.stdout));
}

#[test]
fn bad_input_is_refused_by_name() {
    for (arguments, says) in [
        (
            &["--shape", "layers=0,hidden=1,heads=1,ffn=1,vocabulary=1"][..],
            "layers is 0: expected a finite number above 0",
        ),
        (&["--shape", "layers=NaN,hidden=1,heads=1,ffn=1,vocabulary=1"], "layers is NaN"),
        (&["--shape", "layers=1"], "--shape: heads is missing"),
        (&["--shape", "depth=3"], "--shape: there is no size depth"),
        (&["--rate", "-3"], "requests a second is -3"),
        (&["--rate", "NaN"], "requests a second is NaN"),
        (&["--users", "0"], "users is 0"),
        (&["--users", "10", "--peak-factor", "0.5"], "peak factor is 0.5"),
        (&["--people", "10", "--pause=-1"], "seconds of a pause is -1"),
        (&["--cached-share", "1.5"], "the cached share is 1.5"),
        (&["--machine", "h1000"], "there is no machine h1000"),
        (&["--price", "h100"], "--price: expected MACHINE=PRICE"),
        (&["--price", "h100=-1"], "price_per_hour of the machine h100 is -1"),
        (&["--machines", "/nowhere/machines.toml"], "--machines /nowhere/machines.toml"),
        (&["--calibration", "/nowhere/calibration.json"], "--calibration /nowhere/calibration.json"),
        (&["--weights", "int3"], "the type of the weights is int3"),
        (&["--kv-cache-dtype", "f8"], "the type of keys and values is f8"),
        (&["--vary", "mood=1"], "--vary: mood cannot be varied"),
        (&["--vary", "rate=x"], "--vary: rate is x, not a number"),
        (&["--machine", "h100", "--tensor-parallel", "0"], "tensor parallelism is 0"),
        (
            &["--shape", SHAPE, "--machine", "h100", "--memory-share", "2"],
            "the share of memory that may be used is 2",
        ),
        (&["/nowhere/model"], "/nowhere/model"),
        (&["--shape", SHAPE, "--machine", "h100", "--rate", "1e300"], "replicas is 18446744073709551615"),
        (
            &["--shape", SHAPE, "--machine", "h100", "--spare", "18446744073709551615"],
            "spare replicas is 18446744073709551615: expected at most 1000000000",
        ),
        (
            &["--shape", SHAPE, "--machine", "h100", "--replicas", "18446744073709551615"],
            "replicas is 18446744073709551615: expected at most 1000000000",
        ),
        (
            &["--shape", SHAPE, "--machine", "h100", "--step-overhead-us", "1e30"],
            "seconds of a step that no device computes in is 1000000000000000000000000",
        ),
        (
            &[
                "--shape",
                SHAPE,
                "--machine",
                "h100",
                "--speculative-acceptance",
                "1",
                "--speculative-tokens",
                "4294967295",
            ],
            "drafts of a step is 4294967295: expected at most 64",
        ),
        (
            &["--shape", SHAPE, "--machine", "h100", "--max-num-seqs", "4294967295"],
            "sequences of a step is 4294967295: expected 1 to 65536",
        ),
        (&["--shape", SHAPE, "--vary", "rate=1,2", "--html", "x.html"], "cannot be used with"),
    ] {
        let told = error(arguments);
        assert!(told.contains(says), "{arguments:?}: {told}");
    }
}

#[test]
fn machines_are_listed_with_their_sources() {
    let listed = text(&run(&["plan", "--list-machines"]).stdout);
    for word in [
        "h100",
        "epyc-9654",
        "memory_bytes_per_s",
        "2026-11-29",
        "https://github.com/ai-dynamo/aiconfigurator",
    ] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
}

#[test]
fn a_variation_has_a_row_for_each_value() {
    let output = run(&["plan", "--shape", SHAPE, "--machine", "h100", "--vary", "rate=10,200"]);
    let table = text(&output.stdout);
    let devices = |line: usize| -> u32 {
        let row = table.lines().nth(line).expect("a row");
        row.split_whitespace().nth(5).and_then(|cell| cell.parse().ok()).unwrap_or_else(|| panic!("{row}"))
    };
    assert!(table.lines().count() == 3 && devices(2) > devices(1), "{table}");
    let arguments = ["plan", "--shape", SHAPE, "--machine", "h100", "--vary", "rate=1,2", "--simulate", "2"];
    let table = text(&run(&arguments).stdout);
    assert!(table.contains("rate 2: simulated 1 of 1 replicas"), "{table}");
}

/// Measures the starter model for a moment, and plans with what it found.
#[test]
fn a_calibration_is_read_and_refuses_what_it_did_not_measure() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calibration.json");
    let file = path.to_str().expect("a path");
    let small = ["--seconds", "4", "--most-users", "8", "--most-prompt-tokens", "200"];
    let output = run(&[&["calibrate", "--output", file], &small[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("steps, tested on"), "{}", text(&output.stdout));
    let calibration: Value =
        serde_json::from_slice(&std::fs::read(Path::new(file)).expect("a file")).expect("JSON");
    // A busy machine measures less in the same time.
    let most = |what: &str| calibration[what]["high"].as_f64().expect("a range") as u32;
    let (most_tokens, sequences) = (most("tokens"), most("sequences").to_string());
    let short = [
        "--calibration",
        file,
        "--prompt-tokens",
        "8",
        "--output-tokens",
        "4",
        "--rate",
        "0.5",
        "--variation",
        "0.1",
        "--max-num-seqs",
        &sequences,
    ];
    // Bounds that are not given are those of the measured steps.
    let plan = json(&short[..10]);
    assert_eq!(plan["fleets"][0]["machine"], "this-machine", "{plan}\n{calibration}");
    assert!(plan["fleets"][0]["step_error_p90"].as_f64().expect("an error") > 0.0);
    let beyond = (most_tokens + 1).to_string();
    let told = error(&[&short[..], &["--max-num-batched-tokens", &beyond]].concat());
    assert!(told.contains(&format!("tokens of a step is {beyond}, outside the calibrated range")), "{told}");
}

/// A small replica and short answers, so that a day takes a moment.
const SMALL_DAY: [&str; 13] = [
    "--shape",
    SHAPE,
    "--machine",
    "h100",
    "--tensor-parallel",
    "1",
    "--max-num-seqs",
    "8",
    "--prompt-tokens",
    "40",
    "--output-tokens",
    "20",
    "--json",
];

#[test]
fn a_day_with_the_autoscaler_stands_beside_one_without() {
    let day = [
        "plan",
        "autoscale",
        "--rate",
        "40",
        "--hours",
        "0.2",
        "--target-sequences",
        "6",
        "--price",
        "h100=2",
    ];
    let output = run(&[&day[..], &SMALL_DAY[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |fleet: usize, name: &str| plan["autoscale"]["fleets"][fleet][name].as_f64().expect("a number");
    assert_eq!(plan["autoscale"]["fleets"][1]["name"], "fixed");
    assert_eq!(of(0, "failed_share"), 0.0);
    assert!((of(1, "price") - 2.0 * of(1, "replica_hours")).abs() < 1e-9, "{plan}");
    assert!(plan["autoscale"]["timeline"].as_array().expect("points").len() > 40);
}

#[test]
fn a_policy_that_oscillates_is_an_error_after_its_table() {
    let nervous =
        ["--up-cooldown-s", "0", "--down-cooldown-s", "0", "--start-up-s", "0", "--max-replicas", "12"];
    let day = ["plan", "autoscale", "--rate", "40", "--hours", "0.2", "--target-sequences", "1"];
    let output = run(&[&day[..], &nervous[..], &SMALL_DAY[..12]].concat());
    assert!(!output.status.success());
    assert!(text(&output.stdout).contains("turns between growing and shrinking"), "{}", text(&output.stdout));
    let told = text(&output.stderr);
    assert!(told.contains("target_sequences = 1") && told.contains("oscillates"), "{told}");
}

#[test]
fn the_load_of_a_plan_is_that_of_a_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("day.csv");
    let line = |n: u32| format!("2023-11-16 18:{:02}:{:02}.0000000,100,10\n", n / 60, n % 60);
    let lines: String = (0..600).map(line).collect();
    std::fs::write(&path, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")).expect("a file");
    let file = path.to_str().expect("a path");
    let plan = json(&["--shape", SHAPE, "--machine", "h100", "--day", file]);
    let of = |name: &str| plan["load"][name].as_f64().expect("a number");
    assert_eq!((of("requests_per_s"), of("prompt_tokens"), of("output_tokens")), (1.0, 100.0, 10.0));
    // One long request among short ones: the longest is known, and fits.
    let wide = folder.path().join("wide.csv");
    let lines = lines.replacen(",100,10\n", ",3000,900\n", 1).replace(",100,", ",20,");
    std::fs::write(&wide, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}")).expect("a file");
    json(&["--shape", SHAPE, "--machine", "h100", "--day", wide.to_str().expect("a path")]);
    let told = error(&["--shape", SHAPE, "--day", "/nowhere/day.csv"]);
    assert!(told.contains("/nowhere/day.csv"), "{told}");
}

/// A server that records offers a plan once it has seen enough steps, and others have none.
#[test]
fn a_recording_server_offers_a_plan_of_its_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("load.jsonl");
    let quiet = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    };
    let mut server = Server::start(&["--record", path.to_str().expect("a path"), "--no-speculation"], quiet);
    server.ready();
    let early = server.ask("GET", "/plan", "");
    assert!(early.starts_with("HTTP/1.1 503") && early.contains("plan_not_ready"), "{early}");
    for n in 0..4 {
        let body = format!(
            r#"{{"model": "throng-starter", "prompt": "Number {n} of", "max_tokens": 40, "ignore_eos": true}}"#
        );
        let answer = server.ask("POST", "/v1/completions", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // Lines are written by a thread of their own.
    let until = std::time::Instant::now() + LIMIT;
    let page = loop {
        let page = server.ask("GET", "/plan", "");
        if page.starts_with("HTTP/1.1 200") {
            break page;
        }
        assert!(page.contains("plan_not_ready") && std::time::Instant::now() < until, "{page}");
        std::thread::sleep(POLL);
    };
    assert!(page.contains("text/html") && page.contains("From the recording of this server: "), "{page}");
    let mut other = Server::start(&[], quiet);
    other.ready();
    assert!(other.ask("GET", "/plan", "").starts_with("HTTP/1.1 404"));
}
