//! Rules for arguments that are not a JSON object: between tags, or in Python's syntax. Does not know the
//! text around them.

use serde_json::{Map, Value, json};

use super::raw_text::TextSchemas;
use super::spelling::ArgumentTags;
use super::{ANY, Writer, quoted};
use crate::grammar::{GrammarError, json_schema};
use crate::tool_calls::Kinds;

/// Keywords beside `properties` that apply to all arguments together.
const OF_ALL_ARGUMENTS: &[&str] = &[
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "maxProperties",
    "minProperties",
    "oneOf",
    "patternProperties",
];

/// Maximum bytes of schemas copied for arguments with references, over all tools.
const MAX_COPIED_BYTES: usize = 256 << 10;

/// Schema of unspecified values.
static ANYTHING: Value = Value::Bool(true);

/// Characters that are not permitted in names in Python's syntax.
const NO_PYTHON_NAME: &[char] = &['"', '\'', '(', ')', '[', ']', '{', '}', '=', ',', '<', '\n'];
/// Characters that are not permitted in names between tags.
const NO_TAG_NAME: &[char] = &['"', '\'', '<', '>', '\n'];

/// Writes the rules for one tool's arguments.
pub(super) struct Arguments<'a, 's, 'v> {
    pub writer: &'a mut Writer<'s>,
    /// Name of the tool's rule; a prefix of its parts' names.
    pub rule: &'a str,
    /// Schema of the arguments, as returned by [`json_schema::prepare`].
    pub schema: &'v Value,
    /// Bytes of the schema as text, computed on demand.
    pub n_bytes: Option<usize>,
}

/// An argument, optional or required.
struct Argument<'a> {
    name: &'a str,
    schema: &'a Value,
    is_required: bool,
}

