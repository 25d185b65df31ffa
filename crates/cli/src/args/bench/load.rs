//! The arguments of `throng bench URL`, `throng replay` and `throng trace`. Does not know how load is made.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use throng_gateway::RoutingPolicy;

use crate::bounds::{self, positive, within};
use crate::load::Api;

/// Server that load is made for.
#[derive(Debug, Clone, Args)]
pub struct LoadTargetArgs {
    /// The model; the server's first one when absent
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The API key
    #[arg(long, env = "THRONG_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// The endpoint
    #[arg(long, value_enum, default_value = "chat", value_name = "API")]
    pub api: Api,
    /// Have outputs go on behind end tokens, so that they have their length (vLLM and throng)
    #[arg(long)]
    pub ignore_eos: bool,
    /// Seconds after which a request counts as failed
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS", value_parser = positive)]
    pub timeout: f64,
    /// Most requests on their way at a time; others are not sent, and counted
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = within(bounds::LOAD_IN_FLIGHT))]
    pub max_in_flight: usize,
    /// Longest time to the first token of a good answer, in milliseconds
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub good_first_token: Option<f64>,
    /// Longest mean gap of a good answer, in milliseconds
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub good_gap: Option<f64>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Kinds of load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LoadKind {
    /// Independent requests
    #[default]
    Requests,
    /// Chats of several turns, with readers that think
    Chat,
    /// Agents with tools: dozens of turns whose prompts grow
    Agent,
}

/// `throng bench server`, which `throng bench URL` stands for.
#[derive(Debug, Clone, Args)]
pub struct BenchServerArgs {
    /// The server, http://HOST:PORT or https://HOST/v1
    pub url: String,
    /// Server and measurement.
    #[command(flatten)]
    pub target: LoadTargetArgs,
    /// What is asked for
    #[arg(long, value_enum, default_value = "requests", value_name = "KIND")]
    pub load: LoadKind,
    /// Requests (or beginning sessions) a second, whether or not those before are answered; one run each
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = positive, conflicts_with = "concurrency")]
    pub rate: Vec<f64>,
    /// Users that wait for their answer before they ask again; one run each: 1,4,16 when there is no --rate
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = within(bounds::LOAD_IN_FLIGHT))]
    pub concurrency: Vec<usize>,
    /// Raise the rate until the server no longer keeps up, and find the highest that it does
    #[arg(long, conflicts_with = "concurrency")]
    pub ramp: bool,
    /// Burstiness of arrivals: 1 are independent, more are bursts (coefficient of variation of the gaps)
    #[arg(long, default_value_t = 1.0, value_name = "CV", value_parser = positive)]
    pub burstiness: f64,
    /// Seconds of a run, without its warm-up
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = positive)]
    pub duration: f64,
    /// Seconds at the beginning of a run that do not count
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = bounds::not_negative)]
    pub warm_up: f64,
    /// Words of a prompt, which are about as many tokens
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = within(bounds::BENCH_TOKENS))]
    pub prompt_tokens: u32,
    /// Most tokens of an output
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = within(bounds::BENCH_TOKENS))]
    pub generate_tokens: u32,
    /// Words that all prompts begin with
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub shared_prefix: u32,
    /// Seconds between an answer and the next request of a user or a session
    #[arg(long, value_name = "SECONDS", value_parser = bounds::not_negative)]
    pub think: Option<f64>,
    /// Seed of arrivals, lengths and words
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// `throng replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// A recording of --record, or a trace of Azure or Mooncake with --url
    pub file: PathBuf,
    /// Send the requests to this server in real time, instead of simulating
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Server and measurement.
    #[command(flatten)]
    pub target: LoadTargetArgs,
    /// How many times as fast the requests come
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = positive)]
    pub speed: f64,
    /// Number of simulated replicas
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = within(bounds::SIMULATED_REPLICAS))]
    pub replicas: usize,
    /// How one of the simulated replicas is chosen
    #[arg(long, value_name = "POLICY")]
    pub routing: Option<RoutingPolicy>,
    /// Most sequences of a step of the simulated replicas, instead of the recorded setting
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<u32>,
    /// Most tokens of a step of the simulated replicas, instead of the recorded setting
    #[arg(long, value_name = "N")]
    pub max_num_batched_tokens: Option<u32>,
    /// KV blocks of each simulated replica, instead of the recorded number
    #[arg(long, value_name = "N")]
    pub kv_blocks: Option<u32>,
    /// Longest predicted wait in milliseconds with which the simulated gateway lets a request in
    #[arg(long, value_name = "MS")]
    pub max_queue_wait: Option<u64>,
    /// Kill the first simulated replica after so many seconds, and start it again 10 s later
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub kill_after: Option<f64>,
}

/// `throng trace`.
#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What to do with a recording or a trace.
#[derive(Debug, Clone, Subcommand)]
pub enum TraceCommand {
    /// Print lengths, rates, and what prefix caches of several sizes would have found
    Profile(TraceProfileArgs),
}

/// `throng trace profile`.
#[derive(Debug, Clone, Args)]
pub struct TraceProfileArgs {
    /// A recording of --record, or a trace of Azure or Mooncake
    pub file: PathBuf,
    /// Sizes of the prefix cache in GB
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256", value_name = "LIST", value_parser = positive)]
    pub cache: Vec<f64>,
    /// Bytes of keys and values of a token: throng inspect prints them for a model
    #[arg(long, default_value_t = 131_072, value_name = "BYTES", value_parser = within(bounds::KV_BYTES_PER_TOKEN))]
    pub kv_bytes: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{BenchInstead, Command, CommandLine};

    fn parse(words: &[&str]) -> Result<Option<Command>, clap::Error> {
        let words = crate::args::words_of(words.iter().map(Into::into));
        CommandLine::try_parse_from(words).map(|line| line.command)
    }

    #[test]
    fn a_url_of_a_server_is_measured_as_one() {
        for url in ["http://127.0.0.1:8000", "https://host/v1", "http://host:1/v1/"] {
            let command = parse(&["throng", "bench", url, "--rate", "1,2.5"]).expect(url);
            let Some(Command::Bench(bench)) = command else { panic!("{url}") };
            let Some(BenchInstead::Server(server)) = bench.instead else { panic!("{url}") };
            assert_eq!((server.url.as_str(), server.rate), (url, vec![1.0, 2.5]));
        }
        let command = parse(&["throng", "bench", "https://host/models/model.gguf"]).expect("a model");
        assert!(matches!(command, Some(Command::Bench(bench)) if bench.instead.is_none()));
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        for value in ["0", "-1", "NaN", "inf", "x"] {
            assert!(parse(&["throng", "bench", "http://h:1", "--rate", value]).is_err(), "{value}");
            assert!(parse(&["throng", "replay", "f", "--speed", value]).is_err(), "{value}");
        }
        assert!(parse(&["throng", "trace", "profile", "f", "--cache", "0.5,2"]).is_ok());
        assert!(parse(&["throng", "bench", "http://h:1", "--ramp", "--concurrency", "3"]).is_err());
    }
}
