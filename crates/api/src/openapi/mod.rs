//! The OpenAPI document of all routes, generated from the tables that parse requests, so that it lists every
//! accepted parameter. Does not know how routes are served.

mod answers;
mod operations;

use std::sync::LazyLock;

use serde_json::Value;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ComponentsBuilder, ObjectBuilder, Schema, SchemaType,
    Type,
};
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApiBuilder, Ref, RefOr, Required, ResponseBuilder};

pub use self::operations::Method;
use self::operations::{JSON, OPERATIONS, Operation};
use crate::anthropic::batches::BATCH_FIELDS as MESSAGE_BATCH_FIELDS;
use crate::field::{Field, Shape};
use crate::openai::adapters::{LOAD_ADAPTER_FIELDS, UNLOAD_ADAPTER_FIELDS};
use crate::openai::batch::BATCH_FIELDS;
use crate::openai::chat::CHAT_FIELDS;
use crate::openai::completion::COMPLETION_FIELDS;
use crate::openai::conversation::CONVERSATION_FIELDS;
use crate::openai::generation_fields::GENERATION_FIELDS;
use crate::openai::moderation::MODERATION_FIELDS;
use crate::openai::pooling::{
    CLASSIFY_FIELDS, EMBEDDING_FIELDS, POOLING_FIELDS, RERANK_FIELDS, SCORE_FIELDS,
};
use crate::openai::tokenize::{DETOKENIZE_FIELDS, TOKENIZE_FIELDS};
use crate::{anthropic, llama_cpp, ollama, responses};

/// The OpenAPI document as JSON.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
        let info = InfoBuilder::new()
            .title("Throng")
            .version(env!("CARGO_PKG_VERSION"))
            .description(Some("Large language models for many users at once, behind OpenAI's API."))
            .build();
        let paths = OPERATIONS.iter().fold(PathsBuilder::new(), |paths, operation| {
            let method = match operation.method {
                Method::Get => HttpMethod::Get,
                Method::Post => HttpMethod::Post,
                Method::Delete => HttpMethod::Delete,
            };
            paths.path(operation.path, PathItem::new(method, operation.describe()))
        });
        let document = OpenApiBuilder::new().info(info).paths(paths).components(Some(components().build()));
        let text = document.build().to_json().expect("the document is plain data with text keys");
        let mut document: Value = serde_json::from_str(&text).expect("it was just written");
        for (name, schema) in answers::schemas() {
            document["components"]["schemas"][name] = schema;
        }
        document.to_string()
    });
    &DOCUMENT
}

/// Paths in the document with their methods, one entry for each method.
pub fn operations() -> impl Iterator<Item = (&'static str, Method)> {
    OPERATIONS.iter().map(|operation| (operation.path, operation.method))
}

impl Operation {
    fn describe(&self) -> OperationBuilder {
        let any = ContentBuilder::new().schema(Some(anything())).build();
        let mut answer = ResponseBuilder::new().description(self.summary);
        if !self.content_type.is_empty() {
            let content = match self.answer {
                "" => any.clone(),
                name => ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build(),
            };
            answer = answer.content(self.content_type, content);
        }
        if matches!(self.path, "/api/chat" | "/api/generate" | "/api/pull") {
            answer = answer.content("application/x-ndjson", any.clone());
        }
        if self.body.is_some()
            && (self.path.ends_with("/completions")
                || matches!(self.path, "/v1/messages" | "/v1/responses" | "/infill"))
        {
            answer = answer.content("text/event-stream", any);
        }
        let error = match self.path {
            path if path.starts_with("/v1/messages") => "MessageError",
            path if path.starts_with("/api/") => "OllamaError",
            _ => "Error",
        };
        let error = ContentBuilder::new().schema(Some(Ref::from_schema_name(error))).build();
        let refusal = ResponseBuilder::new().description("What went wrong.").content(JSON, error);
        let mut operation = OperationBuilder::new()
            .summary(Some(self.summary))
            .response(self.status, answer.build())
            .response("default", refusal.build());
        for name in self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let text = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
            let text = text.required(Required::True).schema(Some(of_type(Type::String).build()));
            operation = operation.parameter(text.build());
        }
        if let Some(name) = self.body {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(name))).build();
            let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
            operation = operation.request_body(Some(body.build()));
        }
        if (self.path, self.method) == ("/v1/files", Method::Post) {
            let content = ContentBuilder::new().schema(Some(anything())).build();
            let form = RequestBodyBuilder::new().content("multipart/form-data", content);
            operation = operation.request_body(Some(form.required(Some(Required::True)).build()));
        }
        operation
    }
}