impl<'v> Arguments<'_, '_, 'v> {
    /// Arguments between tags, in the order of the schema.
    pub(super) fn tagged(&mut self, tags: &ArgumentTags) -> Result<String, GrammarError> {
        let Some(arguments) = self.known()? else { return Ok(self.free_tagged(tags)) };
        let mut parts = Vec::new();
        for (idx, argument) in arguments.iter().enumerate() {
            check_name(argument.name, NO_TAG_NAME)?;
            let rule = format!("{}_{idx}", self.rule);
            let name = self.writer.literal(tags.name);
            let before = format!("{name} {} {}", quoted(argument.name), self.writer.literal(tags.value));
            let value = self.tagged_value(argument, &rule, tags)?;
            self.writer.define(&rule, &format!("{before} ({value})"));
            parts.push(if argument.is_required { rule } else { format!("{rule}?") });
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    /// The options for a value, each with the end of its tag.
    fn tagged_value(
        &mut self,
        argument: &Argument<'_>,
        rule: &str,
        tags: &ArgumentTags,
    ) -> Result<String, GrammarError> {
        let kinds = Kinds::of_parameter(argument.schema, self.schema);
        let end = self.writer.literal(tags.end);
        if !kinds.has(Kinds::STRING) {
            let value = self.part(argument.schema, None)?;
            return Ok(format!("{} {end}", self.json_value(&value)?));
        }
        let schemas = TextSchemas::new(self.schema);
        let mut options = Vec::new();
        for (kind, word, value) in [
            (Kinds::NULL, "null", Value::Null),
            (Kinds::BOOLEAN, "true", Value::Bool(true)),
            (Kinds::BOOLEAN, "false", Value::Bool(false)),
        ] {
            if kinds.has(kind) && schemas.admits(argument.schema, &value, 0)? {
                options.push(self.writer.literal(&format!("{word}{}", tags.end)));
            }
        }
        let json_kinds = [
            (Kinds::INTEGER, "integer"),
            (Kinds::NUMBER, "number"),
            (Kinds::TREE, "object"),
            (Kinds::TREE, "array"),
        ];
        let names: Vec<&str> =
            json_kinds.iter().filter(|(kind, _)| kinds.has(*kind)).map(|known| known.1).collect();
        if !names.is_empty() {
            let value = self.part(argument.schema, Some(&names))?;
            options.push(format!("{} {end}", self.json_value(&value)?));
        }
        if let Some(text) = schemas.strings(argument.schema, 0)? {
            let text = format!("({text}){}", not_read_otherwise(kinds));
            options.push(self.ended_text(&rule.to_uppercase(), &text, tags));
        }
        if options.is_empty() {
            return Err(GrammarError::Unsatisfiable(format!("nothing satisfies '{}'", argument.name)));
        }
        Ok(options.join(" | "))
    }

    /// Text that matches the expression `text`, up to the end of its tag. The first part is in the terminal
    /// `name`, so that the text continues up to the end and not beyond.
    fn ended_text(&mut self, name: &str, text: &str, tags: &ArgumentTags) -> String {
        let is_control = |stop: &&&str| self.writer.spec.control.iter().any(|known| known.1 == **stop);
        let stops: Vec<String> =
            tags.stops.iter().filter(|stop| !is_control(stop)).map(|stop| quoted(stop)).collect();
        let mut body = format!("({text})");
        if !stops.is_empty() {
            body += &format!(" & ~({ANY} ({}) {ANY})", stops.join(" | "));
        }
        let end = self.writer.literal(tags.end);
        // The end is text up to the first control token.
        let (head, rest) = match end.split_once("<[") {
            Some((head, rest)) => (head.trim(), format!(" <[{rest}")),
            None => (end.as_str(), String::new()),
        };
        self.writer.define(name, &format!("({body}) {head}"));
        format!("{name}{rest}")
    }

    /// Any arguments with any text.
    fn free_tagged(&mut self, tags: &ArgumentTags) -> String {
        let (name, value) = (self.writer.literal(tags.name), self.writer.literal(tags.value));
        let upper = self.rule.to_uppercase();
        self.writer.define(&format!("{upper}_NAME"), "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/");
        let text = self.ended_text(&upper, ANY, tags);
        format!("({name} {upper}_NAME {value} {text})*")
    }

    /// Arguments in Python's syntax, in the order of the schema.
    pub(super) fn python(&mut self, tool: &str) -> Result<String, GrammarError> {
        if !tool.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let reason = "this model writes calls as Python, so its name must begin with a letter or '_'";
            return Err(GrammarError::Unsupported(reason.to_owned()));
        }
        let Some(arguments) = self.known()? else {
            let upper = self.rule.to_uppercase();
            self.writer.define(&format!("{upper}_NAME"), "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/");
            let one = format!("{upper}_NAME \"=\" {}", self.python_value(&json!({}))?);
            return Ok(format!("({one} (\", \" {one})*)?"));
        };
        // `RULE_more_N`: the arguments from number N on, after others; `RULE_from_N`: the same, without any
        // before them.
        let rule = self.rule.to_owned();
        let name = |part: &str, idx: usize| format!("{rule}_{part}_{idx}");
        let n = arguments.len();
        let mut lines = vec![(name("more", n), "\"\"".to_owned()), (name("from", n), "\"\"".to_owned())];
        for (idx, argument) in arguments.iter().enumerate().rev() {
            check_name(argument.name, NO_PYTHON_NAME)?;
            let one = name("one", idx);
            let value = self.part(argument.schema, None)?;
            let value = self.python_value(&value)?;
            lines.push((one.clone(), format!("{} {value}", quoted(&format!("{}=", argument.name)))));
            let (more, from) = (name("more", idx + 1), name("from", idx + 1));
            let (behind, first) = match argument.is_required {
                true => (format!("\", \" {one} {more}"), format!("{one} {more}")),
                false => (format!("(\", \" {one})? {more}"), format!("{one} {more} | {from}")),
            };
            lines.push((name("more", idx), behind));
            lines.push((name("from", idx), first));
        }
        let start = name("from", 0);
        lines.iter().for_each(|(rule, body)| self.writer.define(rule, body));
        Ok(start)
    }

    /// The arguments in the schema; `None` if it permits any and names none.
    fn known(&self) -> Result<Option<Vec<Argument<'v>>>, GrammarError> {
        let schema = self.schema;
        let properties = schema["properties"].as_object();
        let n_properties = properties.map_or(0, Map::len);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for keyword in OF_ALL_ARGUMENTS {
            let Some(value) = schema.get(*keyword) else { continue };
            let holds = match *keyword {
                "minProperties" => value.as_u64().is_some_and(|n| n <= required.len() as u64),
                "maxProperties" => value.as_u64().is_some_and(|n| n >= n_properties as u64),
                _ => false,
            };
            if !holds {
                let (keyword, path) = ((*keyword).to_owned(), "#".to_owned());
                return Err(GrammarError::UnsupportedKeyword { keyword, path });
            }
        }
        let others = schema.get("additionalProperties").unwrap_or(&ANYTHING);
        if n_properties == 0 && required.is_empty() && *others != Value::Bool(false) {
            return Ok(None);
        }
        let unnamed =
            required.iter().copied().filter(|name| !properties.is_some_and(|all| all.contains_key(*name)));
        let named = properties.into_iter().flatten().map(|(name, schema)| Argument {
            name,
            schema,
            is_required: required.contains(&name.as_str()),
        });
        let possible =
            named.filter(|argument| argument.is_required || *argument.schema != Value::Bool(false));
        let unnamed = unnamed.map(|name| Argument { name, schema: others, is_required: true });
        Ok(Some(possible.chain(unnamed).collect()))
    }

