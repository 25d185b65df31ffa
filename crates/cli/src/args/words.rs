//! Rewrites and checks the words of the command line before they are parsed: short flags of vLLM and
//! llama.cpp, and words that the parser would misread. Does not know what flags mean.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::source::BUILT_IN;
use crate::spelling::nearest;
use throng_hub::HubId;

use super::foreign::{OPTIONAL_VALUES, SHORT};

/// vLLM's two-letter flags. The parser would read `-pp 1` as `-p p`, a port.
const TWO_LETTERS: [(&str, &str); 3] =
    [("-tp", "--tensor-parallel-size"), ("-pp", "--pipeline-parallel-size"), ("-dp", "--data-parallel-size")];

/// Words for a command in other programs, with Throng's command for the same purpose.
const OTHER_WORDS: [(&[&str], &str); 13] = [
    (&["start", "up", "server", "api", "llama-server"], "To serve: throng serve MODEL"),
    (&["ls"], "throng list lists the models on this machine"),
    (&["ps", "status", "top"], "throng fleet status shows the workers and models of a running gateway"),
    (&["remove", "delete", "uninstall"], "throng rm NAME removes a model from the cache"),
    (&["get", "fetch", "download", "install"], "throng pull MODEL brings a model into the cache"),
    (&["show", "info", "describe"], "throng inspect MODEL prints what a model consists of"),
    (&["complete", "completion", "prompt", "llama-cli"], "throng generate MODEL continues one prompt"),
    (&["benchmark", "perf", "llama-bench"], "throng bench MODEL measures a model"),
    (&["stop", "kill", "quit"], "A server ends by Ctrl-C, SIGTERM or systemctl stop throng"),
    (&["restart"], "throng reload --pid PID exchanges a server's process without an interruption"),
    (
        &["create", "quantize", "convert"],
        "A model is a file or folder; --quantize TYPE quantizes while it is loaded",
    ),
    (&["login", "signin", "auth"], "Set HF_TOKEN for private and gated models; throng keys makes API keys"),
    (&["version"], "throng --version prints the version"),
];

/// Replaces other servers' short flags by long ones, and joins a flag with its value where the value is
/// optional.
pub fn spell_out(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut spelled: Vec<OsString> = Vec::new();
    for word in words {
        let value = word.to_str().filter(|word| takes(spelled.last(), word)).map(str::to_owned);
        match (value, spelled.last_mut()) {
            (Some(value), Some(flag)) => flag.push(format!("={value}")),
            _ => spelled.push(long_form(word)),
        }
    }
    spelled
}

/// Writes `throng bench server URL` for `throng bench URL` where the URL is that of a server: without a path,
/// or with `/v1`. Other URLs are models.
pub fn name_servers(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_bench = words.get(1).is_some_and(|word| word == "bench");
    let is_server = |word: &OsString| word.to_str().is_some_and(is_server_url);
    if is_bench && words.get(2).is_some_and(is_server) {
        words.insert(2, "server".into());
    }
    words
}

fn is_server_url(word: &str) -> bool {
    let rest = word.strip_prefix("http://").or_else(|| word.strip_prefix("https://"));
    rest.is_some_and(|rest| match rest.trim_end_matches('/').split_once('/') {
        None => !rest.is_empty(),
        Some((host, path)) => !host.is_empty() && path == "v1",
    })
}

/// Whether a word is the optional value of the flag before it.
fn takes(flag: Option<&OsString>, word: &str) -> bool {
    let flag = flag.and_then(|flag| flag.to_str());
    OPTIONAL_VALUES.iter().any(|(name, values)| flag == Some(name) && values.contains(&word))
}

fn long_form(word: OsString) -> OsString {
    let Some(text) = word.to_str() else { return word };
    let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
    let known = TWO_LETTERS.iter().chain(&SHORT).find(|(short, _)| *short == flag);
    match (known, value) {
        (None, _) => word,
        (Some((_, long)), None) => OsString::from(long),
        (Some((_, long)), Some(value)) => OsString::from(format!("{long}={value}")),
    }
}

