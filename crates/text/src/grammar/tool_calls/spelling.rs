//! Spelling of the tool call formats: the texts around calls, names and arguments. Does not know grammars.

use crate::tool_calls::ToolCallFormat;

/// Spelling of a format's calls.
pub(super) struct CallSpelling {
    /// Text before the first call.
    pub before: &'static str,
    /// Text before the name.
    pub call: &'static str,
    /// Text between the name and the number of the call, for formats that number calls.
    pub number: &'static str,
    /// Text between the name and the arguments.
    pub arguments: &'static str,
    /// Style of the arguments.
    pub style: ArgumentStyle,
    /// Text after the arguments.
    pub call_end: &'static str,
    /// Text between two calls.
    pub between: &'static str,
    /// Text after the last call.
    pub after: &'static str,
    /// End of the text before a call, which is the start of `before`; empty if a call can only be the whole
    /// answer.
    pub trigger: &'static str,
    /// Other text that starts calls, so that free text must not contain it.
    pub also: &'static str,
    /// First character of calls that can only be the whole answer, as in a character class.
    pub first_char: &'static str,
    /// Characters, as in a character class, that free text must not start with: it would be parsed as a call
    /// even without `trigger`. They follow no `trigger`.
    pub bare: &'static str,
}

/// Style of a format's arguments.
#[derive(Clone, Copy)]
pub(super) enum ArgumentStyle {
    /// Arguments as one JSON object.
    Json,
    /// Tags around each argument; strings are written verbatim, other values as JSON.
    Tagged(&'static ArgumentTags),
    /// `key=value`, separated by commas; values as JSON.
    Python,
}

/// The tags around an argument.
pub(super) struct ArgumentTags {
    /// Text before the name.
    pub name: &'static str,
    /// Text between name and value.
    pub value: &'static str,
    /// Text after the value.
    pub end: &'static str,
    /// Texts that would end a value, so that a string value must not contain them.
    pub stops: &'static [&'static str],
}

/// Calls as consecutive JSON objects.
pub(super) const JSON: CallSpelling = CallSpelling {
    before: "",
    call: "{\"name\": \"",
    number: "",
    arguments: "\", \"arguments\": ",
    style: ArgumentStyle::Json,
    call_end: "}",
    between: ", ",
    after: "",
    trigger: "",
    also: "",
    first_char: "{",
    bare: "",
};

const HERMES: CallSpelling = CallSpelling {
    before: "<tool_call>\n",
    between: "\n</tool_call>\n<tool_call>\n",
    after: "\n</tool_call>",
    trigger: "<tool_call>",
    ..JSON
};

const DEEPSEEK: CallSpelling = CallSpelling {
    before: "<｜tool▁calls▁begin｜>",
    call: "<｜tool▁call▁begin｜>",
    arguments: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
    between: "",
    after: "<｜tool▁calls▁end｜>",
    trigger: "<｜tool▁calls▁begin｜>",
    also: "<｜tool▁call▁begin｜>",
    ..JSON
};

const KIMI_K2: CallSpelling = CallSpelling {
    before: "<|tool_calls_section_begin|>",
    call: "<|tool_call_begin|>functions.",
    number: ":",
    arguments: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
    between: "",
    after: "<|tool_calls_section_end|>",
    trigger: "<|tool_calls_section_begin|>",
    also: "<|tool_call_begin|>",
    ..JSON
};

const QWEN3_CODER: CallSpelling = CallSpelling {
    before: "<tool_call>\n",
    call: "<function=",
    arguments: ">\n",
    style: ArgumentStyle::Tagged(&ArgumentTags {
        name: "<parameter=",
        value: ">\n",
        end: "\n</parameter>\n",
        stops: &["</parameter>", "<parameter=", "</function>"],
    }),
    call_end: "</function>",
    between: "\n</tool_call>\n<tool_call>\n",
    after: "\n</tool_call>",
    trigger: "<tool_call>",
    also: "<function=",
    ..JSON
};

const SEED_OSS: CallSpelling = CallSpelling {
    before: "<seed:tool_call>\n",
    style: ArgumentStyle::Tagged(&ArgumentTags {
        name: "<parameter=",
        value: ">",
        end: "</parameter>\n",
        stops: &["</parameter>", "<parameter=", "</function>"],
    }),
    between: "\n</seed:tool_call>\n<seed:tool_call>\n",
    after: "\n</seed:tool_call>",
    trigger: "<seed:tool_call>",
    ..QWEN3_CODER
};

