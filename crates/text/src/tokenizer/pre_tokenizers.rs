//! Splits text into words before BPE: regexes for each `tokenizer.ggml.pre` name (a public convention of
//! GGUF files), and corrections of pre-tokenizers that the library parses. Does not know vocabularies.

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
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LLAMA3_DIGIT_RUNS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_WITHOUT_CONTRACTIONS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_ASIAN: &str = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CJK_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";

/// A convention: the first regex splits the text, the next one each piece, and so on. Text that a regex
/// does not match is a separate piece.
struct Row {
    /// Names, separated by spaces.
    names: &'static str,
    regexes: &'static [&'static str],
    /// Whether words that are vocabulary entries are never split.
    ignores_merges: bool,
    /// Whether a sequence starts with BOS unless the file says otherwise.
    adds_bos: bool,
}

const fn row(names: &'static str, regexes: &'static [&'static str]) -> Row {
    Row { names, regexes, ignores_merges: false, adds_bos: false }
}

const TABLE: &[Row] = &[
    row("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    Row {
        ignores_merges: true,
        adds_bos: true,
        ..row("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", &[LLAMA3])
    },
    Row { ignores_merges: true, adds_bos: true, ..row("tekken", &[TEKKEN]) },
    Row { ignores_merges: true, ..row("glm4 glm5", &[LLAMA3]) },
    Row { ignores_merges: true, ..row("minicpm5", &[r"\p{N}{1,3}", LLAMA3_DIGIT_RUNS]) },
    Row { ignores_merges: true, ..row("youtu", &[YOUTU_ASIAN, YOUTU]) },
    row("dbrx smaug-bpe chatglm-bpe", &[LLAMA3]),
    row("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe", &[GPT2]),
    row("gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4", &[GPT2]),
    row("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", &[r"\p{N}", GPT2]),
    row("falcon", &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    row("qwen2 stablelm2 deepseek-r1-qwen kormo f2llmv2 hunyuan grok-2 megrez solar-open", &[QWEN2]),
    row("qwen35", &[QWEN35]),
    row("laguna", &[r"[^\n]+|[\n]+", QWEN2]),
    row("ufakzeka", &[QWEN2_WITHOUT_CONTRACTIONS]),
    row(
        "deepseek-llm",
        &[
            "[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            CJK_HANGUL,
            r"\p{N}+",
        ],
    ),
    row("deepseek-coder", &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_HANGUL, r"\p{N}"]),
    row("deepseek-v3 hunyuan-dense joyai-llm hy_v4", &DEEPSEEK_PATTERNS),
    row("gpt-4o llama4 kanana2 talkie minimax-m2", &[GPT4O]),
    row("kimi-k2", &[KIMI_K2]),
    row("poro-chat bloom gpt3-finnish", &[BLOOM]),
    row("viking", &[BLOOM, r"\p{N}"]),
    row("bailingmoe bailingmoe2 llada-moe", &[BAILING]),
    row("seed-coder", &[SEED_CODER]),
];

/// The pre-tokenizer of a `tokenizer.ggml.pre` name.
pub(crate) struct Convention(&'static Row);

impl Convention {
    /// Looks up `name`; files without a name get `default`, as in llama.cpp.
    pub(crate) fn named(name: Option<&str>) -> Result<Self, TokenizerError> {
        let name = name.unwrap_or("default");
        let row = TABLE.iter().find(|row| row.names.split(' ').any(|known| known == name));
        row.map(Self).ok_or_else(|| {
            TokenizerError::Unsupported(format!("the pre-tokenizer {name:?} of a GGUF vocabulary"))
        })
    }

    /// Whether words that are vocabulary entries are never split.
    pub(crate) fn ignores_merges(&self) -> bool {
        self.0.ignores_merges
    }

    /// Whether a sequence starts with BOS unless the file says otherwise.
    pub(crate) fn adds_bos(&self) -> bool {
        self.0.adds_bos
    }

    /// The equivalent `pre_tokenizer` of a `tokenizer.json`.
    pub(crate) fn to_json(&self) -> Value {
        json!({"type": "Sequence", "pretokenizers": self.splits()})
    }

    /// A pre-tokenizer for each regex.
    pub(crate) fn splits(&self) -> Vec<Value> {
        self.0.regexes.iter().map(|regex| split(regex)).collect()
    }
}

/// A pre-tokenizer whose words are the matches of a regex, and what is between them.
pub(crate) fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// Compiles every regex of a pre-tokenizer. The library's parser leaves regexes without a native splitter
/// uncompiled, and its native splitter for one family of regexes treats any digit rule as `\p{N}{1,3}`.
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
            // These regexes match every character, so the pieces between the removed gaps are the matches.
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
        for row in TABLE {
            for regex in row.regexes {
                Split::new(SplitPattern::Regex((*regex).to_owned()), SplitDelimiterBehavior::Isolated, false)
                    .unwrap_or_else(|error| panic!("{}: {error}", row.names));
            }
        }
    }
}
