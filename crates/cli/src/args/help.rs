//! Arranges `--help`: flags in groups, each with its default, and a short page for the program itself. Does
//! not know how flags are parsed.

use clap::{Arg, Command};
use throng_core::scheduler::SchedulerConfig;
use throng_engine::EngineConfig;
use throng_gateway::GatewayConfig;

/// The groups of flags by the ids of their arguments. What is in no group stands under "Options".
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Model",
        &[
            "served_model_name",
            "revision",
            "download_dir",
            "tokenizer",
            "max_model_len",
            "quantize",
            "quantize_cache",
            "strict_config",
            "chat_template",
            "tool_call_parser",
            "reasoning_parser",
            "generation_config",
            "override_generation_config",
            "default_chat_template_kwargs",
        ],
    ),
    (
        "Server",
        &[
            "host",
            "port",
            "config",
            "api_key",
            "database",
            "ledger_journal",
            "redis",
            "redis_ca",
            "redis_gateways",
            "admin_key",
            "admin_key_file",
            "admin_listen",
            "jwt_issuer",
            "jwt_audience",
            "jwt_jwks_url",
            "allow_unauthenticated",
            "allowed_hosts",
            "allowed_origins",
            "allowed_methods",
            "allowed_headers",
            "allow_credentials",
            "root_path",
            "uds",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "enable_tokenizer_info_endpoint",
            "log_format",
            "access_log",
            "access_log_bodies",
            "otlp_traces_endpoint",
            "max_explained_requests",
            "shutdown_timeout",
        ],
    ),
    (
        "Memory and speed",
        &[
            "threads",
            "kv_cache_dtype",
            "kv_cache_memory",
            "max_num_batched_tokens",
            "max_num_seqs",
            "inter_token_target_ms",
            "no_enable_prefix_caching",
            "speculative_config",
            "draft_model",
            "no_speculation",
            "isa",
            "reference",
        ],
    ),
    (
        "Adapters",
        &["lora_modules", "max_loras", "max_lora_rank", "max_lora_memory", "allow_runtime_lora_updating"],
    ),
    (
        "Requests",
        &[
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "max_request_memory",
            "scheduling_policy",
            "most_urgent_priority",
            "max_logprobs",
            "strict_parameters",
            "step_timeout",
        ],
    ),
];

/// The program's own usage: the flags of `serve` are in its own help.
const USAGE: &str = "throng COMMAND [FLAGS]\n       throng [MODEL] [FLAGS]      the same as throng serve";

const EXAMPLES: &str = "Examples:
  throng                           serve the built-in model on 127.0.0.1:8000
  throng serve /models/model.gguf  serve a file, a folder or a hub id
  throng COMMAND --help            all flags of a command";

/// Puts flags into groups and says their defaults.
pub fn arranged(command: Command) -> Command {
    let defaults = defaults();
    let arrange = |arg: Arg| with_default(in_group(arg), &defaults);
    command
        .override_usage(USAGE)
        .after_help(EXAMPLES)
        .mut_args(|arg| arg.hide(true))
        .mut_subcommands(|command| command.mut_args(arrange))
}

fn in_group(arg: Arg) -> Arg {
    let id = arg.get_id().as_str();
    match GROUPS.iter().find(|(_, ids)| ids.contains(&id)) {
        Some((heading, _)) if !arg.is_positional() => arg.help_heading(*heading),
        _ => arg,
    }
}

fn with_default(arg: Arg, defaults: &[(&str, String)]) -> Arg {
    let default = defaults.iter().find(|(id, _)| *id == arg.get_id().as_str());
    let help = arg.get_help().map(ToString::to_string);
    match (default, help) {
        (Some((_, default)), Some(help)) => arg.help(format!("{help} [default: {default}]")),
        _ => arg,
    }
}

/// What holds where neither a flag nor the file says anything.
fn defaults() -> Vec<(&'static str, String)> {
    let (scheduler, gateway) = (SchedulerConfig::default(), GatewayConfig::default());
    let (server, api) = (&gateway.server, &gateway.api);
    let seconds = |ms: u64| (ms / 1000).to_string();
    vec![
        ("host", server.host.clone()),
        ("port", server.port.to_string()),
        ("shutdown_timeout", server.shutdown_timeout_s.to_string()),
        ("max_request_memory", format!("{}MiB", server.max_request_memory_bytes >> 20)),
        ("max_explained_requests", gateway.observability.max_explained_requests.to_string()),
        ("max_logprobs", api.max_logprobs.to_string()),
        ("most_urgent_priority", gateway.access.most_urgent_priority.to_string()),
        ("max_num_batched_tokens", scheduler.max_batch_tokens.to_string()),
        ("max_num_seqs", scheduler.max_batch_sequences.to_string()),
        ("max_num_queued_reqs", scheduler.max_queued_requests.to_string()),
        ("max_num_queued_tokens", scheduler.max_queued_tokens.to_string()),
        ("inter_token_target_ms", scheduler.inter_token_target_ms.to_string()),
        ("scheduling_policy", format!("{:?}", scheduler.policy).to_lowercase()),
        ("step_timeout", seconds(EngineConfig::default().step_timeout_ms)),
        ("max_model_len", "the model's own limit".to_owned()),
        ("threads", "physical cores".to_owned()),
        ("kv_cache_dtype", "auto".to_owned()),
        ("kv_cache_memory", "40 % of free memory".to_owned()),
        ("generation_config", "auto".to_owned()),
        ("served_model_name", "the model's own name".to_owned()),
        ("tool_call_parser", "found in the chat template".to_owned()),
        ("reasoning_parser", "found in the chat template".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::CommandLine;

    #[test]
    fn each_flag_of_serve_has_a_group_and_each_default_a_flag() {
        let command = CommandLine::command();
        let serve = command.find_subcommand("serve").expect("a command");
        let shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_positional();
        let ids: Vec<&str> = serve.get_arguments().filter(shown).map(|arg| arg.get_id().as_str()).collect();
        for id in &ids {
            assert!(GROUPS.iter().any(|(_, group)| group.contains(id)), "{id} is in no group of GROUPS");
        }
        let named = GROUPS.iter().flat_map(|(_, group)| group.iter().copied());
        for id in named.chain(defaults().iter().map(|(id, _)| *id)) {
            assert!(ids.contains(&id), "{id} is no flag of serve");
        }
    }

    #[test]
    fn help_has_groups_and_defaults_and_that_of_the_program_is_short() {
        let mut command = arranged(CommandLine::command());
        let short = command.render_help().to_string();
        assert!(short.lines().count() <= 36 && !short.contains("--port"), "{short}");
        let serve = command.find_subcommand_mut("serve").expect("a command").render_long_help().to_string();
        for words in [
            "\nMemory and speed:\n",
            "\nServer:\n",
            "[default: 8000]",
            "Maximum sequences in one step [default: 128]",
        ] {
            assert!(serve.contains(words), "{words}: {serve}");
        }
    }
}
