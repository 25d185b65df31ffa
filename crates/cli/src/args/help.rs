//! Arranges `--help`: flags in groups, each with its default, and a short page for the program itself. Does
//! not parse flags.

use clap::{Arg, Command};
use throng_core::scheduling::scheduler::SchedulerConfig;
use throng_engine::EngineConfig;
use throng_gateway::GatewayConfig;

/// A group of flags by the ids of their arguments. Flags without a group stand under "Options".
struct Group {
    heading: &'static str,
    /// The flags that most servers need; `-h` shows these alone.
    common: &'static [&'static str],
    /// All other flags of the group.
    further: &'static [&'static str],
}

/// The groups in the order in which `--help` shows them.
const GROUPS: &[Group] = &[
    Group {
        heading: "Model",
        common: &[
            "served_model_name",
            "revision",
            "download_dir",
            "max_model_len",
            "quantize",
            "quantize_cache",
            "chat_template",
            "tool_call_parser",
            "reasoning_parser",
            "override_generation_config",
            "default_chat_template_kwargs",
        ],
        further: &["tokenizer", "mmproj", "strict_config", "generation_config"],
    },
    Group {
        heading: "Server",
        common: &[
            "host",
            "port",
            "config",
            "profile",
            "api_key",
            "database",
            "admin_key",
            "allow_unauthenticated",
            "allowed_origins",
            "root_path",
            "ssl_certfile",
            "ssl_keyfile",
            "access_log",
            "log_format",
            "ollama",
        ],
        further: &[
            "max_pulled_bytes",
            "ledger_journal",
            "redis",
            "redis_ca",
            "redis_gateways",
            "admin_key_file",
            "admin_listen",
            "jwt_issuer",
            "jwt_audience",
            "jwt_jwks_url",
            "allowed_media_domains",
            "allowed_hosts",
            "allowed_methods",
            "allowed_headers",
            "allow_credentials",
            "uds",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "enable_tokenizer_info_endpoint",
            "access_log_bodies",
            "otlp_traces_endpoint",
            "mcp_config",
            "tool_pins",
            "record",
        ],
    },
    Group {
        heading: "Workers",
        common: &["listen", "worker_token", "replica", "replica_api_key", "routing"],
        further: &[
            "region",
            "role",
            "exchange_blocks",
            "peer_ca",
            "replica_ca",
            "replica_cert",
            "replica_key",
        ],
    },
    Group {
        heading: "Memory and speed",
        common: &[
            "device",
            "gpu_layers",
            "threads",
            "kv_cache_dtype",
            "kv_cache_memory",
            "kv_offload_dir",
            "draft_model",
        ],
        further: &[
            "experts_on",
            "kv_offload_bytes",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "force",
            "no_enable_prefix_caching",
            "speculative_config",
            "no_speculation",
            "reference",
            "isa",
        ],
    },
    Group { heading: "Adapters", common: &["lora_modules"], further: &["allow_runtime_lora_updating"] },
    Group {
        heading: "Requests",
        common: &[],
        further: &["scheduling_policy", "most_urgent_priority", "strict_parameters"],
    },
    Group {
        heading: "Expert",
        common: &[],
        further: &[
            "max_num_batched_tokens",
            "max_num_seqs",
            "inter_token_target_ms",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "max_request_memory",
            "max_logprobs",
            "max_loras",
            "max_lora_rank",
            "max_lora_memory",
            "max_explained_requests",
            "step_timeout",
            "shutdown_timeout",
        ],
    },
];

/// The program's own usage: the flags of `serve` are in its own help.
const USAGE: &str = "throng COMMAND [FLAGS]\n       throng [MODEL] [FLAGS]      the same as throng serve";

const EXAMPLES: &str = "Examples:
  throng                           serve the built-in model on 127.0.0.1:8000
  throng serve /models/model.gguf  serve a file, a folder or a hub id
  throng COMMAND --help            all flags of a command";

/// The last lines of the short help of commands that serve, and of their long help.
const MORE: &str = "--help lists all flags, those for sizes, bounds and timeouts under Expert.";
const FILE: &str = "The file of --config has the same settings and more: docs/configuration.md lists them.";