/// Checks the words after the program's name. `commands` are the names of the commands.
///
/// # Errors
/// When a word would be mistaken for a model. The message does not repeat a word that may be an API key.
pub fn check(words: &[OsString], commands: &[String]) -> Result<(), String> {
    if let Some(first) = words.first().and_then(|word| word.to_str())
        && !first.starts_with('-')
        && first != "help"
        && !commands.iter().any(|command| command == first)
        && !may_be_model(OsStr::new(first))
    {
        return Err(unknown(first, commands));
    }
    let is_key_flag = |word: &OsString| word == "--api-key";
    let after_key = words.windows(3).filter(|three| is_key_flag(&three[0])).map(|three| &three[2]);
    for word in after_key {
        let is_flag = word.to_string_lossy().starts_with('-');
        let is_command = commands.iter().any(|command| word == command.as_str());
        if !is_flag && !is_command && !may_be_model(word) {
            return Err(
                "the second word after --api-key is neither a flag nor a model. Several API keys are \
                        separated by commas: --api-key KEY1,KEY2"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// The error for a first word that is neither a command nor a model.
fn unknown(word: &str, commands: &[String]) -> String {
    let lower = word.to_lowercase();
    let other = OTHER_WORDS.iter().find(|(words, _)| words.contains(&lower.as_str())).map(|(_, tip)| *tip);
    let close =
        || nearest(word, commands.iter().map(String::as_str)).map(|name| format!("Did you mean {name}?"));
    let tip = other.map(|tip| format!("{tip}.")).or_else(close);
    let tip = tip.map(|tip| format!("\n\n  tip: {tip}")).unwrap_or_default();
    format!(
        "{word:?} is neither a command ({}) nor a model: a file or folder here, or a hub id (org/name), which is \
         downloaded when it is first used: throng serve org/name{tip}",
        commands.join(", ")
    )
}

/// Whether a word has the form of a path or hub id, or names an existing file. An empty word (`"$MODEL"`)
/// counts as a model, which is refused later.
fn may_be_model(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    text.is_empty()
        || is_path(&text)
        || HubId::parse(&text).is_some()
        || BUILT_IN.iter().any(|model| model.name == text)
}

/// Whether a text is an existing path or has the form of one.
pub fn is_path(text: &str) -> bool {
    let begins = ["/", "./", "../", "~"].iter().any(|start| text.starts_with(start));
    let ends = [".gguf", ".safetensors"].iter().any(|end| text.to_ascii_lowercase().ends_with(end));
    begins || ends || text.contains('\\') || Path::new(text).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn two_letters_become_long_flags() {
        let spelled = spell_out(words("serve m -tp 2 -pp=1 -p 80 -dp"));
        let long = "serve m --tensor-parallel-size 2 --pipeline-parallel-size=1 -p 80 --data-parallel-size";
        assert_eq!(spelled, words(long));
        let spelled =
            spell_out(words("serve -hf org/name:Q4_K_M -ngl 99 -fa on -c 4096 -fa x.gguf --flash-attn"));
        let long = "serve --hf-repo org/name:Q4_K_M --gpu-layers 99 --flash-attn=on -c 4096 --flash-attn x.gguf \
                    --flash-attn";
        assert_eq!(spelled, words(long));
    }

    #[test]
    fn words_of_other_programs_have_tips() {
        let commands = ["serve", "chat", "pull"].map(str::to_owned);
        for (word, tip) in [
            ("serv", "Did you mean serve?"),
            ("ls", "throng list"),
            ("remove", "throng rm NAME"),
            ("ps", "throng fleet status"),
            ("puul", "Did you mean pull?"),
        ] {
            let told = check(&words(word), &commands).expect_err(word);
            assert!(told.contains(tip), "{word}: {told}");
        }
        assert!(!unknown("xyzzy", &commands).contains("tip:"));
    }

    #[test]
    fn words_that_are_no_models_are_refused() {
        let commands = ["serve", "chat"].map(str::to_owned);
        let check = |text| check(&words(text), &commands);
        for good in [
            "",
            "serve",
            "help serve",
            "--port 1",
            "org/name",
            "x.gguf",
            "throng-starter --port 1",
            "serve --api-key a",
            "serve m.gguf --api-key a --port 1",
            "serve --api-key a throng-starter",
            "serve --api-key a org/name --port 1",
            "--api-key a chat",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        assert!(check("pull x").is_err_and(|fault| fault.starts_with("\"pull\" is neither a command")));
        let told = check("serve --api-key key-1 key-2").expect_err("two keys");
        assert!(told.contains("separated by commas") && !told.contains("key-"), "{told}");
        assert!(check("serve m.gguf --api-key a b --port 1").is_err());
    }
}
