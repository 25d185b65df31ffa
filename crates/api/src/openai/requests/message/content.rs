//! Content of a message: a string, or a list of parts of text, images and reasoning. Does not know the
//! message's role.

use super::reasoning_part::read_reasoning;
use crate::cache_hints::read_cache_control;
use crate::error::ApiError;
use crate::image_source::{read_detail, read_image_url, read_url};
use crate::json::{JsonType, Node};
use crate::spec::{ContentPart, ImagePart, MAX_PARTS};

/// Types of parts: text, refused types, and reasoning, which strict servers also refuse.
const TYPES: &[&str] = &[
    "text",
    "input_text",
    "output_text",
    "refusal",
    "image_url",
    "image",
    "input_image",
    "input_audio",
    "audio_url",
    "video_url",
    "video",
    "file",
    "thinking",
    "reasoning",
    "redacted_thinking",
];
const N_TEXT_TYPES: usize = 4;
const N_STRICT_TYPES: usize = 12;

/// Content of a message.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Parts of text and images.
    pub parts: Vec<ContentPart>,
    /// Reasoning among the parts, if any.
    pub reasoning: Option<Reasoned>,
    /// Marks of `cache_control`: for each the number of parts up to it, and the time in seconds.
    pub marks: Vec<(usize, u32)>,
}

/// Reasoning parts of a message, joined.
#[derive(Debug)]
pub(super) struct Reasoned {
    /// Texts of the reasoning parts, joined by line breaks.
    pub text: String,
    /// Path of the first reasoning part.
    pub path: String,
}

/// A part of a message's content.
enum Part {
    Text(String),
    Image(Box<ImagePart>),
    Reasoning(String),
}

/// Reads `content`.
///
/// # Errors
/// A 400 that names the path; `empty_array` for a list without parts.
pub(super) fn read_content(node: &Node<'_, '_>) -> Result<Content, ApiError> {
    match node.json_type() {
        JsonType::String => {
            let parts = vec![ContentPart::Text(node.string(usize::MAX)?.into_owned())];
            Ok(Content { parts, ..Content::default() })
        }
        JsonType::Array => {
            if node.is_empty_container() {
                return Err(ApiError::empty_array(node.path()));
            }
            let (mut parts, mut marks) = (Vec::new(), Vec::new());
            let mut reasoning: Option<(Joined, String)> = None;
            node.elements(MAX_PARTS, |_, part| {
                let mut keep_s = None;
                match read_part(&part, &mut keep_s)? {
                    Part::Text(text) => parts.push(ContentPart::Text(text)),
                    Part::Image(image) => parts.push(ContentPart::Image(image)),
                    Part::Reasoning(text) => {
                        let new = || (Joined::with_capacity(text.len()), part.path());
                        reasoning.get_or_insert_with(new).0.push(&text);
                    }
                }
                marks.extend(keep_s.map(|keep_s| (parts.len(), keep_s)));
                Ok(())
            })?;
            let reasoning = reasoning.map(|(texts, path)| Reasoned { text: texts.finish(), path });
            Ok(Content { parts, reasoning, marks })
        }
        _ => Err(node.wrong_type("a string or an array of content parts")),
    }
}

/// Collects texts with line breaks between them.
struct Joined {
    text: String,
    is_first: bool,
}

impl Joined {
    fn with_capacity(n_bytes: usize) -> Self {
        Self { text: String::with_capacity(n_bytes), is_first: true }
    }

    fn push(&mut self, text: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.text.push('\n');
        }
        self.text.push_str(text);
    }

    fn finish(mut self) -> String {
        self.text.shrink_to_fit();
        self.text
    }
}

/// Reads a part, and the time of its `cache_control`, if any.
fn read_part(node: &Node<'_, '_>, keep_s: &mut Option<u32>) -> Result<Part, ApiError> {
    if node.json_type() == JsonType::String && !node.is_strict() {
        return Ok(Part::Text(node.string(usize::MAX)?.into_owned()));
    }
    let types = if node.is_strict() { &TYPES[..N_STRICT_TYPES] } else { TYPES };
    let mut kind = None;
    node.members(usize::MAX, |key, value| match key {
        "type" if value.is_null() => value.put(&mut kind, None),
        "type" => value.put(&mut kind, Some(value.one_of(types)?)),
        "cache_control" => {
            *keep_s = read_mark(&value);
            Ok(())
        }
        _ => Ok(()),
    })?;
    let kind = kind.flatten().ok_or_else(|| ApiError::missing_required_parameter(node.path_of("type")))?;
    match kind {
        N_STRICT_TYPES.. => read_reasoning(node).map(Part::Reasoning),
        _ if TYPES[kind] == "image_url" || TYPES[kind] == "input_image" => {
            read_image(node, TYPES[kind]).map(|image| Part::Image(Box::new(image)))
        }
        N_TEXT_TYPES.. => Err(ApiError::only_text(node.path_of(TYPES[kind]))),
        _ => read_text(node, TYPES[kind]).map(Part::Text),
    }
}

/// Reads Anthropic's `cache_control`, which clients of many providers send in OpenAI's form too. Other forms
/// than Anthropic's have no effect, and the answer is the same without it.
pub(super) fn read_mark(node: &Node<'_, '_>) -> Option<u32> {
    let keep_s = read_cache_control(node).ok().flatten();
    if keep_s.is_none() && !node.is_null() {
        node.ignore();
    }
    keep_s
}

/// Reads a text or refusal part. Other content in the same object is refused, since it would be lost.
fn read_text(node: &Node<'_, '_>, kind: &str) -> Result<String, ApiError> {
    let key = if kind == "refusal" { "refusal" } else { "text" };
    let mut said = None;
    node.members(usize::MAX, |name, value| match name {
        "type" => Ok(()),
        _ if name == key && value.is_null() => value.put(&mut said, None),
        _ if name == key => value.put(&mut said, Some(value.string(usize::MAX)?.into_owned())),
        "text" | "refusal" if value.is_null() => Ok(()),
        "cache_control" => Ok(()),
        // Citations, which strict servers also accept.
        "annotations" => {
            value.ignore();
            Ok(())
        }
        _ if !value.is_null() && (TYPES.contains(&name)) => Err(ApiError::unknown_parameter(value.path())),
        _ => value.ignore_unknown(),
    })?;
    said.flatten().ok_or_else(|| ApiError::missing_required_parameter(node.path_of(key)))
}

/// Reads an image, in the form of chat completions or of Responses.
///
/// # Errors
/// Errors of the image's URL; a refusal if no model takes images.
fn read_image(node: &Node<'_, '_>, kind: &str) -> Result<ImagePart, ApiError> {
    let param = || node.path_of(kind);
    let (mut image, mut detail) = (None, None);
    node.members(usize::MAX, |key, value| match key {
        "image_url" if kind == "image_url" => value.put(&mut image, read_image_url(&value, param())?),
        "image_url" if node.takes_images() => {
            let source = read_url(&value)?;
            value.put(&mut image, ImagePart { source, detail: None, param: param() })
        }
        "detail" if kind == "input_image" && !value.is_null() => value.put(&mut detail, read_detail(&value)?),
        _ => Ok(()),
    })?;
    if !node.takes_images() {
        return Err(ApiError::only_text(param()));
    }
    let image = image.ok_or_else(|| ApiError::missing_required_parameter(node.path_of("image_url")))?;
    Ok(ImagePart { detail: image.detail.or(detail.flatten()), ..image })
}
