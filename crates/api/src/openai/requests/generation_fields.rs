//! The table of parameters shared by chat and text completions. Does not know their effect on tokens.

use throng_core::fleet::overload::ServiceClass;

use super::early_stopping::{EARLY_STOPPING, read_early_stopping};
use super::generation_values::*;
use super::structured_output::*;
use crate::cache_hints::{MAX_KEY_BYTES, RETENTIONS, read_cache_key, read_retention};
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Ignored, Integer, ModelName, Number, Refused};
use crate::field::{Field, Range, ReadOptions, Shape, field};
use crate::json::{MAX_TREE_BYTES, Node};
use crate::spec::{GenerationOptions, TruncationSide};

/// Maximum number of continuations of a prompt.
pub const MAX_N: i64 = 128;

const TOKEN: Shape = Shape::Integer(0, u32::MAX as i64);
const TEXT: Shape = Shape::Text(MAX_TREE_BYTES);
const TEXT_OR_TEXTS: Shape =
    Shape::AnyOf(&[Shape::Text(MAX_STOP_BYTES), Shape::Array(16, &Shape::Text(MAX_STOP_BYTES))]);

/// The parameters of both kinds of completion.
pub const GENERATION_FIELDS: &[Field<GenerationOptions>] = &[
    field("model", ModelName(|r| &mut r.model), "The model to use."),
    field(
        "stream",
        Boolean(|r| &mut r.stream),
        "Answer token by token as server-sent events; false unless said.",
    ),
    field(
        "stream_options",
        Custom(Shape::Object, read_stream_options),
        "While streaming: include_usage adds a chunk with the usage, include_timings tells times there, continuous_usage_stats adds it to each.",
    ),
    field(
        "include_timings",
        Boolean(|r| &mut r.include_timings),
        "Tell in timings where the time of the answer went: waiting, prompt, output; false unless said.",
    ),
    field("n", Integer(1, MAX_N, |r| &mut r.n), "How many answers to give; 1 unless said."),
    field(
        "best_of",
        Integer(1, MAX_N, |r| &mut r.best_of),
        "How many answers to generate, of which the n most likely per token are given; with beam search: how many beams. n unless said.",
    ),
    field(
        "max_tokens",
        Integer(0, MAX_TOKENS, |r| &mut r.max_tokens),
        "The most tokens to generate; unless said 16 for text completions, for chats what is left of the context.",
    ),
    field(
        "min_tokens",
        Integer(0, MAX_TOKENS, |r| &mut r.min_tokens),
        "No end before this many tokens; 0 unless said.",
    ),
    field(
        "speculative.n_max",
        Integer(0, MAX_TOKENS, |r| &mut r.max_draft_tokens),
        "The most tokens that speculative decoding guesses at a time; 0: none. No output depends on it.",
    ),
    field(
        "temperature",
        Number(Range::closed(0.0, 2.0), |r| &mut r.temperature),
        "Divides the logits; 0 always takes the most likely token. Unless said what the model recommends, else 1.",
    ),
    field(
        "top_p",
        Number(Range::above(0.0, 1.0), |r| &mut r.top_p),
        "Keep the smallest set of tokens whose probabilities reach this. Unless said what the model recommends, else 1.",
    ),
    field(
        "top_k",
        Integer(-1, i32::MAX as i64, |r| &mut r.top_k),
        "Keep this many of the most likely tokens; 0 or -1: all. Unless said what the model recommends, else all.",
    ),
    field(
        "min_p",
        Number(Range::closed(0.0, 1.0), |r| &mut r.min_p),
        "Keep tokens at least this many times as likely as the most likely one. Unless said what the model recommends, else 0.",
    ),
    field(
        "presence_penalty",
        Number(Range::closed(-2.0, 2.0), |r| &mut r.presence_penalty),
        "Subtracted from the logit of every token that was generated; 0 unless said.",
    ),
    field(
        "frequency_penalty",
        Number(Range::closed(-2.0, 2.0), |r| &mut r.frequency_penalty),
        "Subtracted from the logit of every token as often as it was generated; 0 unless said.",
    ),
    field(
        "repetition_penalty",
        Number(Range::above(0.0, 100.0), |r| &mut r.repetition_penalty),
        "Weakens tokens of prompt and answer when above 1. Unless said what the model recommends, else 1.",
    ),
    field(
        "seed",
        Integer(i64::MIN, i64::MAX, |r| &mut r.seed),
        "Makes the answer repeatable; a new random number unless said.",
    ),
    field("logit_bias", Custom(Shape::Object, read_logit_bias), "Token id to what is added to its logit."),
    field(
        "allowed_token_ids",
        Custom(Shape::Array(MAX_ALLOWED_TOKENS, &TOKEN), read_allowed_tokens),
        "Only these tokens may be generated.",
    ),
    field(
        "bad_words",
        Custom(Shape::Array(MAX_WORDS, &Shape::Text(MAX_STOP_BYTES)), read_bad_words),
        "Words that must not be generated.",
    ),
    field(
        "stop",
        Custom(TEXT_OR_TEXTS, read_stop),
        "Texts that end the answer; at most 4 of them unless the operator allows more (16).",
    ),
    field(
        "stop_token_ids",
        Custom(Shape::Array(MAX_STOP_TOKENS, &TOKEN), |r, node, _| {
            r.stop_token_ids = node.token_ids(MAX_STOP_TOKENS)?;
            Ok(())
        }),
        "Tokens that end the answer.",
    ),
    field(
        "include_stop_str_in_output",
        Boolean(|r| &mut r.include_stop_str_in_output),
        "Whether the text that ended the answer is part of it; false unless said.",
    ),
    field(
        "ignore_eos",
        Boolean(|r| &mut r.ignore_eos),
        "Go on after the model's end token; false unless said.",
    ),
    field(
        "skip_special_tokens",
        Boolean(|r| &mut r.skip_special_tokens),
        "Leave special tokens out of the text; true unless said.",
    ),
    field(
        "spaces_between_special_tokens",
        Boolean(|r| &mut r.spaces_between_special_tokens),
        "Whether special tokens are set apart by spaces; true unless said.",
    ),
    field(
        "truncate_prompt_tokens",
        Integer(-1, MAX_TOKENS, |r| &mut r.truncate_prompt_tokens),
        "Keep only this many tokens of the prompt; -1: as many as fit.",
    ),
    field(
        "truncation_side",
        Custom(Shape::Choice(&["left", "right"]), |r, node, _| {
            let sides = [TruncationSide::Left, TruncationSide::Right];
            r.truncation_side = sides[node.one_of(&["left", "right"])?];
            Ok(())
        }),
        "Which side of the prompt truncation takes away; left unless said.",
    ),
    field(
        "prompt_logprobs",
        Integer(-1, MAX_TOKENS, |r| &mut r.prompt_logprobs),
        "Report log-probabilities of the prompt's tokens and this many alternatives; -1: all.",
    ),
    field(
        "return_token_ids",
        Boolean(|r| &mut r.return_token_ids),
        "Report token ids beside the text; false unless said.",
    ),
    field(
        "return_tokens_as_token_ids",
        Boolean(|r| &mut r.return_tokens_as_token_ids),
        "Name tokens in log-probabilities 'token_id:ID'.",
    ),
    field(
        "priority",
        Integer(i32::MIN as i64, i32::MAX as i64, |r| &mut r.priority),
        "Of one key's requests the smaller number goes first; 0 unless said. The server bounds how small.",
    ),
    field(
        "request_id",
        Custom(Shape::Text(MAX_REQUEST_ID_BYTES), read_request_id),
        "Becomes part of the answer's id.",
    ),
    field(
        "cache_salt",
        Custom(Shape::Text(MAX_LABEL_BYTES), read_cache_salt),
        "Keeps cached prefixes apart.",
    ),
    field(
        "response_format",
        Custom(Shape::Object, read_response_format),
        "The form of the output: text, json_object, json_schema or structural_tag.",
    ),
    field(
        "structured_outputs",
        Custom(Shape::Object, read_structured_outputs),
        "The form of the output, as vLLM writes it: json, regex, choice, grammar or structural_tag.",
    ),
    field(
        "structural_tag",
        Custom(Shape::Any, read_structural_tag),
        "Tags between which the output has a form, and what triggers them.",
    ),
    field("guided_json", Custom(Shape::Any, read_schema), "A JSON schema that the output satisfies."),
    field("guided_regex", Custom(TEXT, read_regex), "A regular expression that the output matches."),
    field(
        "guided_choice",
        Custom(Shape::Array(usize::MAX, &TEXT), read_choice),
        "The texts of which the output is one.",
    ),
    field("guided_grammar", Custom(TEXT, read_grammar), "A grammar (GBNF or Lark) of the output."),
    field("json_schema", Custom(Shape::Any, read_schema), "A JSON schema that the output satisfies."),
    field("grammar", Custom(TEXT, read_grammar), "A grammar (GBNF or Lark) of the output."),
    field("regex", Custom(TEXT, read_regex), "A regular expression that the output matches."),
    field("ebnf", Custom(TEXT, read_grammar), "A grammar (GBNF or Lark) of the output."),
    field("guided_decoding_backend", Ignored(Shape::Text(MAX_LABEL_BYTES)), IGNORED),
    field("guided_whitespace_pattern", Ignored(Shape::Text(MAX_LABEL_BYTES)), IGNORED),
    field(
        "use_beam_search",
        Boolean(|r| &mut r.use_beam_search),
        "Search for the n most likely answers; not with stream.",
    ),
    field(
        "early_stopping",
        Custom(EARLY_STOPPING, read_early_stopping),
        "When a beam search with enough answers ends: true at once, false when better ones are unlikely, 'never' when impossible.",
    ),
    field(
        "length_penalty",
        Number(Range::closed(-100.0, 100.0), |r| &mut r.length_penalty),
        "Of a beam search: an answer's log-probability is divided by its length to this power; 1 unless said.",
    ),
    field("logits_processors", Refused(Shape::Any, is_empty), UNSUPPORTED),
    field("logits_processor_args", Refused(Shape::Any, is_empty), UNSUPPORTED),
    field("logprob_token_ids", Refused(Shape::Array(MAX_WORDS, &TOKEN), is_empty), UNSUPPORTED),
    field("repetition_detection", Refused(Shape::Object, is_empty), UNSUPPORTED),
    field("kv_transfer_params", Refused(Shape::Object, is_empty), UNSUPPORTED),
    field("vllm_xargs", Refused(Shape::Object, is_empty), UNSUPPORTED),
    field(
        "thinking_token_budget",
        Integer(-1, MAX_TOKENS, |r| &mut r.thinking_token_budget),
        "Most tokens of reasoning in a chat's answer; then it is closed. -1: no bound.",
    ),
    field("stream_interval", Refused(Shape::Integer(1, MAX_TOKENS), is_one), "Only 1 is accepted."),
    field("return_prompt_text", Refused(Shape::Boolean, is_false), UNSUPPORTED),
    field(
        "user",
        Custom(Shape::Text(MAX_LABEL_BYTES), read_user),
        "The end user: usage is told apart and limited by it.",
    ),
    field("metadata", Ignored(Shape::StringMap), IGNORED),
    field("store", Ignored(Shape::Boolean), IGNORED),
    field(
        "service_tier",
        Custom(Shape::Choice(&SERVICE_TIERS), read_service_tier),
        "The class of service: 'flex' is batch, 'priority' interactive.",
    ),
    field("safety_identifier", Ignored(Shape::Text(MAX_LABEL_BYTES)), IGNORED),
    field(
        "prompt_cache_key",
        Custom(Shape::Text(MAX_KEY_BYTES), |r, node, _| {
            r.prompt_cache_key = read_cache_key(node)?;
            Ok(())
        }),
        "Requests with one key go to one worker where its load permits, since they begin alike.",
    ),
    field(
        "prompt_cache_retention",
        Custom(Shape::Choice(RETENTIONS), |r, node, _| {
            r.keep_cached_s = Some(read_retention(node)?);
            Ok(())
        }),
        "How long the computed prompt is kept ahead of others: 'in_memory' five minutes, or '24h'.",
    ),
    field("session_id", Ignored(Shape::Text(MAX_LABEL_BYTES)), IGNORED),
];

const SERVICE_TIERS: [&str; 5] = ["auto", "default", "flex", "scale", "priority"];

fn read_service_tier(
    request: &mut GenerationOptions,
    node: &Node<'_, '_>,
    _: &ReadOptions,
) -> Result<(), ApiError> {
    request.service_class = match SERVICE_TIERS[node.one_of(&SERVICE_TIERS)?] {
        "flex" => Some(ServiceClass::Batch),
        "priority" => Some(ServiceClass::Interactive),
        _ => None,
    };
    Ok(())
}

/// Description of parameters that are accepted and have no effect.
pub const IGNORED: &str = "Accepted and without effect.";

/// Description of parameters that are refused unless their value is neutral.
pub const UNSUPPORTED: &str = "Not supported: refused unless the value asks for nothing.";
