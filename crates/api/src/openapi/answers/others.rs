//! The schemas of answers other than generated text.

use serde_json::{Value, json};

use super::{Named, boolean, list, map, named, number, object, one_of, or_null, text, whole};

pub(super) fn pooling() -> Named {
    let usage = object([("prompt_tokens", whole()), ("total_tokens", whole())], []);
    let vector = json!({"oneOf": [list(number()), text()]});
    let embedding =
        object([("object", one_of(&["embedding"])), ("index", whole()), ("embedding", vector)], []);
    let score = object([("index", whole()), ("object", one_of(&["score"])), ("score", number())], []);
    let class = object(
        [("index", whole()), ("label", text()), ("probs", list(number())), ("num_classes", whole())],
        [],
    );
    let ranked = object(
        [("index", whole()), ("relevance_score", number())],
        [("document", object([("text", text())], []))],
    );
    let of = |item: Value, more: [(&str, Value); 2]| {
        object(
            [
                ("object", one_of(&["list"])),
                ("data", list(item)),
                ("model", text()),
                ("usage", named("PooledUsage")),
            ],
            more,
        )
    };
    let with_id = || [("id", text()), ("created", whole())];
    let ranking = object(
        [("id", text()), ("model", text()), ("usage", named("PooledUsage")), ("results", list(ranked))],
        [],
    );
    vec![
        ("PooledUsage", usage),
        ("EmbeddingList", of(embedding, with_id())),
        ("ScoreList", of(score, with_id())),
        ("ClassificationList", of(class, with_id())),
        ("Ranking", ranking),
    ]
}

pub(super) fn models() -> Named {
    let flags = [
        "allow_create_engine",
        "allow_sampling",
        "allow_logprobs",
        "allow_search_indices",
        "allow_view",
        "allow_fine_tuning",
        "is_blocking",
    ];
    let mut permission = object(
        [
            ("id", text()),
            ("object", one_of(&["model_permission"])),
            ("created", whole()),
            ("organization", text()),
            ("group", or_null(text())),
        ],
        [],
    );
    for flag in flags {
        permission["properties"][flag] = boolean();
    }
    let model = object(
        [
            ("id", text()),
            ("object", one_of(&["model"])),
            ("created", whole()),
            ("owned_by", text()),
            ("root", text()),
            ("parent", or_null(text())),
            ("permission", list(permission)),
        ],
        [
            ("max_model_len", whole()),
            ("notice", text()),
            ("input_modalities", list(text())),
            ("state", one_of(&["unloaded", "sleeping", "loading", "loaded", "unloading"])),
        ],
    );
    let all = object([("object", one_of(&["list"])), ("data", list(named("Model")))], []);
    vec![("Model", model), ("ModelList", all)]
}

pub(super) fn usage_pages() -> Named {
    let counts = [
        "input_tokens",
        "output_tokens",
        "input_cached_tokens",
        "input_audio_tokens",
        "output_audio_tokens",
        "num_model_requests",
    ];
    let mut usage = object(
        [
            ("object", one_of(&["organization.usage.completions.result"])),
            ("project_id", or_null(text())),
            ("user_id", or_null(text())),
            ("api_key_id", or_null(text())),
            ("model", or_null(text())),
            ("batch", or_null(boolean())),
        ],
        [],
    );
    for count in counts {
        usage["properties"][count] = whole();
    }
    let costs = object(
        [
            ("object", one_of(&["organization.costs.result"])),
            ("amount", object([("value", number()), ("currency", text())], [])),
            ("line_item", or_null(text())),
            ("project_id", or_null(text())),
            ("api_key_id", or_null(text())),
        ],
        [],
    );
    let page = |item: Value| {
        let bucket = object(
            [
                ("object", one_of(&["bucket"])),
                ("start_time", whole()),
                ("end_time", whole()),
                ("results", list(item)),
            ],
            [],
        );
        object(
            [
                ("object", one_of(&["page"])),
                ("data", list(bucket)),
                ("has_more", boolean()),
                ("next_page", or_null(text())),
            ],
            [],
        )
    };
    vec![("UsagePage", page(usage)), ("CostsPage", page(costs))]
}

pub(super) fn texts() -> Named {
    let span = object([("start", whole()), ("length", whole()), ("n_tokens", whole())], []);
    let tokens = object(
        [
            ("count", whole()),
            ("max_model_len", whole()),
            ("tokens", list(whole())),
            ("token_strs", or_null(list(text()))),
        ],
        [("image_spans", list(span))],
    );
    let judged = object(
        [("flagged", boolean()), ("categories", map(boolean())), ("category_scores", map(number()))],
        [],
    );
    vec![
        ("Tokens", tokens),
        ("Text", object([("prompt", text())], [])),
        ("Moderation", object([("id", text()), ("model", text()), ("results", list(judged))], [])),
        ("Version", object([("version", text())], [])),
        ("Load", object([("server_load", whole())], [])),
    ]
}

/// Schemas of a request's timeline (`/explain`) and of the list of recent requests.
pub(super) fn operator() -> Named {
    let summary = || {
        [
            ("request_id", text()),
            ("created", number()),
            ("route", or_null(text())),
            ("status", or_null(whole())),
            ("error", or_null(text())),
            ("model", or_null(text())),
            ("outcome", or_null(text())),
            ("prompt_tokens", or_null(whole())),
            ("cached_tokens", or_null(whole())),
            ("output_tokens", or_null(whole())),
            ("ttft_ms", or_null(number())),
            ("total_ms", number()),
        ]
    };
    let phase = object([("name", text()), ("start_ms", number()), ("ms", number()), ("about", text())], []);
    let left = || object([("limit", whole()), ("remaining", whole())], []);
    let mut explanation =
        object(summary(), [("limits", object([], [("requests", left()), ("tokens", left())]))]);
    explanation["properties"]["object"] = one_of(&["request.explanation"]);
    explanation["properties"]["phases"] = list(phase);
    explanation["properties"]["generations"] = list(map(json!({})));
    let latest = object(
        [("object", one_of(&["list"])), ("data", list(object(summary(), []))), ("active_tenants", whole())],
        [],
    );
    let ranks = object(
        [
            ("tensor", whole()),
            ("pipeline", whole()),
            ("transport", text()),
            ("communication_share", or_null(number())),
            ("losses", whole()),
        ],
        [],
    );
    let worker = object(
        [
            ("name", text()),
            ("url", text()),
            ("state", text()),
            ("reason", or_null(text())),
            ("seconds", or_null(whole())),
            ("models", list(text())),
            ("fingerprint", text()),
            ("role", one_of(&["prefill", "decode", "both"])),
            ("running", whole()),
            ("waiting", whole()),
            ("used_blocks", whole()),
            ("total_blocks", whole()),
            ("known_blocks", whole()),
            ("region", or_null(text())),
            ("round_trip_ms", or_null(number())),
        ],
        [("ranks", ranks)],
    );
    vec![
        ("Explanation", explanation),
        ("ExplainedRequests", latest),
        ("Fleet", object([("workers", list(worker))], [])),
    ]
}
