//! Families of models: how they call tools and think, a chat template, and answers in the style of that
//! template.

/// A family.
pub struct Family {
    pub tools: &'static str,
    pub reasoning: &'static str,
    /// A file of the fixtures, or a name that [`source`] knows.
    pub template: &'static str,
    /// Answers that the template shows to the letter.
    pub shown: &'static [&'static str],
    /// Answers of which it leaves something out or changes it, that must only be taken.
    pub taken: &'static [&'static str],
}

const fn family(tools: &'static str, template: &'static str, shown: &'static [&'static str]) -> Family {
    Family { tools, reasoning: "", template, shown, taken: &[] }
}

/// The families.
pub const FAMILIES: &[Family] = &[
    Family {
        reasoning: "qwen3",
        taken: &[
            "<think>\nHm.\n</think>\n\nHello",
            "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
        ],
        ..family(
            "hermes",
            "Qwen-Qwen3-0.6B",
            &[
                "<think>\nHm, é.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":  \"São\",\"days\":3}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"\\u00e9\\n\"}}\n</tool_call>",
            ],
        )
    },
    Family {
        reasoning: "openai_gptoss",
        taken: &[
            "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
            "<|channel|>commentary to=now<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Rome\"}",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello",
        ],
        ..family(
            "openai",
            "openai-gpt-oss-120b",
            &[
                "to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Rome\", \"days\": 3}<|call|>",
            ],
        )
    },
    family(
        "llama3_json",
        "meta-llama-Llama-3.2-3B-Instruct",
        &["{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 3}}"],
    ),
    Family {
        taken: &[
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}; {\"name\": \"now\", \"parameters\": {}}",
            "<|python_tag|>{\"name\": \"now\", \"parameters\": {}} and text",
        ],
        ..family("llama3_json", "meta-llama-Llama-3.2-3B-Instruct", &[])
    },
    Family {
        taken: &[
            "I look.[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]now[ARGS]{}",
            "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}]",
        ],
        ..family("mistral", "mistralai-Mistral-Nemo-Instruct-2407", &[])
    },
    family(
        "mistral",
        "mistral_args",
        &["[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"Rome\"}"],
    ),
    family(
        "generic",
        "microsoft-Phi-3.5-mini-instruct",
        &[
            "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Rome\"}}\n</tool_call>",
            "Hello",
        ],
    ),
    Family {
        taken: &["{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Rome\"}}"],
        ..family(
            "generic",
            "google-gemma-2-2b-it",
            &[
                "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            ],
        )
    },
    Family {
        reasoning: "qwen3",
        taken: &[
            "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>",
        ],
        ..family(
            "qwen3_coder",
            "qwen3_coder",
            &[
                "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome </parameter> \"é\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
                "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            ],
        )
    },
    family(
        "seed_oss",
        "seed_oss",
        &[
            "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome\n</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        ],
    ),
    family(
        "minimax_m2",
        "minimax_m2",
        &[
            "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">\nRome</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
        ],
    ),
    family(
        "glm45",
        "glm45",
        &[
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "I look.\n<tool_call>now\n</tool_call>",
        ],
    ),
    family(
        "deepseek_v3",
        "deepseek_v3",
        &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\":\"Rome\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
    ),
    family(
        "deepseek_v31",
        "deepseek_v31",
        &[
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\":\"Rome\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ],
    ),
    family(
        "kimi_k2",
        "kimi_k2",
        &[
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:3<|tool_call_argument_begin|>{\"city\":\"Rome\"}<|tool_call_end|><|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ],
    ),
    family("pythonic", "pythonic", &["[get_weather(city=\"Rome\", days=3), now()]"]),
    family(
        "olmo3",
        "olmo3",
        &["<function_calls>\nget_weather(city=\"Rome\", days=3)\nnow()\n</function_calls>"],
    ),
    family(
        "granite",
        "granite",
        &[
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}, {\"name\": \"now\", \"arguments\": {}}]",
        ],
    ),
    family(
        "granite-20b-fc",
        "granite-20b-fc",
        &["<function_call> {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}"],
    ),
    family(
        "phi4_mini_json",
        "phi4_mini_json",
        &["<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]<|/tool_call|>"],
    ),
    family(
        "jamba",
        "jamba",
        &[
            "<tool_calls>[\n    {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}},\n    {\"name\": \"now\", \"arguments\": {}}\n]</tool_calls>",
        ],
    ),
];

/// A template in the style of a family: small, but with the same ways to take arguments and ids.
pub fn source(name: &str) -> String {
    let calls = match name {
        "qwen3_coder" => {
            r"{% for c in m.tool_calls %}{{ '\n' if m.content or not loop.first }}{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' }}{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}"
        }
        "seed_oss" => {
            r"{% for c in m.tool_calls %}{{ '<seed:tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>' }}{{ v if v is string else v | tojson }}{{ '</parameter>\n' }}{% endfor %}{{ '</function>\n</seed:tool_call>' }}{% endfor %}"
        }
        "minimax_m2" => {
            r#"{{ '<minimax:tool_call>\n' }}{% for c in m.tool_calls %}{{ '<invoke name="' + c.function.name + '">\n' }}{% set args = c.function.arguments %}{% for k, v in args.items() %}{{ '<parameter name="' + k + '">' }}{{ v if v is string else v | tojson }}{{ '</parameter>\n' }}{% endfor %}{{ '</invoke>\n' }}{% endfor %}</minimax:tool_call>"#
        }
        "glm45" => {
            r"{% for c in m.tool_calls %}{{ '\n' if m.content or not loop.first }}{{ '<tool_call>' + c.function.name + '\n' }}{% for k, v in c.function.arguments.items() %}{{ '<arg_key>' + k + '</arg_key>\n<arg_value>' }}{{ v if v is string else v | tojson }}{{ '</arg_value>\n' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}"
        }
        "deepseek_v3" => {
            r"{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\n' + '```json' + '\n' + c['function']['arguments'] + '\n' + '```' + '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}"
        }
        "deepseek_v31" => {
            r"{{ '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c['function']['name'] + '<｜tool▁sep｜>' + c['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}"
        }
        "kimi_k2" => {
            r"<|tool_calls_section_begin|>{% for c in m['tool_calls'] %}<|tool_call_begin|>{{ c['id'] }}<|tool_call_argument_begin|>{% if c['function']['arguments'] is string %}{{ c['function']['arguments'] }}{% else %}{{ c['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
        }
        "pythonic" => {
            r"[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]"
        }
        "olmo3" => {
            r"{{ '<function_calls>\n' }}{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ '\n' }}{% endfor %}</function_calls>"
        }
        "mistral_args" => {
            r"{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}{% set args = c.function.arguments %}{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]' }}{{ args if args is string else args | tojson }}{% endfor %}"
        }
        "granite" => {
            r#"<|tool_call|>[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]"#
        }
        "granite-20b-fc" => {
            r#"{% for c in m.tool_calls %}<function_call> {"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{% endfor %}"#
        }
        "phi4_mini_json" => {
            r#"<|tool_call|>[{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]<|/tool_call|>"#
        }
        "jamba" => {
            r#"{{ '<tool_calls>[\n' }}{% for c in m.tool_calls %}{{ '    {"name": "' + c.function.name + '", "arguments": ' }}{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{{ '},\n' if not loop.last else '}\n' }}{% endfor %}]</tool_calls>"#
        }
        other => panic!("no template is named {other}"),
    };
    let thought =
        r"{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}";
    let message = format!("{thought}{{{{ m.content }}}}{{% if m.tool_calls %}}{calls}{{% endif %}}");
    format!(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{{% if m.role == 'assistant' %}}{message}{{% else %}}\
         {{{{ m.content }}}}{{% endif %}}</>{{% endfor %}}"
    )
}
