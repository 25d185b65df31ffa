//! Hugging Face's `tokenizer.json`. Does not know GGUF.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};
use tokenizers::pipeline::{PipelineNormalizer, PipelineToken, PipelineTokenizer};
use tokenizers::vocab::bucket_added_vocabulary::AddedToken;

use super::added_tokens::{AddedEntry, added_vocabulary};
use super::byte_pairs::BytePairs;
use super::pairs::PairFrame;
use super::pieces::{PieceRule, TokenEntry};
use super::{MAX_VOCABULARY, Parts, TokenRoles, TokenizerConfig};
use crate::error::TokenizerError;

/// Parses a `tokenizer.json` of any version.
pub(crate) fn read(json: &[u8], config: Option<&TokenizerConfig>) -> Result<Parts, TokenizerError> {
    let mut root: Value = serde_json::from_slice(json)
        .map_err(|error| TokenizerError::Malformed(format!("tokenizer.json: {error}")))?;
    if !root.is_object() {
        return Err(TokenizerError::Malformed("tokenizer.json is not an object".to_owned()));
    }
    let puts_space_in_front = lower_prefix_space(&mut root);
    lower_word_split(&mut root);
    tokenizers::canonicalize_value(&mut root)
        .map_err(|error| TokenizerError::Malformed(error.to_string()))?;
    let vocab = take_vocab(&root)?;
    let mut added = added_entries(&root)?;
    if let Some(config) = config {
        let known: HashSet<String> = added.iter().map(|entry| entry.token.content.clone()).collect();
        added.extend(config.added_entries().filter(|entry| !known.contains(&entry.token.content)));
    }
    let entries = token_entries(&vocab, &added)?;
    let byte_level = root["model"]["byte_level"].as_bool().unwrap_or(false);
    let rule = PieceRule::from_decoder(&root["decoder"], byte_level)?;

    let model = match root["model"]["type"].as_str() {
        Some("BPE") => {
            let control: HashSet<&str> = control_texts(&added).collect();
            let model = byte_pairs(vocab, &root["model"])?.build(&control, entries.len())?;
            root["model"] = json!({"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"});
            Some(model)
        }
        _ => {
            rename_control_tokens(&mut root["model"], &control_texts(&added).collect());
            None
        }
    };
    // The library would assign its own ids to added tokens outside of the model.
    root["added_tokens"] = json!([]);
    for absent in ["truncation", "padding"] {
        root[absent] = Value::Null;
    }
    let frame = tokenizers::from_json(&root.to_string())
        .map_err(|error| TokenizerError::Unsupported(error.to_string()))?;
    let normalizers = frame.get_normalizers();
    let ends_in_metaspace = matches!(normalizers.last(), Some(PipelineNormalizer::Metaspace(_)));
    let n_late_normalizers = usize::from(puts_space_in_front || ends_in_metaspace);
    let mut parts = Parts {
        added: added_vocabulary(&added, &normalizers[..normalizers.len() - n_late_normalizers])?,
        n_late_normalizers,
        prefix: template_ids(&frame, true),
        suffix: template_ids(&frame, false),
        pair: pair_frame(&frame),
        frame,
        model,
        entries,
        rule,
        roles: TokenRoles::default(),
        named: config.map(|config| config.named.clone()).unwrap_or_default(),
    };
    if let Some(config) = config {
        apply_config(config, &added, &mut parts);
    }
    // The file does not name BOS; the token that starts every sequence is assumed.
    let opens = parts.prefix.last().copied();
    parts.roles.bos = parts.roles.bos.or(opens);
    Ok(parts)
}

fn template_ids(frame: &PipelineTokenizer, before: bool) -> Vec<u32> {
    let template = &frame.get_post_processor().single;
    let run = if before { &template.prefix } else { &template.suffix };
    run.iter().map(|&(token, _)| token.id()).collect()
}

/// The special tokens that the file puts around a pair; `None` if it adds none to a pair.
fn pair_frame(frame: &PipelineTokenizer) -> Option<PairFrame> {
    let template = &frame.get_post_processor().pair;
    let run =
        |run: &[(PipelineToken, u8)]| run.iter().map(|&(token, segment)| (token.id(), segment)).collect();
    let pair = PairFrame {
        prefix: run(&template.prefix),
        infix: run(&template.infix),
        suffix: run(&template.suffix),
        segments: [template.a_type_id, template.b_type_id.unwrap_or(0)],
    };
    (pair.n_special() > 0).then_some(pair)
}

