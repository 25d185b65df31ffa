//! Parses tool calls in answers: one incremental parser for each format that models are trained on. All are
//! state machines over characters and control tokens ([`scanner`]), so that results do not depend on how
//! the text arrives. Does not know tokens, requests and the wire.

mod argument_writer;
mod call_ids;
mod events;
mod glm_calls;
mod harmony;
mod json_call;
mod json_calls;
mod json_text;
mod python_calls;
mod python_literal;
mod quoted_call;
mod scanner;
mod schemas;
mod section_calls;
mod tagged_calls;

use std::sync::Arc;

use glm_calls::GlmCalls;
use json_calls::{JsonCalls, JsonSpelling};
use python_calls::{PythonCalls, PythonSpelling};
use section_calls::{SectionCalls, SectionSpelling};
use tagged_calls::{TagSpelling, TaggedCalls};

pub(crate) use call_ids::CallIds;
pub use events::AnswerEvent;
pub(crate) use events::EventSink;
pub(crate) use harmony::Harmony;
pub(crate) use scanner::{Machine, Scanner, Step};
pub(crate) use schemas::Kinds;
pub use schemas::ToolSchemas;

/// Maximum bytes of a tool's name.
const MAX_NAME_BYTES: usize = 128;

/// Maximum bytes held back after a tag until it is clear whether it ends a value; beyond it, the tag is
/// text.
const MAX_HELD_BYTES: usize = 256;

/// Format of a model's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen 2.5 and 3, Granite 4 and many more.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
    Qwen3Coder,
    /// Like [`Self::Qwen3Coder`], with `<seed:tool_call>`.
    SeedOss,
    /// `<minimax:tool_call><invoke name="…"><parameter name="…">…`.
    MinimaxM2,
    /// An answer that is `{"name": …, "parameters": …}`, or such an object after `<|python_tag|>`.
    Llama3Json,
    /// An answer that is `[name(key='value')]`, in Llama 4 between `<|python_start|>` and `<|python_end|>`.
    Pythonic,
    /// `<function_calls>` with one Python call in each line.
    Olmo3,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]` and `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// `<|tool_call|>[{"name": …, "arguments": …}]`: Granite 3.
    Granite,
    /// `<function_call> {"name": …, "arguments": …}`.
    Granite20bFc,
    /// `functools[{"name": …, "arguments": …}]` and `<|tool_call|>[…]<|/tool_call|>`.
    Phi4Mini,
    /// `<tool_calls>[{"name": …, "arguments": …}]</tool_calls>`.
    Jamba,
    /// `<｜tool▁call▁begin｜>…<｜tool▁sep｜>…<｜tool▁call▁end｜>`: DeepSeek V3, R1 and V3.1.
    DeepSeek,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>…<|tool_call_end|>`.
    KimiK2,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM 4.5 and later.
    Glm,
    /// Messages to `functions.name` on channels: gpt-oss.
    Harmony,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>` as instructed by a system text, for models
    /// whose chat template does not describe tools: see [`crate::generic_tools`]. Also accepts calls as
    /// JSON in a code block or without any text around.
    Generic,
}

