//! The body of `POST /v1/completions`. Does not know how text becomes tokens.

use super::generation_fields::{GENERATION_FIELDS, UNSUPPORTED};
use super::generation_values::TOKENS;
use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Integer, Refused, Text};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::json::{JsonType, Node};
use crate::spec::{GenerationOptions, GenerationSpec, Infill, Input, Prompt, PromptsInput};

/// Maximum number of prompts of a request, and of answers over all prompts.
pub const MAX_PROMPTS: usize = 1024;

/// Default of `max_tokens`.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// A checked request for text completions.
#[derive(Debug, Clone)]
pub struct CompletionRequest {
    /// Parameters of the generation.
    pub spec: GenerationSpec,
    /// Whether the client set `prompt_logprobs` itself; otherwise they may be set because of `echo`.
    pub returns_prompt_logprobs: bool,
}

/// The parameters that only text completions have.
#[derive(Debug, Default)]
pub struct CompletionOptions {
    prompts: Vec<Prompt>,
    echo: Option<bool>,
    logprobs: Option<i64>,
    add_special_tokens: Option<bool>,
    suffix: Option<String>,
}

/// Accepted forms of `prompt`.
pub const PROMPT_SHAPE: Shape = Shape::AnyOf(&[
    Shape::Text(usize::MAX),
    Shape::Array(MAX_PROMPTS, &Shape::Text(usize::MAX)),
    TOKENS,
    Shape::Array(MAX_PROMPTS, &TOKENS),
]);

/// The parameters that only text completions have.
pub const COMPLETION_FIELDS: &[Field<CompletionOptions>] = &[
    field(
        "prompt",
        Custom(PROMPT_SHAPE, |o, node, _| {
            o.prompts = read_prompts(node, MAX_PROMPTS)?;
            Ok(())
        }),
        "Text, token ids, or a list of either.",
    ),
    field("echo", Boolean(|o| &mut o.echo), "Begin the answer with the prompt; false unless said."),
    field(
        "logprobs",
        Integer(-1, i32::MAX as i64, |o| &mut o.logprobs),
        "Report log-probabilities of the tokens and this many of the most likely ones beside each; -1: all.",
    ),
    field(
        "add_special_tokens",
        Boolean(|o| &mut o.add_special_tokens),
        "Let the tokenizer add special tokens such as the one that begins a text; true unless said.",
    ),
    field(
        "suffix",
        Text(usize::MAX, |o| &mut o.suffix),
        "Text behind the answer, for models that fill in the middle.",
    ),
    field("prompt_embeds", Refused(Shape::Any, |_| false), UNSUPPORTED),
];

/// Reads and checks the body of a text completion.
///
/// # Errors
/// A 400 that names the parameter.
pub fn parse(body: &[u8], options: &ReadOptions) -> Result<CompletionRequest, ApiError> {
    let default_max_tokens = Some(DEFAULT_MAX_TOKENS);
    let mut generation = GenerationOptions { default_max_tokens, ..GenerationOptions::default() };
    let mut own = CompletionOptions::default();
    let ignored = read_body(
        body,
        &mut [
            &mut Bound { fields: COMPLETION_FIELDS, target: &mut own },
            &mut Bound { fields: GENERATION_FIELDS, target: &mut generation },
        ],
        options,
    )?;
    generation.settle(ignored, options);
    if generation.model.is_some() && own.prompts.is_empty() {
        return Err(ApiError::missing_required_parameter("prompt"));
    }
    let echo = own.echo.unwrap_or(false);
    generation.check_together(echo)?;
    let n_generated = generation.n_generated() as usize;
    if own.prompts.len() * n_generated > MAX_PROMPTS {
        return Err(ApiError::array_above_max_length("prompt", MAX_PROMPTS / n_generated));
    }
    generation.logprobs = own.logprobs;
    let returns_prompt_logprobs = generation.prompt_logprobs.is_some();
    if echo && !returns_prompt_logprobs {
        generation.prompt_logprobs = own.logprobs;
    }
    let prompts = match own.suffix.filter(|suffix| !suffix.is_empty()) {
        None => own.prompts,
        Some(_) if echo => return Err(ApiError::mutually_exclusive("suffix", "echo")),
        Some(suffix) => {
            own.prompts.into_iter().map(|prompt| gap(prompt, &suffix)).collect::<Result<_, _>>()?
        }
    };
    let input = PromptsInput {
        prompts,
        repeats_texts: echo,
        add_special_tokens: own.add_special_tokens.unwrap_or(true),
    };
    let spec = GenerationSpec { options: generation, input: Input::Prompts(input) };
    Ok(CompletionRequest { spec, returns_prompt_logprobs })
}

/// The prompt for filling the gap between `prompt` and `suffix`.
fn gap(prompt: Prompt, suffix: &str) -> Result<Prompt, ApiError> {
    let Prompt::Text(before) = prompt else {
        return Err(ApiError::unsupported_parameter("suffix", "Only prompts of text have one."));
    };
    let (behind, files, param) = (suffix.to_owned(), Vec::new(), "suffix");
    Ok(Prompt::Infill(Box::new(Infill { before, behind, files, param })))
}

/// Reads `prompt`: one prompt, or a list of at most `max`. The first element determines the type of a list.
/// Errors name the parameter as a whole.
pub(super) fn read_prompts(node: &Node<'_, '_>, max: usize) -> Result<Vec<Prompt>, ApiError> {
    match node.json_type() {
        JsonType::String => Ok(vec![Prompt::Text(node.string(usize::MAX)?.into_owned())]),
        JsonType::Array => read_list(node, max).map_err(|error| error.with_param(node.path())),
        _ => Err(node.wrong_type("a string, an array of strings or an array of token ids")),
    }
}

fn read_list(node: &Node<'_, '_>, max: usize) -> Result<Vec<Prompt>, ApiError> {
    let (mut prompts, mut first) = (Vec::new(), None);
    let outcome = node.elements(usize::MAX, |_, element| {
        let first = *first.get_or_insert(element.json_type());
        if first == JsonType::Number {
            return Err(element.wrong_type("a string or an array of token ids"));
        }
        if prompts.len() == max {
            return Err(ApiError::array_above_max_length(node.path(), max));
        }
        match first {
            JsonType::String => prompts.push(Prompt::Text(element.string(usize::MAX)?.into_owned())),
            JsonType::Array => match element.token_ids(usize::MAX)? {
                tokens if tokens.is_empty() => return Err(ApiError::empty_array(element.path())),
                tokens => prompts.push(Prompt::Tokens(tokens)),
            },
            _ => return Err(element.wrong_type("a string, a token id or an array of token ids")),
        }
        Ok(())
    });
    match first {
        None => Err(ApiError::empty_array(node.path())),
        Some(JsonType::Number) => Ok(vec![Prompt::Tokens(node.token_ids(usize::MAX)?)]),
        Some(_) => outcome.map(|()| prompts),
    }
}
