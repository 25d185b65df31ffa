use throng_plan::fleet::{Layout, Setup};
use throng_plan::load::Length;
use throng_plan::replica::{Batching, Targets, Role};
use throng_plan::{Catalogue, Load, Parallelism, ModelShape};
use crate::models;

pub fn setup(machine: &str, model: ModelShape, tensor: u32) -> Setup {
    Setup {
        machine: Catalogue::built_in().find(machine).expect("in the box").clone(),
        model,
        parallelism: Parallelism::tensor(tensor),
        batching: Batching { max_sequences: 256, max_batch_tokens: 2048, speculation: None },
        layout: Layout::Together,
        memory_share: 0.9,
        step_overhead_s: 0.0,
        measured: None,
    }
}

pub fn load(rate: f64) -> Load {
    let length = |mean| Length { mean, variation: 0.5 };
    Load { requests_per_s: rate, prompt: length(500.0), output: length(300.0), cached_share: 0.0, host_cached_share: 0.0 }
}

#[test]
fn dev() {
    let targets = Targets { first_token_s: Some(1.0), gap_s: Some(0.1) };
    for (machine, model, tp) in [("h100", models::llama_70b(), 4), ("h100", models::llama_70b(), 8), ("a100", models::llama_70b(), 8), ("h100", models::llama_8b(), 1), ("l4", models::llama_8b(), 1), ("h100", models::mixtral(), 2),("gb200", models::llama_70b(), 2)] {
        let s = setup(machine, model, tp);
        let t = std::time::Instant::now();
        match s.smallest(&load(10.0), &targets, 0) { Ok(p) => println!("{} {}: n {} dev {} highest {:.2} util {:.2} step {:.2}ms ttft {:.0}/{:.0} gap {:.1}/{:.1} run {:.1}/{:.0} kv {:.2} J {:?} {:?}", s.name(), s.model.name, p.n_replicas, p.n_devices, p.highest_rate/p.n_replicas as f64, p.utilization, p.steady.step_s*1e3, p.steady.first_token.mean*1e3, p.steady.first_token.p99*1e3, p.steady.gap.mean*1e3, p.steady.gap.p99*1e3, p.steady.n_running, p.steady.max_running, p.steady.cache_share, p.joules_per_token, t.elapsed()), Err(e) => println!("{}: {e}", s.name()) }
        let r = s.replica(&load(1.0), Role::Both);
        if let Ok(r) = r { println!("   alone: {:?}", r.steady(&load(0.001)).map(|s| (s.step_s, s.first_token.mean))); println!("   most {:?}", r.highest_rate(&load(1.0), &Targets::default())); }
        let apart = Setup { layout: Layout::Apart, ..s };
        println!("   apart {:?}", apart.smallest(&load(100.0), &targets, 0).map(|p| (p.n_replicas, p.n_prefill, p.n_devices, p.steady.first_token.p99, p.steady.gap.p99)));
    }
}