fn components() -> ComponentsBuilder {
    let chat = with_fields(object(), CONVERSATION_FIELDS, &["messages"]);
    let chat = with_fields(chat, GENERATION_FIELDS, &["model"]);
    let chat = with_fields(chat, CHAT_FIELDS, &[]);
    let completion = with_fields(object(), COMPLETION_FIELDS, &["prompt"]);
    let completion = with_fields(completion, GENERATION_FIELDS, &["model"]);
    let tokenize = with_fields(with_fields(object(), TOKENIZE_FIELDS, &[]), CONVERSATION_FIELDS, &[]);
    let detokenize = with_fields(object(), DETOKENIZE_FIELDS, &["tokens"]);
    let moderation = with_fields(object(), MODERATION_FIELDS, &["input"]);
    let pooling = || with_fields(object(), POOLING_FIELDS, &[]);
    let embedding = with_fields(pooling(), EMBEDDING_FIELDS, &["input"]);
    let rerank = with_fields(pooling(), RERANK_FIELDS, &["query", "documents"]);
    let score = with_fields(pooling(), SCORE_FIELDS, &["text_1", "text_2"]);
    let classify = with_fields(pooling(), CLASSIFY_FIELDS, &["input"]);
    let load = with_fields(object(), LOAD_ADAPTER_FIELDS, &["lora_name", "lora_path"]);
    let unload = with_fields(object(), UNLOAD_ADAPTER_FIELDS, &["lora_name"]);
    let fault = ["message", "type", "param", "code"].iter().fold(object(), |fault, key| {
        let text = match *key {
            "param" => ObjectBuilder::new().schema_type(or_null(Type::String)),
            _ => of_type(Type::String),
        };
        fault.property(*key, text.build()).required(*key)
    });
    let message = with_fields(object(), anthropic::FIELDS, &["model", "messages", "max_tokens"]);
    let count = with_fields(object(), anthropic::FIELDS, &["model", "messages"]);
    let response = with_fields(object(), responses::FIELDS, &["model"]);
    let input_tokens = with_fields(object(), responses::FIELDS, &[]);
    let common = || with_fields(object(), ollama::COMMON_FIELDS, &["model"]);
    let chat_of_ollama = with_fields(common(), ollama::CHAT_FIELDS, &["messages"]);
    let generate = with_fields(common(), ollama::GENERATE_FIELDS, &["prompt"]);
    let embed = |fields, texts| {
        with_fields(with_fields(object(), ollama::EMBED_COMMON_FIELDS, &["model"]), fields, &[texts])
    };
    let infill = with_fields(object(), llama_cpp::INFILL_FIELDS, &["input_prefix", "input_suffix"]);
    let batch = ["input_file_id", "endpoint", "completion_window"];
    admin_components()
        .schema("CreateBatchRequest", with_fields(object(), BATCH_FIELDS, &batch).build())
        .schema("MessageBatchRequest", with_fields(object(), MESSAGE_BATCH_FIELDS, &["requests"]).build())
        .schema("OllamaChatRequest", chat_of_ollama.build())
        .schema("OllamaGenerateRequest", generate.build())
        .schema("OllamaEmbedRequest", embed(ollama::EMBED_FIELDS, "input").build())
        .schema("OllamaEmbeddingsRequest", embed(ollama::EMBEDDINGS_FIELDS, "prompt").build())
        .schema("OllamaPullRequest", with_fields(object(), ollama::PULL_FIELDS, &[]).build())
        .schema("InfillRequest", infill.build())
        .schema("OllamaError", ollama_error().build())
        .schema(
            "ConversationRequest",
            with_fields(object(), responses::CONVERSATION_BODY_FIELDS, &[]).build(),
        )
        .schema("ItemsRequest", with_fields(object(), responses::ITEMS_BODY_FIELDS, &["items"]).build())
        .schema("ResponseRequest", response.build())
        .schema("InputTokensRequest", input_tokens.build())
        .schema("MessageRequest", message.build())
        .schema("CountTokensRequest", count.build())
        .schema("ChatCompletionRequest", chat.build())
        .schema("CompletionRequest", completion.build())
        .schema("TokenizeRequest", tokenize.build())
        .schema("DetokenizeRequest", detokenize.build())
        .schema("ModerationRequest", moderation.build())
        .schema("EmbeddingRequest", embedding.build())
        .schema("RerankRequest", rerank.build())
        .schema("ScoreRequest", score.build())
        .schema("ClassifyRequest", classify.build())
        .schema("LoadAdapterRequest", load.build())
        .schema("UnloadAdapterRequest", unload.build())
        .schema("MessageError", message_error().build())
        .schema("Error", object().property("error", fault.build()).required("error").build())
}

