//! Separates a model's reasoning from its answer. Does not know tokens, requests and the wire.

mod budget;
mod span;

pub use budget::ThinkingBudget;
pub(crate) use span::ReasoningSpan;

use crate::tool_calls::Harmony;

/// Format of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>`: DeepSeek R1 and V3.1, Qwen 3, GLM and many more.
    Think,
    /// `<seed:think>…</seed:think>`.
    SeedOss,
    /// `[THINK]…[/THINK]`: Magistral.
    Mistral,
    /// `Here is my thought process:`, then `Here is my response:`: Granite 3.2.
    Granite,
    /// The channel `analysis`: gpt-oss.
    Harmony,
}

impl ReasoningFormat {
    /// Names of the formats, as in vLLM's `--reasoning-parser`.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("deepseek_r1", Self::Think),
        ("deepseek_v3", Self::Think),
        ("qwen3", Self::Think),
        ("glm45", Self::Think),
        ("glm47", Self::Think),
        ("kimi_k2", Self::Think),
        ("minimax_m2", Self::Think),
        ("olmo3", Self::Think),
        ("seed_oss", Self::SeedOss),
        ("mistral", Self::Mistral),
        ("granite", Self::Granite),
        ("openai_gptoss", Self::Harmony),
    ];

    /// Strings in a chat template's source that together identify a format. The first matching row counts.
    const OF_TEMPLATES: &'static [(&'static [&'static str], Self)] = &[
        (&["<|channel|>", "<|message|>", "<|start|>"], Self::Harmony),
        (&["[THINK]"], Self::Mistral),
        (&["<seed:think>"], Self::SeedOss),
        (&["</think>"], Self::Think),
        (&["<think>"], Self::Think),
        (&["Here is my thought process:"], Self::Granite),
    ];

    /// The format with this name in [`Self::NAMES`].
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|known| known.0 == name).map(|known| known.1)
    }

    /// The format that a chat template uses. `mentions` says whether a string occurs in its source.
    pub(crate) fn of_template(mentions: &dyn Fn(&str) -> bool) -> Option<Self> {
        let fits = |row: &&(&[&str], Self)| row.0.iter().all(|text| mentions(text));
        Self::OF_TEMPLATES.iter().find(fits).map(|row| row.1)
    }

    /// Markers that open the reasoning, in all spellings.
    pub fn opens(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>"],
            Self::SeedOss => &["<seed:think>"],
            Self::Mistral => &["[THINK]"],
            Self::Granite => &["Here is my thought process:", "Here's my thought process:"],
            Self::Harmony => &["<|channel|>analysis<|message|>"],
        }
    }

    /// Markers that close the reasoning, in all spellings.
    pub fn closes(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["</think>"],
            Self::SeedOss => &["</seed:think>"],
            Self::Mistral => &["[/THINK]"],
            Self::Granite => &["Here is my response:", "Here's my response:"],
            Self::Harmony => &["<|end|>"],
        }
    }

    /// Markers that close the reasoning, and those that open it again.
    pub(crate) fn either(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>", "</think>"],
            Self::SeedOss => &["<seed:think>", "</seed:think>"],
            Self::Mistral => &["[THINK]", "[/THINK]"],
            Self::Granite | Self::Harmony => self.closes(),
        }
    }

    /// Whether reasoning is open at the end of this text, which the model continues.
    pub fn is_open_after(self, text: &str) -> bool {
        let last = |marks: &[&str]| marks.iter().filter_map(|mark| text.rfind(mark)).max();
        last(self.opens()).is_some_and(|open| last(self.closes()).is_none_or(|close| close < open))
    }

    /// All markers of the format.
    pub(crate) fn markers(self) -> Vec<&'static str> {
        match self {
            Self::Harmony => Harmony::MARKERS.to_vec(),
            _ => [self.opens(), self.closes()].concat(),
        }
    }
}
