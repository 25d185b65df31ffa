//! What a scrape of `/metrics` says, as Prometheus reads it: names, formats, histograms.

use std::collections::BTreeMap;

use crate::harness::{Client, Reply, Server, Setup, chat};
use serde_json::json;

const OPEN_METRICS: &str =
    "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

/// A server that has answered one chat with two choices of 5 tokens.
async fn server() -> Server {
    let server = Server::start(Setup::default()).await;
    let body = chat(json!({"max_tokens": 5, "ignore_eos": true, "n": 2}));
    assert_eq!(server.connect().await.post("/v1/chat/completions", &body).await.status, 200);
    server.has_made(10).await;
    server
}

async fn scrape(client: &mut Client, accept: &str) -> Reply {
    client.send(format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n")).await;
    client.reply().await.expect("a response")
}

/// The value of the one sample of this name (and the beginning of its labels).
fn value(text: &str, name: &str) -> f64 {
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
    let [line] = found[..] else { panic!("{} samples of {name} in {text}", found.len()) };
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[tokio::test]
async fn every_histogram_ends_with_a_bucket_that_holds_everything() {
    let server = server().await;
    let mut client = server.connect().await;
    for accept in ["text/plain", OPEN_METRICS] {
        let reply = scrape(&mut client, accept).await;
        let text = reply.text();
        let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram"));
        let mut n_series = 0;
        for name in typed {
            let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
            for line in text.lines().filter_map(|line| line.strip_prefix(&format!("{name}_bucket"))) {
                let (labels, count) = line.rsplit_once(' ').expect("a value");
                let labels = labels.trim_start_matches('{').trim_end_matches('}').split(',');
                let (bound, others): (Vec<&str>, Vec<&str>) = labels.partition(|l| l.starts_with("le="));
                let bound = bound[0].trim_start_matches("le=\"").trim_end_matches('"');
                let bound = bound.parse().unwrap_or_else(|_| panic!("a bound is a number: {line}"));
                let of_series = buckets.entry(others.join(",")).or_default();
                of_series.push((bound, count.parse().expect("a count is a number")));
            }
            for (labels, buckets) in &buckets {
                n_series += 1;
                assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}{labels}: {buckets:?}");
                let begin = if labels.is_empty() { "" } else { "{" };
                let count = value(text, &format!("{name}_count{begin}{labels}"));
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{name}{labels}");
            }
        }
        assert!(n_series >= 18, "{n_series} in {text}");
    }
}

#[tokio::test]
async fn scrapers_get_the_format_they_ask_for() {
    let server = server().await;
    let mut client = server.connect().await;
    let text = scrape(&mut client, "text/plain").await;
    assert_eq!(text.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(text.text().contains("\n# TYPE vllm:prompt_tokens_total counter\n"), "{}", text.text());
    assert!(!text.text().contains("# EOF"));
    let open = scrape(&mut client, OPEN_METRICS).await;
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(open.text().contains("\n# TYPE vllm:prompt_tokens counter\n"), "{}", open.text());
    assert!(open.text().ends_with("# EOF\n"));
    let samples = |reply: &Reply| -> Vec<String> {
        let samples = reply.text().lines().filter(|line| !line.starts_with('#'));
        samples.filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name.to_owned()).collect()
    };
    // The second scrape sees the exchange of the first.
    let of_models = |names: Vec<String>| -> Vec<String> {
        let mut names: Vec<_> = names.into_iter().filter(|name| !name.starts_with("http_")).collect();
        names.sort();
        names
    };
    assert_eq!(of_models(samples(&text)), of_models(samples(&open)));
}

#[tokio::test]
async fn requests_are_counted_under_vllm_s_names() {
    let server = server().await;
    let reply = scrape(&mut server.connect().await, "text/plain").await;
    let text = reply.text();
    let labels = "{model_name=\"paper\",engine=\"0\"";
    let n_prompt = value(text, &format!("vllm:request_prompt_tokens_sum{labels}"));
    for (name, expected) in [
        ("time_per_output_token_seconds_count", 8.0),
        ("inter_token_latency_seconds_count", 8.0),
        ("time_per_prefill_token_request_seconds_count", 2.0),
        ("request_max_num_generation_tokens_count", 1.0),
        ("request_max_num_generation_tokens_sum", 5.0),
        ("request_generation_tokens_sum", 10.0),
        ("request_params_max_tokens_sum", 5.0),
        ("request_params_n_sum", 2.0),
        ("request_prefill_kv_computed_tokens_count", 1.0),
        ("request_prefill_kv_computed_tokens_sum", n_prompt),
    ] {
        assert_eq!(value(text, &format!("vllm:{name}{labels}")), expected, "{name}");
    }
    for (reason, expected) in [("length", 2.0), ("stop", 0.0), ("abort", 0.0), ("error", 0.0)] {
        let name = format!("vllm:request_success_total{labels},finished_reason=\"{reason}\"}}");
        assert_eq!(value(text, &name), expected, "{reason}");
    }
    let by_source = |source: &str| {
        value(text, &format!("vllm:prompt_tokens_by_source_total{labels},source=\"{source}\"}}"))
    };
    // The second choice finds the whole blocks of the prompt in the cache.
    let n_hit = (n_prompt / 16.0).floor() * 16.0;
    assert_eq!((by_source("local_compute"), by_source("local_cache_hit")), (2.0 * n_prompt - n_hit, n_hit));
    assert_eq!(value(text, &format!("vllm:prompt_tokens_total{labels}")), 2.0 * n_prompt);
}

#[tokio::test]
async fn the_program_the_models_and_the_process_are_described() {
    let server = server().await;
    let reply = scrape(&mut server.connect().await, "text/plain").await;
    let text = reply.text();
    assert_eq!(value(text, "throng_build_info{version=\""), 1.0);
    assert_eq!(
        value(text, "throng_model_info{model_name=\"paper\",root=\"org/paper\",max_model_len=\""),
        1.0
    );
    if cfg!(target_os = "linux") {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let started = value(text, "process_start_time_seconds ");
        assert!((1.0..=now.as_secs_f64() + 1.0).contains(&started), "{started}");
        assert!(value(text, "process_cpu_seconds_total ") > 0.0);
        let (resident, virtual_) =
            (value(text, "process_resident_memory_bytes "), value(text, "process_virtual_memory_bytes "));
        assert!(1e6 < resident && resident < virtual_, "{resident} of {virtual_}");
        let (open, most) = (value(text, "process_open_fds "), value(text, "process_max_fds "));
        assert!(3.0 < open && open <= most, "{open} of {most}");
        assert!(value(text, "process_threads ") >= 2.0);
    }
}
