//! The body of `POST /infill`.

use crate::error::ApiError;
use crate::field::Kind::{Boolean, Custom, Ignored, Integer, ModelName, Number, Refused, Text};
use crate::field::{Bound, Field, Range, ReadOptions, Shape, field, read_body};
use crate::json::{JsonType, Node};
use crate::spec::{GenerationOptions, GenerationSpec, Infill, Input, ParamNames, Prompt, PromptsInput};

/// Maximum number of additional files of a request.
const MAX_FILES: usize = 256;
/// Maximum number of stop strings of a request.
const MAX_STOPS: usize = 64;
/// Maximum bytes of a stop string.
const MAX_STOP_BYTES: usize = 1024;

/// A request while it is being read.
#[derive(Debug, Default)]
pub struct Body {
    options: GenerationOptions,
    prefix: Option<String>,
    suffix: Option<String>,
    prompt: Option<String>,
    files: Vec<(String, String)>,
}

const PENALTY: Range = Range::closed(-2.0, 2.0);

/// The parameters of `POST /infill`.
pub const INFILL_FIELDS: &[Field<Body>] = &[
    field("input_prefix", Text(usize::MAX, |b| &mut b.prefix), "The text before the gap."),
    field("input_suffix", Text(usize::MAX, |b| &mut b.suffix), "The text behind the gap."),
    field("prompt", Text(usize::MAX, |b| &mut b.prompt), "More of the text before the gap."),
    field(
        "input_extra",
        Custom(Shape::Array(MAX_FILES, &Shape::Object), |b, node, _| read_files(&mut b.files, node)),
        "Further files: filename and text of each.",
    ),
    field("model", ModelName(|b| &mut b.options.model), "The model to use; the only one unless said."),
    field("stream", Boolean(|b| &mut b.options.stream), "Answer piece by piece; false unless said."),
    field(
        "n_predict",
        Custom(Shape::Integer(-1, i32::MAX as i64), |b, node, _| {
            // A negative number means no limit but the context.
            b.options.max_tokens = Some(node.integer(-1, i32::MAX.into())?).filter(|n| *n >= 0);
            Ok(())
        }),
        "The most tokens to generate; -1, or unless said: as many as fit.",
    ),
    field(
        "temperature",
        Number(Range::closed(0.0, 2.0), |b| &mut b.options.temperature),
        "Divides the logits.",
    ),
    field(
        "top_k",
        Integer(-1, i32::MAX as i64, |b| &mut b.options.top_k),
        "Keep this many of the most likely tokens; 0 or -1: all.",
    ),
    field(
        "top_p",
        Number(Range::above(0.0, 1.0), |b| &mut b.options.top_p),
        "Keep the smallest set of tokens whose probabilities reach this.",
    ),
    field(
        "min_p",
        Number(Range::closed(0.0, 1.0), |b| &mut b.options.min_p),
        "Keep tokens at least this many times as likely as the most likely one.",
    ),
    field("seed", Integer(i64::MIN, i64::MAX, |b| &mut b.options.seed), "Makes the answer repeatable."),
    field(
        "repeat_penalty",
        Number(Range::above(0.0, 100.0), |b| &mut b.options.repetition_penalty),
        "Weakens tokens of prompt and answer when above 1.",
    ),
    field(
        "presence_penalty",
        Number(PENALTY, |b| &mut b.options.presence_penalty),
        "Subtracted from the logit of every token that was generated.",
    ),
    field(
        "frequency_penalty",
        Number(PENALTY, |b| &mut b.options.frequency_penalty),
        "Subtracted from the logit of every token as often as it was generated.",
    ),
    field(
        "stop",
        Custom(Shape::Array(MAX_STOPS, &Shape::Text(MAX_STOP_BYTES)), |b, node, _| read_stops(b, node)),
        "Texts that end the answer.",
    ),
    field(
        "n_probs",
        Refused(Shape::Integer(0, i32::MAX as i64), |node| node.text() == "0"),
        "Not supported.",
    ),
    field("cache_prompt", Ignored(Shape::Boolean), "Has no effect: prompts are always cached."),
    field("samplers", Ignored(Shape::Any), "Has no effect: the order of the samplers is fixed."),
    field("id_slot", Ignored(Shape::Integer(-1, i32::MAX as i64)), "Has no effect: there are no slots."),
    field("n_indent", Ignored(Shape::Integer(0, i32::MAX as i64)), "Has no effect."),
    field("t_max_prompt_ms", Ignored(Shape::Any), "Has no effect."),
    field("t_max_predict_ms", Ignored(Shape::Any), "Has no effect."),
    field("response_fields", Ignored(Shape::Any), "Has no effect: an answer has all its fields."),
    field(
        "timings_per_token",
        Ignored(Shape::Boolean),
        "Has no effect: the end of an answer has its timings.",
    ),
];

/// Reads and checks a body.
///
/// # Errors
/// A 400 that names the parameter.
pub(super) fn parse(body: &[u8], options: &ReadOptions) -> Result<GenerationSpec, ApiError> {
    let mut read = Body::default();
    let ignored = read_body(body, &mut [&mut Bound { fields: INFILL_FIELDS, target: &mut read }], options)?;
    let Body { options: mut generation, prefix, suffix, prompt, files } = read;
    generation.names =
        ParamNames { prompt: "input_prefix", max_tokens: "n_predict", ..ParamNames::default() };
    generation.may_end_with_context = true;
    generation.takes_only_model = true;
    generation.settle(ignored, options);
    generation.check_together(true)?;
    let mut before = prefix.ok_or_else(|| ApiError::missing_required_parameter("input_prefix"))?;
    before.push_str(prompt.as_deref().unwrap_or_default());
    let behind = suffix.ok_or_else(|| ApiError::missing_required_parameter("input_suffix"))?;
    let gap = Infill { before, behind, files, param: "input_prefix" };
    let prompts = vec![Prompt::Infill(Box::new(gap))];
    let input = PromptsInput { prompts, add_special_tokens: true, repeats_texts: false };
    Ok(GenerationSpec { options: generation, input: Input::Prompts(input) })
}

fn read_files(files: &mut Vec<(String, String)>, node: &Node<'_, '_>) -> Result<(), ApiError> {
    node.elements(MAX_FILES, |_, element| {
        let (mut name, mut text) = (None, None);
        element.known_members(&["filename", "text"], |key, value| {
            let slot = if key == "filename" { &mut name } else { &mut text };
            *slot = Some(value.string(usize::MAX)?.into_owned());
            Ok(())
        })?;
        let text = text.ok_or_else(|| ApiError::missing_required_parameter(element.path_of("text")))?;
        files.push((name.unwrap_or_else(|| "file".to_owned()), text));
        Ok(())
    })
}

fn read_stops(body: &mut Body, node: &Node<'_, '_>) -> Result<(), ApiError> {
    let mut read = |node: &Node<'_, '_>| {
        let text = node.string(MAX_STOP_BYTES)?;
        if text.is_empty() {
            return Err(ApiError::invalid_value(node.path(), "A stop string must not be empty."));
        }
        body.options.stop.push(text.into_owned());
        Ok(())
    };
    match node.json_type() {
        JsonType::String => read(node),
        _ => node.elements(MAX_STOPS, |_, element| read(&element)),
    }
}