impl ToolCallFormat {
    /// Names of the formats, as in vLLM's `--tool-call-parser`.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("hermes", Self::Hermes),
        ("granite4", Self::Hermes),
        ("qwen3_coder", Self::Qwen3Coder),
        ("qwen3_xml", Self::Qwen3Coder),
        ("seed_oss", Self::SeedOss),
        ("minimax_m2", Self::MinimaxM2),
        ("llama3_json", Self::Llama3Json),
        ("llama4_json", Self::Llama3Json),
        ("llama4_pythonic", Self::Pythonic),
        ("pythonic", Self::Pythonic),
        ("olmo3", Self::Olmo3),
        ("mistral", Self::Mistral),
        ("granite", Self::Granite),
        ("granite-20b-fc", Self::Granite20bFc),
        ("phi4_mini_json", Self::Phi4Mini),
        ("jamba", Self::Jamba),
        ("deepseek_v3", Self::DeepSeek),
        ("deepseek_v31", Self::DeepSeek),
        ("kimi_k2", Self::KimiK2),
        ("glm45", Self::Glm),
        ("glm47", Self::Glm),
        ("openai", Self::Harmony),
        ("generic", Self::Generic),
    ];

    /// Strings in a chat template's source that together identify a format. The first matching row counts.
    const OF_TEMPLATES: &'static [(&'static [&'static str], Self)] = &[
        (&["<|channel|>", "<|message|>", "<|start|>"], Self::Harmony),
        (&["<｜tool▁calls▁begin｜>"], Self::DeepSeek),
        (&["<|tool_calls_section_begin|>"], Self::KimiK2),
        (&["<arg_key>", "<arg_value>"], Self::Glm),
        (&["<seed:tool_call>"], Self::SeedOss),
        (&["<minimax:tool_call>"], Self::MinimaxM2),
        (&["<function=", "<parameter="], Self::Qwen3Coder),
        (&["[TOOL_CALLS]"], Self::Mistral),
        (&["<function_calls>"], Self::Olmo3),
        (&["functools["], Self::Phi4Mini),
        (&["<|tool|>", "<|/tool|>"], Self::Phi4Mini),
        (&["<|tool_call|>"], Self::Granite),
        (&["<function_call>"], Self::Granite20bFc),
        (&["<tool_calls>"], Self::Jamba),
        (&["<tool_call>"], Self::Hermes),
        (&["func_name1("], Self::Pythonic),
        (&["<|python_start|>"], Self::Pythonic),
        (&["<|python_tag|>"], Self::Llama3Json),
        (&["\"name\": function name", "\"parameters\": "], Self::Llama3Json),
    ];

    /// The format with this name in [`Self::NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|known| known.0 == name).map(|known| known.1)
    }

    /// The first name of the format.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|known| known.1 == self).map_or("none", |known| known.0)
    }

    /// The format that a chat template uses for past calls or asks for. `mentions` says whether a string
    /// occurs in its source.
    pub(crate) fn of_template(mentions: &dyn Fn(&str) -> bool) -> Option<Self> {
        let fits = |row: &&(&[&str], Self)| row.0.iter().all(|text| mentions(text));
        Self::OF_TEMPLATES.iter().find(fits).map(|row| row.1)
    }

    /// All markers of the format.
    pub(crate) fn markers(self) -> Vec<&'static str> {
        match self.spelling() {
            Spelling::Json(spelling) => spelling.markers(),
            Spelling::Section(spelling) => spelling.markers(),
            Spelling::Tagged(spelling) => spelling.markers(),
            Spelling::Python(spelling) => spelling.markers(),
            Spelling::Glm => GlmCalls::MARKERS.to_vec(),
            Spelling::Harmony => Harmony::MARKERS.to_vec(),
        }
    }

    /// Creates a state machine at the start of an answer. That of [`Self::Harmony`] parses reasoning too:
    /// see [`Harmony`].
    pub(crate) fn machine(self, tools: Arc<ToolSchemas>) -> Box<dyn Machine> {
        match self.spelling() {
            Spelling::Json(spelling) => Box::new(JsonCalls::new(spelling, tools)),
            Spelling::Section(spelling) => Box::new(SectionCalls::new(spelling)),
            Spelling::Tagged(spelling) => Box::new(TaggedCalls::new(spelling, tools)),
            Spelling::Python(spelling) => Box::new(PythonCalls::new(spelling, tools)),
            Spelling::Glm => Box::new(GlmCalls::new(tools)),
            Spelling::Harmony => Box::new(Harmony::new(Some(tools), false, false)),
        }
    }

    fn spelling(self) -> Spelling {
        match self {
            Self::Hermes => Spelling::Json(&JsonSpelling::HERMES),
            Self::Generic => Spelling::Json(&JsonSpelling::GENERIC),
            Self::Qwen3Coder => Spelling::Tagged(&TagSpelling::QWEN3_CODER),
            Self::SeedOss => Spelling::Tagged(&TagSpelling::SEED_OSS),
            Self::MinimaxM2 => Spelling::Tagged(&TagSpelling::MINIMAX_M2),
            Self::Llama3Json => Spelling::Json(&JsonSpelling::LLAMA3),
            Self::Pythonic => Spelling::Python(&PythonSpelling::LLAMA),
            Self::Olmo3 => Spelling::Python(&PythonSpelling::OLMO3),
            Self::Mistral => Spelling::Json(&JsonSpelling::MISTRAL),
            Self::Granite => Spelling::Json(&JsonSpelling::GRANITE),
            Self::Granite20bFc => Spelling::Json(&JsonSpelling::GRANITE_20B),
            Self::Phi4Mini => Spelling::Json(&JsonSpelling::PHI4),
            Self::Jamba => Spelling::Json(&JsonSpelling::JAMBA),
            Self::DeepSeek => Spelling::Section(&SectionSpelling::DEEPSEEK),
            Self::KimiK2 => Spelling::Section(&SectionSpelling::KIMI_K2),
            Self::Glm => Spelling::Glm,
            Self::Harmony => Spelling::Harmony,
        }
    }
}

/// State machine of a format, with the spelling of its family.
enum Spelling {
    Json(&'static JsonSpelling),
    Section(&'static SectionSpelling),
    Tagged(&'static TagSpelling),
    Python(&'static PythonSpelling),
    Glm,
    Harmony,
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// Whether a tool could have this name: allows more than OpenAI's API, as other servers do.
fn is_tool_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_name_char)
}