/// Applies the names of BOS and EOS and the `add_bos_token`/`add_eos_token` switches, which in transformers
/// override the post-processor of the file.
fn apply_config(config: &TokenizerConfig, added: &[AddedEntry], parts: &mut Parts) {
    let id_of = |text: &Option<String>| {
        let text = text.as_deref()?;
        let by_added = added.iter().find(|entry| entry.token.content == text).map(|entry| entry.id);
        by_added.or_else(|| {
            let found = |entry: &Option<TokenEntry>| entry.as_ref().is_some_and(|entry| entry.text == text);
            parts.entries.iter().position(found).map(|idx| idx as u32)
        })
    };
    let (bos, eos) = (id_of(&config.bos_token), id_of(&config.eos_token));
    parts.roles = TokenRoles { bos, eos, ends_generation: eos.into_iter().collect(), ..Default::default() };
    for (switch, id, run) in
        [(config.add_bos_token, bos, &mut parts.prefix), (config.add_eos_token, eos, &mut parts.suffix)]
    {
        match (switch, id) {
            (Some(true), Some(id)) if !run.contains(&id) => *run = vec![id],
            (Some(false), Some(id)) => run.retain(|other| *other != id),
            _ => {}
        }
    }
}

fn control_texts(added: &[AddedEntry]) -> impl Iterator<Item = &str> {
    added.iter().filter(|entry| entry.token.special).map(|entry| entry.token.content.as_str())
}

fn check_id(id: u64) -> Result<u32, TokenizerError> {
    if id as usize >= MAX_VOCABULARY {
        return Err(TokenizerError::Malformed(format!("token id {id} is beyond any vocabulary")));
    }
    Ok(id as u32)
}

/// The model's `text → id` map, for any kind of model.
fn take_vocab(root: &Value) -> Result<HashMap<String, u32>, TokenizerError> {
    let bad = || TokenizerError::Malformed("a vocabulary entry is not a token with an id".to_owned());
    match &root["model"]["vocab"] {
        Value::Object(entries) => entries
            .iter()
            .map(|(text, id)| Ok((text.clone(), check_id(id.as_u64().ok_or_else(bad)?)?)))
            .collect(),
        Value::Array(entries) => entries
            .iter()
            .enumerate()
            .map(|(id, pair)| Ok((pair[0].as_str().ok_or_else(bad)?.to_owned(), check_id(id as u64)?)))
            .collect(),
        _ => Err(TokenizerError::Malformed("the model has no vocabulary".to_owned())),
    }
}