/// The schema of an error in Ollama's form.
fn ollama_error() -> ObjectBuilder {
    object().property("error", of_type(Type::String)).required("error")
}

/// The schema of an error in Anthropic's form.
fn message_error() -> ObjectBuilder {
    let text = || of_type(Type::String).build();
    let fault =
        ["type", "message"].iter().fold(object(), |fault, key| fault.property(*key, text()).required(*key));
    let error = object().property("type", text()).required("type");
    error.property("error", fault.build()).required("error")
}

/// The schemas of the operator API's bodies.
fn admin_components() -> ComponentsBuilder {
    let text = || of_type(Type::String).max_length(Some(256));
    let count = || of_type(Type::Integer).minimum(Some(1));
    let limits = || object().description(Some("A count, dollars as a text, or null, by the limit's name."));
    let strict = || object().additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
    let models = || ArrayBuilder::new().items(RefOr::T(text().build().into())).max_items(Some(256));
    let key = || {
        strict().property("models", models()).property("expires_in_s", count()).property("limits", limits())
    };
    let named = |object: ObjectBuilder, names: &[&str]| {
        names.iter().fold(object, |object, name| object.property(*name, text()))
    };
    let limit = named(strict(), &["organisation", "project"]).property("each_user", of_type(Type::Boolean));
    let limit = limit.property("limits", limits()).required("organisation").required("limits");
    let whole = |max: f64| of_type(Type::Integer).minimum(Some(1)).maximum(Some(max));
    let stage = strict().property("percent", whole(100.0)).property("seconds", of_type(Type::Integer));
    let stage = stage.required("percent").required("seconds");
    let token_ids = ArrayBuilder::new().items(RefOr::T(of_type(Type::Integer).build().into()));
    let golden = strict().property("prompt", RefOr::T(anything())).required("prompt");
    let golden = golden.property("text", of_type(Type::String)).property("token_ids", token_ids);
    let golden = golden.property("max_tokens", whole(512.0)).required("max_tokens");
    let list = |item: ObjectBuilder, max| {
        ArrayBuilder::new().items(RefOr::T(item.build().into())).max_items(Some(max))
    };
    let rollout = named(strict(), &["alias", "model"]).required("alias").required("model");
    let rollout = rollout.property("stages", list(stage, 32)).required("stages");
    let rollout = rollout.property("golden", list(golden, 16)).property("min_outcomes", count());
    let rollout = rollout
        .property("max_failure_excess_percent", of_type(Type::Integer).minimum(Some(0)))
        .property("max_slowness_percent", of_type(Type::Integer).minimum(Some(100)));
    ComponentsBuilder::new()
        .schema("NamedModelRequest", named(strict(), &["model"]).required("model").build())
        .schema(
            "SleepRequest",
            named(strict(), &["model"])
                .required("model")
                .property("level", of_type(Type::Integer).minimum(Some(1)).maximum(Some(2)))
                .build(),
        )
        .schema("BeginRolloutRequest", rollout.build())
        .schema("CreateKeyRequest", named(key(), &["organisation", "project", "name"]).build())
        .schema("ChangeKeyRequest", key().build())
        .schema("LimitRequest", limit.build())
}

/// The schema of an object with these fields. Fields that are not required may be null, which counts as
/// absent.
fn with_fields<T>(object: ObjectBuilder, fields: &[Field<T>], required: &[&str]) -> ObjectBuilder {
    fields.iter().fold(object, |object, field| {
        let is_required = required.contains(&field.name);
        let object =
            object.property(field.name, schema(&field.kind.shape(), Some(field.about), !is_required));
        if is_required { object.required(field.name) } else { object }
    })
}

fn object() -> ObjectBuilder {
    of_type(Type::Object)
}

fn of_type(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(kind))
}

fn or_null(kind: Type) -> SchemaType {
    SchemaType::from_iter([kind, Type::Null])
}

fn anything() -> Schema {
    ObjectBuilder::new().schema_type(SchemaType::any()).build().into()
}

