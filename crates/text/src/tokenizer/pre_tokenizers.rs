//! How a text is cut into words before BPE: the regexes each `tokenizer.ggml.pre` name stands for (a public
//! convention of GGUF files), and the repair of what the library reads. Refuses to know vocabularies.

use serde_json::{Value, json};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pipeline::PipelinePreTokenizer;
use tokenizers::pre_tokenizers::sequence::PipelineSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::{DEEPSEEK_PATTERNS, Grammar, recognize};

use crate::error::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{L}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CJK_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";

/// `(names, regexes)`: a text is cut by the first regex, each piece by the next, and so on; what a regex does
/// not match stays as a piece of its own.
const TABLE: &[(&[&str], &[&str])] = &[
    (&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    (&["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], &[LLAMA3]),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe", "smollm3"], &[LLAMA3]),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    (&["qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan", "grok-2", "megrez", "solar-open"], &[QWEN2]),
    (&["qwen35"], &[QWEN35]),
    (&["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"], &[r"\p{N}", GPT2]),
    (&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    (
        &["deepseek-llm"],
        &[
            "[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            CJK_HANGUL,
            r"\p{N}+",
        ],
    ),
    (&["deepseek-coder"], &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, r"\p{N}"]),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &DEEPSEEK_PATTERNS),
    (&["tekken"], &[TEKKEN]),
    (&["gpt-4o", "llama4", "kanana2"], &[GPT4O]),
    (&["minimax-m2"], &[GPT4O]),
    (&["kimi-k2"], &[KIMI_K2]),
    (&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    (&["viking"], &[BLOOM, r"\p{N}"]),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    (&["seed-coder"], &[SEED_CODER]),
];

/// Names whose words are looked up whole before any merge is tried.
const IGNORE_MERGES: &[&str] =
    &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"];

/// Names whose sequences open with BOS unless the file says otherwise.
const ADD_BOS: &[&str] =
    &["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"];

/// What a `tokenizer.ggml.pre` name stands for.
#[derive(Debug)]
pub(crate) struct Convention {
    regexes: &'static [&'static str],
    /// Whole words that are vocabulary entries are never split.
    pub(crate) ignore_merges: bool,
    /// BOS opens a sequence by default.
    pub(crate) add_bos: bool,
}

impl Convention {
    /// Looks `name` up; files without a name get `default`, as in llama.cpp.
    pub(crate) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        let name = name.unwrap_or("default");
        let row = TABLE.iter().find(|(names, _)| names.contains(&name));
        let (_, regexes) = row.ok_or_else(|| {
            TokenizerError::Unsupported(format!("the pre-tokenizer {name:?} of a GGUF vocabulary"))
        })?;
        Ok(Self { regexes, ignore_merges: IGNORE_MERGES.contains(&name), add_bos: ADD_BOS.contains(&name) })
    }

    /// As the `pre_tokenizer` of a `tokenizer.json`.
    pub(crate) fn to_json(&self) -> Value {
        let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": self.regexes.iter().map(split).collect::<Vec<_>>()})
    }
}

/// The pre-tokenizer with every regex compiled: the library's reader leaves those it has no native splitter for
/// without an engine, and its native splitter for one family of regexes takes any digit rule for `\p{N}{1,3}`.
pub(crate) fn runnable(read: &PipelinePreTokenizer) -> Result<PipelinePreTokenizer, TokenizerError> {
    match read {
        PipelinePreTokenizer::Split(split) => runnable_split(split).map(PipelinePreTokenizer::Split),
        PipelinePreTokenizer::Sequence(sequence) => {
            let members: Result<Vec<_>, _> = sequence.pre_tokenizers().iter().map(runnable).collect();
            Ok(PipelinePreTokenizer::Sequence(PipelineSequence::new(members?)))
        }
        other => Ok(other.clone()),
    }
}

fn runnable_split(split: &Split) -> Result<Split, TokenizerError> {
    let (mut pattern, mut behavior, mut invert) = (split.pattern.clone(), split.behavior, split.invert);
    if let SplitPattern::Regex(regex) = &pattern {
        let grammar = recognize(regex);
        if matches!(grammar, Some(Grammar::Cl100k { digit_cap }) if digit_cap != 1 && digit_cap != 3) {
            pattern = SplitPattern::Regex(format!("(?:{regex})"));
        } else if grammar.is_some() && invert && behavior == SplitDelimiterBehavior::Removed {
            // These regexes match every character: what is kept between the removed gaps are the matches.
            (behavior, invert) = (SplitDelimiterBehavior::Isolated, false);
        }
    }
    Split::new(pattern, behavior, invert)
        .map_err(|error| TokenizerError::Unsupported(format!("a pre-tokenizer's regex: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_conventions_have_a_native_splitter() {
        for regex in [GPT2, LLAMA3, QWEN2, GPT4O, TEKKEN, KIMI_K2] {
            assert!(recognize(regex).is_some(), "{regex}");
        }
    }

    #[test]
    fn every_convention_compiles() {
        for (names, regexes) in TABLE {
            for regex in *regexes {
                Split::new(SplitPattern::Regex((*regex).to_owned()), SplitDelimiterBehavior::Isolated, false)
                    .unwrap_or_else(|error| panic!("{names:?}: {error}"));
            }
        }
    }
}