fn added_entries(root: &Value) -> Result<Vec<AddedEntry>, TokenizerError> {
    let entries = root["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut added = Vec::with_capacity(entries.len());
    for entry in entries {
        let (Some(id), Some(content)) = (entry["id"].as_u64(), entry["content"].as_str()) else {
            return Err(TokenizerError::Malformed("an added token lacks its id or content".to_owned()));
        };
        let flag = |name: &str| entry[name].as_bool().unwrap_or(false);
        let token = AddedToken::from(content, flag("special"))
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized"));
        added.push(AddedEntry { id: check_id(id)?, token });
    }
    added.sort_by_key(|entry| entry.id);
    Ok(added)
}

fn token_entries(
    vocab: &HashMap<String, u32>,
    added: &[AddedEntry],
) -> Result<Vec<Option<TokenEntry>>, TokenizerError> {
    let ids = vocab.values().copied().chain(added.iter().map(|entry| entry.id));
    let n_ids = ids.max().map_or(0, |id| id as usize + 1);
    // Ids may have gaps, but tables are as long as the largest id: a few tokens must not occupy much
    // memory.
    if n_ids > MAX_VOCABULARY.min(4 * (vocab.len() + added.len()) + (1 << 16)) {
        return Err(TokenizerError::Malformed(format!("token id {} is beyond the vocabulary", n_ids - 1)));
    }
    let mut entries = vec![None; n_ids];
    for (text, &id) in vocab {
        entries[id as usize] = Some(TokenEntry { text: text.clone(), added: false, special: false });
    }
    for AddedEntry { id, token } in added {
        entries[*id as usize] =
            Some(TokenEntry { text: token.content.clone(), added: true, special: token.special });
    }
    Ok(entries)
}

fn byte_pairs(vocab: HashMap<String, u32>, model: &Value) -> Result<BytePairs, TokenizerError> {
    let bad = || TokenizerError::Malformed("a merge is not a pair of tokens".to_owned());
    let merges = model["merges"].as_array().map(Vec::as_slice).unwrap_or_default().iter();
    let merges: Result<Vec<(String, String)>, TokenizerError> = merges
        .map(|pair| {
            let (left, right) = (pair[0].as_str().ok_or_else(bad)?, pair[1].as_str().ok_or_else(bad)?);
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect();
    if model["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err(TokenizerError::Unsupported("BPE dropout".to_owned()));
    }
    let flag = |name: &str| model[name].as_bool().unwrap_or(false);
    let text = |name: &str| model[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(BytePairs {
        vocab,
        merges: merges?,
        byte_level: flag("byte_level"),
        byte_fallback: flag("byte_fallback"),
        fuse_unknown: flag("fuse_unk"),
        unknown: text("unk_token"),
        continuing_subword_prefix: text("continuing_subword_prefix"),
        end_of_word_suffix: text("end_of_word_suffix"),
        ignore_merges: flag("ignore_merges"),
    })
}

/// Renames control tokens in models other than BPE to spellings that no text can have: Unigram in
/// particular would encode a text with a token's spelling as that token.
fn rename_control_tokens(model: &mut Value, control: &HashSet<&str>) {
    let unknown = model["unk_token"].as_str().map(str::to_owned);
    let renamed = |text: &str, id: usize| {
        let hide = control.contains(text) && unknown.as_deref() != Some(text);
        hide.then(|| format!("\u{10ffff}{id}\u{10ffff}"))
    };
    match &mut model["vocab"] {
        Value::Array(entries) => {
            for (id, pair) in entries.iter_mut().enumerate() {
                if let Some(name) = pair[0].as_str().and_then(|text| renamed(text, id)) {
                    pair[0] = Value::String(name);
                }
            }
        }
        Value::Object(entries) => {
            let hidden = std::mem::take(entries).into_iter().enumerate();
            *entries = hidden
                .map(|(idx, (text, id))| (renamed(&text, idx).unwrap_or(text), id))
                .collect::<Map<String, Value>>();
        }
        _ => {}
    }
}

/// Replaces a split at white space before a `Metaspace` pre-tokenizer (XLM-RoBERTa), which the library
/// cannot parse, by normalizers that leave one space between words: `Metaspace` splits there.
fn lower_word_split(root: &mut Value) {
    let steps = root["pre_tokenizer"]["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [split, metaspace] = steps else { return };
    let is_split = split["type"] == "WhitespaceSplit" && metaspace["type"] == "Metaspace";
    if !is_split || metaspace["split"] == false {
        return;
    }
    root["pre_tokenizer"] = metaspace.clone();
    let replace = |regex: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": content});
    let declared = Some(root["normalizer"].take()).filter(|normalizer| !normalizer.is_null());
    let ours = [replace(r"\A\s+|\s+\z", ""), replace(r"\s+", " ")];
    let normalizers: Vec<Value> = declared.into_iter().chain(ours).collect();
    root["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
}

/// Replaces `add_prefix_space` of a `ByteLevel` pre-tokenizer, which the library lacks, by a normalizer at
/// the end of the chain. Returns whether it did.
fn lower_prefix_space(root: &mut Value) -> bool {
    let pre_tokenizer = &mut root["pre_tokenizer"];
    let members = match pre_tokenizer["type"].as_str() {
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default()
        }
        Some("ByteLevel") => std::slice::from_mut(pre_tokenizer),
        _ => return false,
    };
    let mut found = false;
    for member in members {
        if member["type"] == "ByteLevel" && member["add_prefix_space"] == true {
            member["add_prefix_space"] = Value::Bool(false);
            found = true;
        }
    }
    if found {
        let prefix = json!({"type": "Replace", "pattern": {"Regex": r"\A(?=[^ ])"}, "content": " "});
        let normalizers = match root["normalizer"].take() {
            Value::Null => vec![prefix],
            declared => vec![declared, prefix],
        };
        root["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    }
    found
}
