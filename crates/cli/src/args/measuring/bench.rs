//! The arguments of `throng bench`. Does not know how anything is measured.

use clap::{Args, Subcommand, ValueEnum};

use super::load::BenchServerArgs;
use crate::args::{DeviceChoice, ModelArgs};
use crate::bounds::{self, within};

/// `throng bench`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// What to measure instead of a model.
    #[command(subcommand)]
    pub instead: Option<BenchInstead>,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = within(bounds::BENCH_TOKENS))]
    pub prompt_tokens: u32,
    /// Tokens generated for each prompt
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(bounds::BENCH_TOKENS))]
    pub generate_tokens: u32,
    /// Numbers of users at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "LIST", value_parser = within(bounds::STEP_ROWS))]
    pub concurrency: Vec<u32>,
    /// Number of tokens at the start of the prompts that are the same for all users
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub shared_prefix: u32,
    /// Temperature; 0 always takes the most likely token
    #[arg(long, default_value_t = 0.0, value_name = "T", value_parser = within(bounds::TEMPERATURE))]
    pub temperature: f32,
    /// Keep the most likely tokens that together reach this probability
    #[arg(long, default_value_t = 1.0, value_name = "P", value_parser = bounds::probability)]
    pub top_p: f32,
    /// Keep this many of the most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub top_k: u32,
    /// Hold the outputs to a form, to compare with the same run without
    #[arg(long, value_name = "FORM", value_enum)]
    pub constraint: Option<BenchConstraint>,
    /// Compare decoding with and without drafts, of which each is accepted with this probability; a draft
    /// model given with --draft-model runs too, and its guesses are replaced
    #[arg(long, value_name = "P", value_parser = bounds::probability)]
    pub speculative_acceptance: Option<f32>,
    /// Most drafts of a sequence in a step, with --speculative-acceptance
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = within(bounds::DRAFT_TOKENS))]
    pub speculative_tokens: u32,
    /// How often --speculative-acceptance compares, without and with drafts in turn
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = within(bounds::BENCH_ROUNDS))]
    pub rounds: u32,
    /// Random adapters (LoRA) that the users take in turn
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = within(bounds::BENCH_ADAPTERS))]
    pub adapters: u32,
    /// The rank of the random adapters
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = within(bounds::ADAPTER_RANK))]
    pub adapter_rank: usize,
    /// Do not measure the machine's limits, and print no shares of them
    #[arg(long)]
    pub no_limits: bool,
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The form of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchConstraint {
    /// A long JSON list of any objects
    Json,
}

/// What `throng bench` can measure instead of a model.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchInstead {
    /// Measure the limits of this machine: bytes read and operations a second, by number of threads
    Machine(BenchMachineArgs),
    /// Measure an OpenAI-compatible server under load; the same as throng bench URL
    Server(Box<BenchServerArgs>),
}

/// `throng bench machine`.
#[derive(Debug, Clone, Args)]
pub struct BenchMachineArgs {
    /// Most threads; the machine's physical cores when absent
    #[arg(long, value_name = "N", value_parser = within(bounds::THREADS))]
    pub threads: Option<usize>,
    /// A GPU to measure beside the processor: vulkan:N or metal
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// One JSON object a line, for each number of threads and for the device, instead of a table
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Command, CommandLine};

    #[test]
    fn bench_measures_a_model_or_the_machine() {
        let bench = |arguments: &[&str]| {
            let line = CommandLine::try_parse_from([&["throng", "bench"], arguments].concat());
            line.map(|line| match line.command {
                Some(Command::Bench(bench)) => bench,
                other => panic!("{other:?}"),
            })
        };
        let model = bench(&["model.gguf", "--no-limits", "--threads", "3"]).expect("valid");
        assert!(model.instead.is_none() && model.no_limits);
        assert_eq!((model.model.model.as_deref(), model.model.threads), (Some("model.gguf"), Some(3)));
        assert!(!bench(&[]).expect("valid").no_limits);
        let json = bench(&["--constraint", "json"]).expect("valid");
        assert_eq!(json.constraint, Some(BenchConstraint::Json));
        let machine = bench(&["machine", "--threads", "2", "--json"]).expect("valid");
        let Some(BenchInstead::Machine(machine)) = machine.instead else { panic!("another command") };
        assert!(machine.threads == Some(2) && machine.json);
    }
}
