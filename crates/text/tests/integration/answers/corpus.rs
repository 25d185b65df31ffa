//! Answers as models of each family write them, and what they say.

/// An answer and its parts.
#[derive(Debug, Clone)]
pub struct Case {
    pub tools: &'static str,
    pub reasoning: &'static str,
    pub in_reasoning: bool,
    pub answer: &'static str,
    pub content: &'static str,
    pub thought: &'static str,
    pub calls: &'static [(&'static str, &'static str)],
}

const NONE: Case =
    Case { tools: "", reasoning: "", in_reasoning: false, answer: "", content: "", thought: "", calls: &[] };

const fn calls(
    tools: &'static str,
    answer: &'static str,
    calls: &'static [(&'static str, &'static str)],
) -> Case {
    Case { tools, answer, calls, ..NONE }
}

const fn text(tools: &'static str, answer: &'static str) -> Case {
    Case { tools, answer, content: answer, ..NONE }
}

const WEATHER: &[(&str, &str)] = &[("get_weather", r#"{"city": "São Paulo"}"#)];
const TWO: &[(&str, &str)] = &[("get_weather", r#"{"city": "Rome"}"#), ("now", "{}")];

/// Well-formed answers.
pub const CASES: &[Case] = &[
    // Hermes, Qwen.
    calls(
        "hermes",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}\n</tool_call>",
        WEATHER,
    ),
    calls(
        "hermes",
        "<tool_call>{\"arguments\":{\"city\": \"Rome\"},\"name\":\"get_weather\"}</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n",
        &[("get_weather", r#"{"city": "Rome"}"#), ("now", "{}")],
    ),
    Case {
        content: "Let me see.",
        ..calls(
            "hermes",
            "Let me see.\n\n<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
            &[("now", "{}")],
        )
    },
    calls(
        "hermes",
        r#"<tool_call>{"name": "save", "arguments": "{\"text\": \"a \\\"b\\\" \u00e9\"}", "id": [1, "}"]}</tool_call>"#,
        &[("save", r#"{"text": "a \"b\" é"}"#)],
    ),
    calls(
        "hermes",
        r#"<tool_call>{"name":"save","arguments":{"text":"<tool_call>{</tool_call>","deep":[{"a":[]},"\\"]}}</tool_call>"#,
        &[("save", r#"{"text":"<tool_call>{</tool_call>","deep":[{"a":[]},"\\"]}"#)],
    ),
    Case {
        content: "Done: 1 < 2 and <tool_box>",
        ..calls(
            "hermes",
            "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>Done: 1 < 2 and <tool_box>",
            &[("now", "{}")],
        )
    },
    text("hermes", " A plain answer with {\"name\": \"get_weather\"} and < and <tool.\n\n"),
    // Qwen3-Coder.
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão Paulo\n</parameter>\n</function>\n</tool_call>",
        WEATHER,
    ),
    calls(
        "qwen3_xml",
        "<tool_call>\n<function=typed>\n<parameter=n>\n3\n</parameter>\n<parameter=x>\n-1.5e3\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n<parameter=list>\n[1, {\"a\": \"b\"}]\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n<parameter=text>\n\n  if a < b:\n    print(\"x\\n\")\n\n</parameter>\n</function>\n</tool_call>",
        &[(
            "typed",
            r#"{"n": 3, "x": -1.5e3, "on": true, "list": [1, {"a": "b"}], "maybe": null, "text": "\n  if a < b:\n    print(\"x\\n\")\n"}"#,
        )],
    ),
    calls(
        "qwen3_coder",
        "<tool_call><function=typed><parameter=n>many</parameter><parameter=unknown>1</parameter><parameter=maybe>7</parameter></function></tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        &[("typed", r#"{"n": "many", "unknown": "1", "maybe": 7}"#), ("now", "{}")],
    ),
    calls(
        "qwen3_coder",
        "<function=typed>\n<parameter=text>\na\n<parameter=n>\n1\n</function>\n</tool_call>",
        &[("typed", r#"{"text": "a", "n": 1}"#)],
    ),
    text("qwen3_coder", "Use <function and <tool_callx>, or <parameter=a>."),
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=typed>\n<parameter=list>\n[\"</parameter>\", {\"a\": \"\\\"</function>\"}]\n</parameter>\n<parameter=x>\n1e999\n</parameter>\n</function>\n</tool_call>",
        &[("typed", r#"{"list": ["</parameter>", {"a": "\"</function>"}], "x": 1e999}"#)],
    ),
    calls(
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>São Paulo</parameter>\n</function>\n</seed:tool_call>",
        WEATHER,
    ),
    calls(
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        TWO,
    ),
    // Llama.
    calls("llama3_json", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"São Paulo\"}}", WEATHER),
    calls(
        "llama3_json",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"São Paulo\"}}",
        WEATHER,
    ),
    calls(
        "llama4_json",
        "\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"name\": \"now\", \"parameters\": {}}",
        TWO,
    ),
    text("llama3_json", "{\"name\": \"Ann\", \"parameters\": {\"age\": 3}}"),
    text("llama3_json", "{\"name\": \"get_weather\"} is a start."),
    text("llama3_json", "{\"city\": \"Rome\", \"name\": \"get_weather\"}"),
    text("llama3_json", "The answer: {\"name\": \"get_weather\", \"parameters\": {}}"),
    text("llama3_json", "<|python_tag|>brave_search.call(query=\"x\")"),
    calls("pythonic", "[get_weather(city='São Paulo')]", WEATHER),
    calls(
        "llama4_pythonic",
        "<|python_start|>[get_weather(city=\"Rome\"), now()]<|python_end|>",
        &[("get_weather", r#"{"city": "Rome"}"#), ("now", "{}")],
    ),
    calls(
        "pythonic",
        "[typed(n=-3, on=True, maybe=None, list=[1, {'a': ('b',)}], text='it\\'s, (a) = \"b\"')]",
        &[(
            "typed",
            r#"{"n": -3, "on": true, "maybe": null, "list": [1,{"a":["b"]}], "text": "it's, (a) = \"b\""}"#,
        )],
    ),
    calls(
        "pythonic",
        "[typed(x=123456789012345678901234567890, list=[\"\\ud83d\\ude00\", -0.10])]",
        &[("typed", r#"{"x": 123456789012345678901234567890, "list": ["😀",-0.10]}"#)],
    ),
    calls(
        "pythonic",
        "[save(text='''it's \"two\"\nlines, (a)''', path='/tmp/a'), save(text='', b=\"\")]",
        &[
            ("save", r#"{"text": "it's \"two\"\nlines, (a)", "path": "/tmp/a"}"#),
            ("save", r#"{"text": "", "b": ""}"#),
        ],
    ),
    calls(
        "pythonic",
        r#"[save(text="""a \"quoted\" end\"""", raw=r'C:\new', joined='a, ' "b)", list=['''x''', ''])]"#,
        &[(
            "save",
            r#"{"text": "a \"quoted\" end\"", "raw": "C:\\new", "joined": "a, b)", "list": ["x",""]}"#,
        )],
    ),
    calls(
        "pythonic",
        r"[save(text='\x41\101\0\a\b\f\v\\n\d\u12')]",
        &[("save", r#"{"text": "AA\u0000\u0007\b\f\u000b\\n\\d\\u12"}"#)],
    ),
    calls(
        "olmo3",
        "<function_calls>\nsave(text='''a\nb''')\n</function_calls>",
        &[("save", r#"{"text": "a\nb"}"#)],
    ),
    text("pythonic", "[1, 2, 3]"),
    text("pythonic", "[unknown(a=1)] is a list."),
    calls("olmo3", "<function_calls>\nget_weather(city=\"Rome\")\nnow()\n</function_calls>", TWO),
    // Mistral.
    calls(
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}}]",
        TWO,
    ),
    calls("mistral", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]now[ARGS]{}", TWO),
    calls("mistral", "[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"São Paulo\"}", WEATHER),
    Case {
        content: "I look.",
        ..calls("mistral", "I look.[TOOL_CALLS]get_weather{\"city\": \"São Paulo\"}", WEATHER)
    },
    text("mistral", "[TOOL_CALLS]hello, world"),
    text("mistral", "[TOOL_CALLS] []"),
    // Granite, Phi, Jamba.
    calls(
        "granite",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}}]",
        TWO,
    ),
    calls(
        "granite",
        "<tool_call>[{\"arguments\": {\"city\": \"São Paulo\"}, \"name\": \"get_weather\"}]",
        WEATHER,
    ),
    calls(
        "granite-20b-fc",
        "<function_call> {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}} <function_call> {\"name\": \"now\"}",
        TWO,
    ),
    calls(
        "phi4_mini_json",
        "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}]",
        WEATHER,
    ),
    calls(
        "phi4_mini_json",
        "<|tool_call|>[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}}]<|/tool_call|>",
        WEATHER,
    ),
    text("phi4_mini_json", "Import functools, then functools.reduce."),
    calls(
        "jamba",
        "<tool_calls>[\n    {\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}\n]</tool_calls>",
        WEATHER,
    ),
    // DeepSeek, Kimi.
    calls(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    Case {
        content: "I look.",
        ..calls(
            "deepseek_v31",
            "I look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            TWO,
        )
    },
    calls(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        TWO,
    ),
    calls(
        "kimi_k2",
        "<|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        &[("now", "{}")],
    ),
    // GLM.
    calls(
        "glm45",
        "\n<tool_call>typed\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>text</arg_key>\n<arg_value>a\n<b></arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        &[("typed", r#"{"n": 3, "text": "a\n<b>"}"#), ("now", "{}")],
    ),
    calls(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>São Paulo</arg_value></tool_call>",
        WEATHER,
    ),
    // gpt-oss.
    Case {
        reasoning: "openai_gptoss",
        thought: "The user\nasks.",
        ..calls(
            "openai",
            "<|channel|>analysis<|message|>The user\nasks.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"São Paulo\"}<|call|>",
            WEATHER,
        )
    },
    Case {
        reasoning: "openai_gptoss",
        thought: "One.\nTwo.",
        content: "I look.",
        ..calls(
            "openai",
            "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}",
            &[("now", "{}")],
        )
    },
    Case {
        reasoning: "openai_gptoss",
        thought: "Hm.",
        content: " Hello\n",
        ..text(
            "openai",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|> Hello\n<|return|>",
        )
    },
    text("openai", "No channels to=functions.now at all"),
    calls(
        "openai",
        "<|channel|>commentary to=get_weather <|constrain|>json<|message|>{\"city\": \"São Paulo\"}<|call|>",
        WEATHER,
    ),
    calls("openai", " to=now<|channel|>commentary<|message|>{}<|call|>", &[("now", "{}")]),
    calls("openai", "<|channel|>commentary to=tools.now code<|message|>{}", &[("now", "{}")]),
    calls("openai", "<|channel|>analysis to=functions:now<|message|>{}", &[("now", "{}")]),
    Case { content: "{}", ..text("openai", "<|channel|>commentary to=browser.search<|message|>{}<|call|>") },
    // Models without a format of their own.
    calls(
        "generic",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
        TWO,
    ),
    calls("generic", "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}", WEATHER),
    calls(
        "generic",
        "[{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}}]",
        TWO,
    ),
    Case {
        content: "So:",
        ..calls(
            "generic",
            "So:\n```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}\n```\n",
            WEATHER,
        )
    },
    calls(
        "generic",
        "{\"tool_call\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"São Paulo\"}}}",
        WEATHER,
    ),
    text("generic", "```json\n{\"name\": \"Ann\", \"arguments\": {}}\n```\nand ```rust\nfn f() {}\n```"),
    text("generic", "[1, 2] is a list, {\"name\": \"now\"} is none.\n```json\n[{}]\n```"),
    text("generic", "{\"name\": \"now\"}"),
    // Reasoning.
    Case {
        reasoning: "qwen3",
        thought: "Let me\n\nthink <b>.",
        ..calls(
            "hermes",
            "<think>\nLet me\n\nthink <b>.\n</think>\n\n<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\": \"São Paulo\"}}</tool_call>",
            WEATHER,
        )
    },
    Case {
        reasoning: "deepseek_r1",
        in_reasoning: true,
        thought: "Hm. <tool_call>{}",
        content: "Hello </think>",
        ..text("hermes", "Hm. <tool_call>{}\n</think>\n\nHello </think>")
    },
    Case {
        reasoning: "glm45",
        in_reasoning: true,
        thought: "Hm.",
        content: "Hello",
        ..text("glm45", "\n<think>Hm.</think>Hello")
    },
    Case {
        reasoning: "qwen3",
        content: " Hello <think>a</think>",
        ..text("hermes", " Hello <think>a</think>")
    },
    Case {
        reasoning: "qwen3",
        thought: "no end </thin",
        content: "",
        ..text("hermes", "<think>no end </thin")
    },
    Case {
        reasoning: "mistral",
        thought: "Hm.",
        ..calls(
            "mistral",
            "[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{\"city\": \"São Paulo\"}",
            WEATHER,
        )
    },
    Case {
        reasoning: "granite",
        thought: "It is so.",
        content: "So it is.",
        ..text("granite", "Here is my thought process: It is so.\n\nHere is my response:\n\nSo it is.")
    },
];

/// Answers that are wrong in some way, or cut: nothing of them is lost, and what was begun stays a call.
pub const BROKEN: &[Case] = &[
    text("hermes", "<tool_call>\nnot JSON</tool_call> and more"),
    text("hermes", "<tool_call></tool_call>"),
    text("hermes", "<tool_call>{\"name\": 7}</tool_call>"),
    text("hermes", "<tool_call>{\"name\": \"now\"</tool_call>"),
    text("hermes", "<tool_call>{\"name\": \"no"),
    text("hermes", "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>"),
    Case {
        content: "<tool_call>{\"name\": \"x\"",
        ..calls(
            "hermes",
            "<tool_call>{\"name\": \"x\"<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
            &[("now", "{}")],
        )
    },
    Case {
        content: "}",
        ..calls("hermes", "<tool_call>{\"name\":\"now\",\"arguments\":{}}}\n</tool_call>", &[("now", "{}")])
    },
    calls("hermes", "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\": \"b", &[("now", "{\"a\": \"b")]),
    calls(
        "hermes",
        "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\": [1</tool_call>",
        &[("now", "{\"a\": [1")],
    ),
    text("qwen3_coder", "<tool_call>\nno function</tool_call>"),
    text("qwen3_coder", "<tool_call>\n<function=get weather>\n</function>"),
    text("qwen3_coder", "<tool_call>\n<function=get_wea"),
    calls("qwen3_coder", "<function=typed><parameter=text>\nab\n", &[("typed", "{\"text\": \"ab")]),
    calls("qwen3_coder", "<function=typed><parameter=n>\n12", &[("typed", "{\"n\": 12")]),
    text("llama3_json", "{\"name\": \"get_weather\", \"param"),
    calls("llama3_json", "{\"name\": \"now\", \"parameters\": {\"a\":", &[("now", "{\"a\":")]),
    text("pythonic", "[get_weather"),
    calls("pythonic", "[get_weather(city='Ro", &[("get_weather", "{\"city\": \"Ro")]),
    calls("pythonic", "[get_weather(city='''R'o'", &[("get_weather", "{\"city\": \"R'o'")]),
    calls("pythonic", "[typed(list=['Ro", &[("typed", "{\"list\": \"['Ro\"")]),
    calls("generic", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\"", &[("now", "{\"a\"")]),
    text("generic", "```json\n{\"name\": \"now\", \"arg"),
    calls("pythonic", "[typed(1, f(x))]", &[("typed", r#"{"0": 1, "1": "f(x)"}"#)]),
    text("mistral", "[TOOL_CALLS][{\"name\": 1}]"),
    text("mistral", "[TOOL_CALLS]get_weather[ARGS]none"),
    calls("mistral", "[TOOL_CALLS]now[ARGS]{\"a\"", &[("now", "{\"a\"")]),
    text("deepseek_v3", "<｜tool▁calls▁begin｜>nothing"),
    text("deepseek_v3", "<｜tool▁call▁begin｜>get weather<｜tool▁sep｜>{}"),
    text("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather"),
    calls("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{\"a\": ", &[("now", "{\"a\": ")]),
    text("glm45", "<tool_call>not a name!</tool_call>"),
    text("glm45", "<tool_call>get_wea"),
    calls("glm45", "<tool_call>typed<arg_key>text</arg_key><arg_value>ab", &[("typed", "{\"text\": \"ab")]),
    calls("openai", "<|channel|>commentary to=functions.now<|message|>{\"a\"", &[("now", "{\"a\"")]),
];

/// Values with tags of their own format in them, and with the line breaks of their writer.
pub const TAGS_IN_VALUES: &[Case] = &[
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=content>\nthe tag <parameter=x> is text here\n</parameter>\n<parameter=path>\n/tmp/b\n</parameter>\n</function>\n</tool_call>",
        &[("write", r#"{"content": "the tag <parameter=x> is text here", "path": "/tmp/b"}"#)],
    ),
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=content>\nends with </function> and goes on\n</parameter>\n<parameter=path>\n/tmp/b\n</parameter>\n</function>\n</tool_call>",
        &[("write", r#"{"content": "ends with </function> and goes on", "path": "/tmp/b"}"#)],
    ),
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=content>\na </parameter> b\n</parameter>\n\n<parameter=path> c\n</function>\nd\n</parameter>\n</function>\n</tool_call>",
        &[("write", r#"{"content": "a </parameter> b", "path": " c\n</function>\nd"}"#)],
    ),
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=content>\nSay:\n<tool_call>\n<function=write>\n<parameter=path>\n1\n</parameter>\n</function>\n</tool_call>\nor\n<function=now>\n</function>\nand so on\n</parameter>\n<parameter=path>\n/tmp/b\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        &[
            (
                "write",
                r#"{"content": "Say:\n<tool_call>\n<function=write>\n<parameter=path>\n1\n</parameter>\n</function>\n</tool_call>\nor\n<function=now>\n</function>\nand so on", "path": "/tmp/b"}"#,
            ),
            ("now", "{}"),
        ],
    ),
    calls(
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n<parameter=path>\nb\n</parameter>\n<parameter=content>\nset <parameter=content> now\n</parameter>\n</function>\n</tool_call>",
        &[(
            "write",
            r#"{"path": "a\n</parameter>\n<parameter=path>\nb", "content": "set <parameter=content> now"}"#,
        )],
    ),
    calls(
        "qwen3_coder",
        "<function=typed>\n<parameter=n>\n3</parameter>\n<parameter=text>\n<parameter=on>\ntrue\n</function>\n",
        &[("typed", r#"{"n": 3, "text": "", "on": true}"#)],
    ),
    calls(
        "seed_oss",
        "<seed:tool_call>\n<function=write>\n<parameter=content>\na\n\n</parameter>\n<parameter=path>x </parameter> y</function> z</parameter>\n</function>\n</seed:tool_call>",
        &[("write", r#"{"content": "\na\n\n", "path": "x </parameter> y</function> z"}"#)],
    ),
    calls(
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"path\">/tmp/a</parameter>\n<parameter name=\"content\">line\n</parameter>\n</invoke>\n</minimax:tool_call>",
        &[("write", r#"{"path": "/tmp/a", "content": "line\n"}"#)],
    ),
    calls(
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"write\">\n<parameter name=\"content\"><invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke> and <parameter name=\"path\"> or </parameter></parameter>\n<parameter name=\"path\">p</parameter>\n</invoke>\n</minimax:tool_call>",
        &[(
            "write",
            r#"{"content": "<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke> and <parameter name=\"path\"> or </parameter>", "path": "p"}"#,
        )],
    ),
    calls(
        "glm45",
        "<tool_call>write\n<arg_key>content</arg_key>\n<arg_value>a </arg_value> b\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call></arg_value>\n<arg_key>path</arg_key>\n<arg_value>p</arg_value>\n<arg_key>content</arg_key> q</arg_value>\n</tool_call>",
        &[(
            "write",
            r#"{"content": "a </arg_value> b\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "path": "p</arg_value>\n<arg_key>content</arg_key> q"}"#,
        )],
    ),
    // Cut after what may end a value, and may not.
    calls(
        "qwen3_coder",
        "<function=save><parameter=text>\na\n</parameter>\n",
        &[("save", "{\"text\": \"a\"")],
    ),
    calls(
        "qwen3_coder",
        "<function=save><parameter=text>\na\n</function>\n",
        &[("save", "{\"text\": \"a\"}")],
    ),
    calls(
        "qwen3_coder",
        "<function=write><parameter=path>\na\n<parameter=cont",
        &[("write", "{\"path\": \"a\\n<parameter=cont")],
    ),
    calls(
        "qwen3_coder",
        "<function=save><parameter=text>\na </parameter> b",
        &[("save", "{\"text\": \"a </parameter> b")],
    ),
    calls(
        "glm45",
        "<tool_call>save<arg_key>text</arg_key><arg_value>a</arg_value>\n",
        &[("save", "{\"text\": \"a\"")],
    ),
];