    fn json_value(&mut self, schema: &Value) -> Result<String, GrammarError> {
        self.value(json_schema::with_options(schema, None))
    }

    /// JSON with only the escapes that Python reads in the same way.
    fn python_value(&mut self, schema: &Value) -> Result<String, GrammarError> {
        self.value(json_schema::with_options(schema, Some("nrt\"\\")))
    }

    fn value(&mut self, schema: Value) -> Result<String, GrammarError> {
        Ok(format!("%json {}", self.writer.numbers.lower(schema)?))
    }

    /// A part of the schema by itself, restricted to these types. The whole schema is copied to keep its
    /// references valid.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`] beyond the limit on copies.
    fn part(&mut self, schema: &Value, types: Option<&[&str]>) -> Result<Value, GrammarError> {
        let typed = types.map(|types| json!({ "type": types }));
        if !has_reference(schema) {
            return Ok(match typed {
                Some(typed) => json!({"allOf": [schema, typed]}),
                None => json!({"allOf": [schema]}),
            });
        }
        let n_bytes = *self.n_bytes.get_or_insert_with(|| self.schema.to_string().len());
        self.writer.n_copied_bytes += n_bytes;
        if self.writer.n_copied_bytes > MAX_COPIED_BYTES {
            let reason = format!(
                "arguments with references, for which more than {MAX_COPIED_BYTES} bytes of schemas are copied"
            );
            return Err(GrammarError::TooComplex(reason));
        }
        let mut root = self.schema.clone();
        if let Value::Object(members) = &mut root {
            members.shift_remove(json_schema::OPTIONS_KEY);
        }
        let mut part = schema.clone();
        move_references(&mut root);
        move_references(&mut part);
        Ok(json!({"$defs": {"tool": root}, "allOf": typed.into_iter().chain([part]).collect::<Vec<_>>()}))
    }
}

fn check_name(name: &str, not: &[char]) -> Result<(), GrammarError> {
    if name.is_empty() || name.contains(not) || name.trim() != name {
        let reason = format!("the name '{name}' cannot be written in this model's format of calls");
        return Err(GrammarError::Unsupported(reason));
    }
    Ok(())
}

fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key("$ref") || members.values().any(has_reference),
        Value::Array(elements) => elements.iter().any(has_reference),
        _ => false,
    }
}

/// Changes references into the root to references into `#/$defs/tool`.
fn move_references(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref")
                && (reference == "#" || reference.starts_with("#/"))
            {
                reference.insert_str(1, "/$defs/tool");
            }
            members.values_mut().for_each(move_references);
        }
        Value::Array(elements) => elements.iter_mut().for_each(move_references),
        _ => {}
    }
}

/// An expression that excludes texts which would be parsed as another kind of value that the argument
/// accepts.
fn not_read_otherwise(kinds: Kinds) -> String {
    let mut beginnings = String::new();
    let mut words: Vec<&str> = Vec::new();
    if kinds.has(Kinds::INTEGER) || kinds.has(Kinds::NUMBER) {
        beginnings.push_str("0-9\\-");
    }
    if kinds.has(Kinds::TREE) {
        beginnings.push_str("\\[{");
    }
    if kinds.has(Kinds::NULL) {
        words.extend(["null", "None"]);
    }
    if kinds.has(Kinds::BOOLEAN) {
        words.extend(["true", "True", "false", "False"]);
    }
    let mut text = String::new();
    if !beginnings.is_empty() {
        text += &format!(" & ~(/\\s*[{beginnings}](?s:.*)/)");
    }
    if !words.is_empty() {
        text += &format!(" & ~(/\\s*({})\\s*/)", words.join("|"));
    }
    text
}
