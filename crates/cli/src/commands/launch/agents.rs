//! Environment variables and arguments that point each coding agent to a server for this run, without a
//! change to the user's files. Starts nothing.

use serde_json::json;

use crate::args::Agent;

/// Variable from which agents read the key.
const KEY_VARIABLE: &str = "THRONG_API_KEY";
/// Key for servers without keys: most agents refuse an empty one.
const NO_KEY: &str = "none";
/// Timeout of Claude Code for an answer, in milliseconds: a long prompt takes minutes on a CPU.
const CLAUDE_TIMEOUT_MS: &str = "3600000";
/// Divisor of the context length for opencode's output limit.
const OUTPUT_SHARE: u64 = 4;

/// The server for an agent.
#[derive(Debug, Clone, Copy)]
pub struct ServedTo<'a> {
    /// The server's address without `/v1`.
    pub url: &'a str,
    /// The server's key, if it needs one.
    pub key: Option<&'a str>,
    /// Name of the model.
    pub model: &'a str,
    /// Context length of the model in tokens, if known.
    pub context: Option<u64>,
}

/// Command line and environment of an agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Arguments before those of the user.
    pub arguments: Vec<String>,
    /// Environment variables to set.
    pub set: Vec<(&'static str, String)>,
    /// Environment variables to remove.
    pub unset: Vec<&'static str>,
}

impl Agent {
    /// The name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Opencode => "opencode",
        }
    }

    /// The command that installs the program.
    pub fn install(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
            Self::Opencode => "npm install -g opencode-ai",
        }
    }

    /// The command line and environment for this server.
    pub fn launch(self, server: ServedTo<'_>) -> Launch {
        match self {
            Self::Claude => claude(server),
            Self::Codex => codex(server),
            Self::Opencode => opencode(server),
        }
    }
}

/// Claude Code, with this model in the place of all of Anthropic's models.
fn claude(server: ServedTo<'_>) -> Launch {
    let own = [
        ("ANTHROPIC_BASE_URL", server.url),
        ("ANTHROPIC_AUTH_TOKEN", server.key.unwrap_or(NO_KEY)),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        // The attribution line differs from request to request, which would defeat the prefix cache.
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0"),
        ("API_TIMEOUT_MS", CLAUDE_TIMEOUT_MS),
    ];
    let models = [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    ];
    let set = own.into_iter().chain(models.into_iter().map(|name| (name, server.model)));
    let set = set.map(|(name, value)| (name, value.to_owned())).collect();
    // Claude Code would send an Anthropic key instead of the token.
    Launch { set, unset: vec!["ANTHROPIC_API_KEY"], ..Launch::default() }
}

/// Codex, with a model provider defined for this run.
fn codex(server: ServedTo<'_>) -> Launch {
    let text = |value: &str| json!(value).to_string();
    let mut settings = vec![
        ("model_provider", text("throng")),
        ("model_providers.throng.name", text("Throng")),
        ("model_providers.throng.base_url", text(&format!("{}/v1", server.url))),
        ("model_providers.throng.wire_api", text("responses")),
        ("model_providers.throng.env_key", text(KEY_VARIABLE)),
        // OpenAI's own web search is a tool that other servers refuse.
        ("web_search", text("disabled")),
    ];
    settings.extend(server.context.map(|n| ("model_context_window", n.to_string())));
    let settings = settings.into_iter().flat_map(|(key, value)| ["-c".to_owned(), format!("{key}={value}")]);
    let arguments = settings.chain(["-m".to_owned(), server.model.to_owned()]).collect();
    Launch { arguments, set: vec![key(server)], ..Launch::default() }
}

/// opencode, with a configuration for this run on top of the user's.
fn opencode(server: ServedTo<'_>) -> Launch {
    let mut model = json!({"name": server.model});
    if let Some(context) = server.context {
        // Without these limits opencode asks for more output than many contexts hold.
        model["limit"] = json!({"context": context, "output": (context / OUTPUT_SHARE).max(1)});
    }
    let options =
        json!({"baseURL": format!("{}/v1", server.url), "apiKey": format!("{{env:{KEY_VARIABLE}}}")});
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": "Throng",
        "options": options,
        "models": {server.model: model},
    });
    let name = format!("throng/{}", server.model);
    let config = json!({"provider": {"throng": provider}, "model": name, "small_model": name});
    Launch { set: vec![("OPENCODE_CONFIG_CONTENT", config.to_string()), key(server)], ..Launch::default() }
}

fn key(server: ServedTo<'_>) -> (&'static str, String) {
    (KEY_VARIABLE, server.key.unwrap_or(NO_KEY).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServedTo<'_> =
        ServedTo { url: "http://127.0.0.1:1", key: None, model: "m", context: Some(8192) };

    fn value<'a>(launch: &'a Launch, name: &str) -> &'a str {
        launch.set.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    #[test]
    fn each_agent_is_told_where_its_model_is() {
        let claude = Agent::Claude.launch(SERVER);
        assert_eq!(value(&claude, "ANTHROPIC_BASE_URL"), SERVER.url);
        assert_eq!(
            (value(&claude, "ANTHROPIC_MODEL"), value(&claude, "ANTHROPIC_AUTH_TOKEN")),
            ("m", "none")
        );
        assert_eq!(claude.unset, ["ANTHROPIC_API_KEY"]);

        let codex = Agent::Codex.launch(ServedTo { key: Some("k"), ..SERVER });
        let settings = codex.arguments.join(" ");
        for setting in
            ["model_provider=\"throng\"", "wire_api=\"responses\"", "model_context_window=8192", "-m m"]
        {
            assert!(settings.contains(setting), "{settings}");
        }
        assert_eq!(value(&codex, "THRONG_API_KEY"), "k");

        let opencode = Agent::Opencode.launch(SERVER);
        let config: serde_json::Value =
            serde_json::from_str(value(&opencode, "OPENCODE_CONFIG_CONTENT")).expect("JSON");
        assert_eq!(config["model"], "throng/m");
        let provider = &config["provider"]["throng"];
        assert_eq!(provider["options"]["baseURL"], "http://127.0.0.1:1/v1");
        assert_eq!(provider["models"]["m"]["limit"], json!({"context": 8192, "output": 2048}));
    }
}
