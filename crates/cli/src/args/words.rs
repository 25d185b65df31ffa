//! Looks at the words of the command line before they are parsed: vLLM's flags of two letters, and words that the parser
//! would take for something else. Does not know what flags mean.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::hub::HubId;
use crate::source::BUILT_IN;

/// vLLM's flags of two letters. The parser would read `-pp 1` as `-p p`, a port.
const TWO_LETTERS: [(&str, &str); 3] =
    [("-tp", "--tensor-parallel-size"), ("-pp", "--pipeline-parallel-size"), ("-dp", "--data-parallel-size")];

/// Replaces flags of two letters by the long ones.
pub fn spell_out(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let spelled = |word: OsString| {
        let Some(text) = word.to_str() else { return word };
        let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
        match (TWO_LETTERS.iter().find(|(short, _)| *short == flag), value) {
            (None, _) => word,
            (Some((_, long)), None) => OsString::from(long),
            (Some((_, long)), Some(value)) => OsString::from(format!("{long}={value}")),
        }
    };
    words.into_iter().map(spelled).collect()
}

/// Checks the words after the program's name. `commands` are the names of the commands.
///
/// # Errors
/// What is wrong with a word that would be taken for a model. A word that may be an API key is not repeated.
pub fn check(words: &[OsString], commands: &[String]) -> Result<(), String> {
    if let Some(first) = words.first().and_then(|word| word.to_str())
        && !first.starts_with('-')
        && first != "help"
        && !commands.iter().any(|command| command == first)
        && !may_be_model(OsStr::new(first))
    {
        return Err(format!(
            "{first:?} is neither a command ({}) nor a model: a file or folder here, or a hub id (org/name), which \
             is downloaded when it is first used: throng serve org/name",
            commands.join(", ")
        ));
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

/// Whether a word has the form of a path or hub id, or names something that exists. An empty one is a model that was
/// left out (`"$MODEL"`), and refused as such.
fn may_be_model(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    text.is_empty()
        || is_path(&text)
        || HubId::parse(&text).is_some()
        || BUILT_IN.iter().any(|model| model.name == text)
}

/// Whether a text is a path: it exists, or has the form of one.
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
