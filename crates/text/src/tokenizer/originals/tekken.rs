//! `tekken.json`, as mistral-common has it: special tokens first, then tokens by rank, of which only as many
//! count as the vocabulary has room for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::byte_ranks::{ByteRanks, tokenizer_json};
use super::{Own, added_token, begins_with};
use crate::error::TokenizerError;
use crate::tokenizer::MAX_VOCABULARY;
use crate::tokenizer::pre_tokenizers::split;

/// Special tokens of files that name none.
const UNNAMED: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

#[derive(Deserialize)]
struct File {
    config: Config,
    vocab: Vec<Token>,
    #[serde(default)]
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Config {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Token {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: usize,
    token_str: String,
    #[serde(default = "yes")]
    is_control: bool,
}

fn yes() -> bool {
    true
}

/// Template of the chat formats v3, v7, v11 and v13, which differ by a variable.
const CHAT_TEMPLATE: &str = include_str!("tekken.jinja");
/// Versions whose chats the template writes.
const CHAT_VERSIONS: [u32; 4] = [3, 7, 11, 13];

/// Converts the file.
pub(super) fn convert(file: &[u8]) -> Result<Own, TokenizerError> {
    let malformed = |reason: String| TokenizerError::Malformed(format!("tekken.json: {reason}"));
    let file: File = serde_json::from_slice(file).map_err(|error| malformed(error.to_string()))?;
    let (n_all, n_special) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    let n_ranks = n_all.checked_sub(n_special).filter(|n| *n <= file.vocab.len() && n_all <= MAX_VOCABULARY);
    let n_ranks = n_ranks.ok_or_else(|| malformed(format!("a vocabulary of {n_all} tokens")))?;
    let mut tokens = Vec::with_capacity(n_ranks);
    for (rank, token) in file.vocab.iter().take(n_ranks).enumerate() {
        let bytes = BASE64_STANDARD.decode(&token.token_bytes).ok().filter(|_| token.rank == rank);
        tokens.push(bytes.ok_or_else(|| malformed(format!("the token of rank {rank}")))?);
    }
    let special = special_tokens(file.special_tokens, n_special).map_err(malformed)?;
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, (text, is_control))| added_token(id, text, *is_control))
        .collect();
    let id_of = |name: &str| special.iter().position(|(text, _)| text == name);
    let post_processor = id_of("<s>").map_or(Value::Null, |id| begins_with("<s>", id));
    let model = ByteRanks::new(tokens, n_special)?.model();
    let root = tokenizer_json(model, vec![split(&file.config.pattern)], added, post_processor);
    let named = |name: &'static str| id_of(name).map(|_| name);
    let config = json!({
        "bos_token": named("<s>"),
        "eos_token": named("</s>"),
        "unk_token": named("<unk>"),
        "pad_token": named("<pad>"),
    });
    Ok(Own { root, config: Some(config), chat_template: chat_template(&file.config.version) })
}

/// The chat template of a version (`v7`); `None` for one that is not known.
fn chat_template(version: &str) -> Option<String> {
    let number = version.strip_prefix('v')?.parse().ok().filter(|number| CHAT_VERSIONS.contains(number))?;
    Some(format!("{{%- set version = {number} -%}}{CHAT_TEMPLATE}"))
}

/// The special tokens by id, and whether each is a control token.
fn special_tokens(named: Option<Vec<SpecialToken>>, n: usize) -> Result<Vec<(String, bool)>, String> {
    let mut texts: Vec<(String, bool)> = (0..n).map(|id| (format!("<SPECIAL_{id}>"), true)).collect();
    let Some(named) = named else {
        texts.iter_mut().zip(UNNAMED).for_each(|(text, name)| text.0 = name.to_owned());
        return Ok(texts);
    };
    for token in named {
        let place =
            texts.get_mut(token.rank).ok_or_else(|| format!("the special token {:?}", token.token_str))?;
        *place = (token.token_str, token.is_control);
    }
    Ok(texts)
}