/// The JSON Schema of a parameter, optionally nullable. Omits a maximum length that is no real limit.
fn schema(shape: &Shape, about: Option<&str>, nullable: bool) -> RefOr<Schema> {
    let limit = |max: usize| (max != usize::MAX).then_some(max);
    let of_type = |kind: Type| match nullable {
        true => ObjectBuilder::new().schema_type(or_null(kind)).description(about),
        false => of_type(kind).description(about),
    };
    let schema: Schema = match shape {
        Shape::Array(max, item) => {
            let kind = if nullable { or_null(Type::Array) } else { SchemaType::new(Type::Array) };
            let array = ArrayBuilder::new().schema_type(kind).items(schema(item, None, false));
            array.max_items(limit(*max)).description(about).build().into()
        }
        Shape::AnyOf(shapes) => {
            let any = AnyOfBuilder::new();
            let any = shapes.iter().fold(any, |any, shape| any.item(schema(shape, None, false)));
            let any = if nullable { any.item(self::of_type(Type::Null)) } else { any };
            any.description(about).build().into()
        }
        Shape::Any => ObjectBuilder::new().schema_type(SchemaType::any()).description(about).build().into(),
        Shape::Boolean => of_type(Type::Boolean).build().into(),
        Shape::Integer(min, max) => {
            of_type(Type::Integer).minimum(Some(*min)).maximum(Some(*max)).build().into()
        }
        Shape::Number(range) => {
            let number = of_type(Type::Number).maximum(Some(range.max));
            match range.above_min {
                true => number.exclusive_minimum(Some(range.min)).build().into(),
                false => number.minimum(Some(range.min)).build().into(),
            }
        }
        Shape::Text(max) => of_type(Type::String).max_length(limit(*max)).build().into(),
        Shape::Choice(names) => {
            let names = names.iter().map(|name| Value::from(*name));
            let null = nullable.then_some(Value::Null);
            of_type(Type::String).enum_values(Some(names.chain(null))).build().into()
        }
        Shape::Object => of_type(Type::Object).build().into(),
        Shape::StringMap => {
            let value: Schema = self::of_type(Type::String).max_length(Some(512)).build().into();
            of_type(Type::Object).max_properties(Some(16)).additional_properties(Some(value)).build().into()
        }
    };
    RefOr::T(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_lists_every_parameter_and_route() {
        let document: Value = serde_json::from_str(document()).expect("JSON");
        for operation in OPERATIONS {
            let method = match operation.method {
                Method::Get => "get",
                Method::Post => "post",
                Method::Delete => "delete",
            };
            let described = &document["paths"][operation.path][method];
            assert!(described.is_object(), "{}", operation.path);
            let n_parameters = described["parameters"].as_array().map_or(0, Vec::len);
            assert_eq!(n_parameters, operation.path.matches('{').count(), "{}", operation.path);
        }
        let lists = |name: &str, fields: &[&str]| {
            let properties = &document["components"]["schemas"][name]["properties"];
            for field in fields {
                assert!(properties[field]["description"].is_string(), "{name}.{field}");
            }
            assert_eq!(properties.as_object().expect("an object").len(), fields.len(), "{name}");
        };
        fn names<T>(fields: &[Field<T>]) -> Vec<&'static str> {
            fields.iter().map(|field| field.name).collect()
        }
        let conversation = names(CONVERSATION_FIELDS);
        let generation = names(GENERATION_FIELDS);
        lists(
            "ChatCompletionRequest",
            &[conversation.clone(), generation.clone(), names(CHAT_FIELDS)].concat(),
        );
        lists("CompletionRequest", &[generation, names(COMPLETION_FIELDS)].concat());
        lists("TokenizeRequest", &[conversation, names(TOKENIZE_FIELDS)].concat());
        lists("DetokenizeRequest", &names(DETOKENIZE_FIELDS));
        let pooled = |own: Vec<&'static str>| [names(POOLING_FIELDS), own].concat();
        lists("EmbeddingRequest", &pooled(names(EMBEDDING_FIELDS)));
        lists("RerankRequest", &pooled(names(RERANK_FIELDS)));
        lists("ScoreRequest", &pooled(names(SCORE_FIELDS)));
        lists("ClassifyRequest", &pooled(names(CLASSIFY_FIELDS)));
        lists("LoadAdapterRequest", &names(LOAD_ADAPTER_FIELDS));
        lists("UnloadAdapterRequest", &names(UNLOAD_ADAPTER_FIELDS));
        let top_p = &document["components"]["schemas"]["ChatCompletionRequest"]["properties"]["top_p"];
        assert_eq!(top_p["exclusiveMinimum"], 0.0);
        assert_eq!(top_p["maximum"], 1.0);
    }
}
