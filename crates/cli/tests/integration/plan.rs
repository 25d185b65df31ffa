//! `throng plan` and `throng calibrate` as programs: tables, JSON, the page, bad input.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::process::throng;

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

#[test]
fn a_configuration_without_weights_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("a file");
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
    let output = run(&["plan", "--shape", SHAPE, "--machine", "h100", "--simulate", "5", "--html", file]);
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
}

/// Measures the starter model for a moment, and plans with what it found.
#[test]
fn a_calibration_is_read_and_refuses_what_it_did_not_measure() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calibration.json");
    let file = path.to_str().expect("a path");
    let small = ["--seconds", "2", "--most-users", "8", "--most-prompt-tokens", "200"];
    let output = run(&[&["calibrate", "--output", file], &small[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("steps, tested on"), "{}", text(&output.stdout));
    let calibration: Value =
        serde_json::from_slice(&std::fs::read(Path::new(file)).expect("a file")).expect("JSON");
    let most_tokens = calibration["tokens"]["high"].as_f64().expect("a range") as u32;
    let tokens = most_tokens.to_string();
    let short = [
        "--calibration",
        file,
        "--prompt-tokens",
        "50",
        "--output-tokens",
        "20",
        "--rate",
        "0.5",
        "--variation",
        "0.1",
    ];
    let bounds = ["--max-num-seqs", "8", "--max-num-batched-tokens", &tokens];
    let plan = json(&[&short[..], &bounds[..]].concat());
    assert_eq!(plan["fleets"][0]["machine"], "this-machine");
    assert!(plan["fleets"][0]["step_error_p90"].as_f64().expect("an error") > 0.0);
    let beyond = (most_tokens + 1).to_string();
    let told = error(&[&short[..], &["--max-num-seqs", "8", "--max-num-batched-tokens", &beyond]].concat());
    assert!(told.contains(&format!("tokens of a step is {beyond}, outside the calibrated range")), "{told}");
}