/// Groups the flags and adds their defaults to the help texts.
pub fn arranged(command: Command) -> Command {
    let defaults = defaults();
    command
        .override_usage(USAGE)
        .after_help(EXAMPLES)
        .mut_args(|arg| arg.hide(true))
        .mut_subcommands(|command| in_groups(command).mut_args(|arg| with_default(arg, &defaults)))
}

/// Groups the flags of a command. An argument that is changed by its id becomes the command's last, so the
/// groups follow each other as in [`GROUPS`].
fn in_groups(mut command: Command) -> Command {
    let is_flag = |arg: &&Arg| !arg.is_positional();
    let ids: Vec<String> =
        command.get_arguments().filter(is_flag).map(|arg| arg.get_id().to_string()).collect();
    if ids.iter().any(|id| id == "profile") {
        command = command.after_help(MORE).after_long_help(FILE);
    }
    for Group { heading, common, further } in GROUPS {
        for id in common.iter().chain(*further).filter(|id| ids.iter().any(|other| other == *id)) {
            let is_further = further.contains(id);
            command = command.mut_arg(id, |arg| arg.help_heading(*heading).hide_short_help(is_further));
        }
    }
    command
}

fn with_default(arg: Arg, defaults: &[(&str, String)]) -> Arg {
    let default = defaults.iter().find(|(id, _)| *id == arg.get_id().as_str());
    let help = arg.get_help().map(ToString::to_string);
    match (default, help) {
        (Some((_, default)), Some(help)) => arg.help(format!("{help} [default: {default}]")),
        _ => arg,
    }
}

/// Defaults of flags, where the configuration file does not set the value either.
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
        ("gpu_layers", "as many as fit".to_owned()),
        ("threads", "physical cores".to_owned()),
        ("kv_cache_dtype", "auto".to_owned()),
        ("kv_cache_memory", "40 % of free memory".to_owned()),
        ("kv_offload_bytes", "10GiB".to_owned()),
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
    fn each_flag_of_a_server_has_a_group_and_each_default_a_flag() {
        let command = CommandLine::command();
        let servers =
            ["serve", "worker", "gateway"].map(|name| command.find_subcommand(name).expect("a command"));
        let shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_positional();
        let flags = servers.iter().flat_map(|server| server.get_arguments().filter(shown));
        let ids: Vec<&str> = flags.map(|arg| arg.get_id().as_str()).collect();
        let named: Vec<&str> =
            GROUPS.iter().flat_map(|group| [group.common, group.further].concat()).collect();
        for id in &ids {
            assert_eq!(
                named.iter().filter(|named| *named == id).count(),
                1,
                "{id} is not in one group of GROUPS"
            );
        }
        for id in named.into_iter().chain(defaults().iter().map(|(id, _)| *id)) {
            assert!(ids.contains(&id), "{id} is no flag of a server");
        }
    }

    #[test]
    fn the_short_help_of_a_server_has_few_flags_and_the_long_one_ends_with_those_for_experts() {
        for server in ["serve", "worker", "gateway"] {
            let mut command = CommandLine::described();
            let command = command.find_subcommand_mut(server).expect("a command");
            let is_flag =
                |line: &&str| line.trim_start().starts_with('-') && !line.trim_start().starts_with("- ");
            let flags = |help: &str| help.lines().filter(is_flag).count();
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            let n_flags = flags(&short);
            // The last line names the long help.
            assert!((15..=36).contains(&n_flags), "{server}: {n_flags}: {short}");
            assert!(short.contains(MORE) && !short.contains("Expert:"), "{server}: {short}");
            let (_, last) = long.split_once("\nExpert:\n").expect("a group");
            let has_group = last.lines().any(|line| line.ends_with(':') && !line.starts_with(' '));
            assert!(!has_group && last.contains("--shutdown-timeout"), "{server}: {last}");
            assert!(flags(&long) > n_flags, "{server}: {long}");
        }
    }

    #[test]
    fn help_has_groups_and_defaults_and_that_of_the_program_is_short() {
        let mut command = arranged(CommandLine::command());
        let short = command.render_help().to_string();
        assert!(short.lines().count() <= 44 && !short.contains("--port"), "{short}");
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