const MINIMAX_M2: CallSpelling = CallSpelling {
    before: "<minimax:tool_call>\n",
    call: "<invoke name=\"",
    arguments: "\">\n",
    style: ArgumentStyle::Tagged(&ArgumentTags {
        name: "<parameter name=\"",
        value: "\">",
        end: "</parameter>\n",
        stops: &["</parameter>", "<parameter name=", "</invoke>"],
    }),
    call_end: "</invoke>",
    between: "\n",
    after: "\n</minimax:tool_call>",
    trigger: "<minimax:tool_call>",
    ..JSON
};

const GLM: CallSpelling = CallSpelling {
    before: "<tool_call>",
    call: "",
    arguments: "\n",
    style: ArgumentStyle::Tagged(&ArgumentTags {
        name: "<arg_key>",
        value: "</arg_key>\n<arg_value>",
        end: "</arg_value>\n",
        stops: &["</arg_value>"],
    }),
    call_end: "</tool_call>",
    between: "\n<tool_call>",
    trigger: "<tool_call>",
    ..JSON
};

const PYTHONIC: CallSpelling = CallSpelling {
    before: "[",
    call: "",
    arguments: "(",
    style: ArgumentStyle::Python,
    call_end: ")",
    after: "]",
    also: "<|python_start|>",
    first_char: "\\[",
    ..JSON
};

const OLMO3: CallSpelling = CallSpelling {
    before: "<function_calls>\n",
    between: "\n",
    after: "\n</function_calls>",
    trigger: "<function_calls>",
    also: "",
    ..PYTHONIC
};

/// The spelling of a format. If a format has several, the model's own markers determine it. `None` for
/// Harmony, whose calls are messages.
pub(super) fn spelling(format: ToolCallFormat, is_control: &dyn Fn(&str) -> bool) -> Option<CallSpelling> {
    Some(match format {
        ToolCallFormat::Hermes => HERMES,
        // A code block, or a list or an object without a marker, may be a call too.
        ToolCallFormat::Generic => CallSpelling { also: "```json", bare: "{\\[", ..HERMES },
        ToolCallFormat::Llama3Json => {
            CallSpelling { arguments: "\", \"parameters\": ", between: "; ", also: "<|python_tag|>", ..JSON }
        }
        ToolCallFormat::Mistral if is_control("[ARGS]") => CallSpelling {
            call: "[TOOL_CALLS]",
            arguments: "[ARGS]",
            call_end: "",
            between: "",
            trigger: "[TOOL_CALLS]",
            ..JSON
        },
        ToolCallFormat::Mistral => {
            CallSpelling { before: "[TOOL_CALLS][", after: "]", trigger: "[TOOL_CALLS]", ..JSON }
        }
        ToolCallFormat::Granite => CallSpelling {
            before: "<|tool_call|>[",
            after: "]",
            trigger: "<|tool_call|>",
            also: "<tool_call>",
            ..JSON
        },
        ToolCallFormat::Granite20bFc => CallSpelling {
            before: "<function_call> ",
            between: "\n<function_call> ",
            trigger: "<function_call>",
            ..JSON
        },
        ToolCallFormat::Phi4Mini if is_control("<|tool_call|>") => CallSpelling {
            before: "<|tool_call|>[",
            after: "]<|/tool_call|>",
            trigger: "<|tool_call|>",
            also: "functools[",
            ..JSON
        },
        ToolCallFormat::Phi4Mini => CallSpelling {
            before: "functools[",
            after: "]",
            trigger: "functools[",
            also: "<|tool_call|>",
            ..JSON
        },
        ToolCallFormat::Jamba => CallSpelling {
            before: "<tool_calls>[\n    ",
            between: ",\n    ",
            after: "\n]</tool_calls>",
            trigger: "<tool_calls>",
            ..JSON
        },
        ToolCallFormat::DeepSeek => DEEPSEEK,
        ToolCallFormat::KimiK2 => KIMI_K2,
        ToolCallFormat::Qwen3Coder => QWEN3_CODER,
        ToolCallFormat::SeedOss => SEED_OSS,
        ToolCallFormat::MinimaxM2 => MINIMAX_M2,
        ToolCallFormat::Glm => GLM,
        ToolCallFormat::Pythonic => PYTHONIC,
        ToolCallFormat::Olmo3 => OLMO3,
        ToolCallFormat::Harmony => return None,
    })
}
