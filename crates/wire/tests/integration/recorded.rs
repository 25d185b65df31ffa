//! Messages of every kind, recorded from a build of protocol version 1. Later builds read the same values in
//! them and write the same bytes, so gateways and workers of different builds understand each other, and
//! cached answers on disk stay readable.

use std::fmt::Debug;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use throng_core::fleet::replica::{
    self, Evictions, Load, ResumedContinuation, StepTokens, Timing, TokenReport, Totals,
};
use throng_core::prompt_media::{ContentDigest, PromptMedia, PromptSpan, RotaryPosition, SpanKind};
use throng_core::request::{
    BeamSearch, CacheMark, EarlyStopping, FinishReason, GenerationDefaults, Priority, SamplingParams,
    TenantId,
};
use throng_core::scheduling::ServiceRate;
use throng_core::scheduling::StepTime;
use throng_core::scheduling::batch::TokenLogprob;
use throng_core::scheduling::block_exchange::BlockLayout;
use throng_core::scheduling::block_hash::{BlockHash, BlockKey, BlockTokens};
use throng_core::scheduling::block_pool::CacheNews;
use throng_core::time::Nanos;
use throng_wire::{
    Artifact, ArtifactKind, BlockFrame, Command, Constraint, Description, EncoderKeys, ErrorKind, Event,
    Form, Frame, FrameBuffer, Generate, InfillKeys, Pooling, Reasoning, Status, ToolCalls, Versions,
    Vocabulary, WireError,
};

const RECORDED: &str = include_str!("../fixtures/version_1.txt");

/// The recorded messages of one kind, each a line that begins with the kind's name.
fn recorded(kind: &str) -> Vec<&'static str> {
    let of_kind = |line: &'static str| line.strip_prefix(kind)?.strip_prefix(' ');
    RECORDED.lines().filter_map(of_kind).collect()
}

/// Compares the recorded messages of a kind with these values, in both directions. Values are compared by
/// `{:?}`, which tells -0.0 from 0.0 and takes a NaN as equal to itself.
fn check<T: Serialize + DeserializeOwned + Debug>(kind: &str, values: &[T]) {
    let lines = recorded(kind);
    for (line, value) in lines.iter().zip(values) {
        let read: T = serde_json::from_str(line).expect("a recorded message");
        assert_eq!(format!("{read:?}"), format!("{value:?}"), "{line}");
        assert_eq!(serde_json::to_string(value).expect("plain data"), *line);
    }
    let written = values.iter().map(|value| serde_json::to_string(value).expect("plain data"));
    let written: Vec<String> = written.map(|json| format!("{kind} {json}")).collect();
    assert_eq!(lines.len(), values.len(), "written:\n{}", written.join("\n"));
}

#[test]
fn recorded_descriptions() {
    let artifact = |kind| Artifact { kind, digest: "d".repeat(64), n_bytes: 1 << 20 };
    let pooling = Pooling {
        labels: Some(vec!["good".into(), "bad".into()]),
        are_exclusive: true,
        are_logits: false,
        normalizes: true,
        n_segments: 2,
        segment_stride: 1000,
        prompts: [("query".to_owned(), "query: ".to_owned())].into(),
        default_prompt: Some("query".into()),
    };
    let defaults = GenerationDefaults {
        temperature: Some(0.7),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: Some(-0.0),
        repetition_penalty: Some(1.05),
        max_tokens: Some(2048),
    };
    let full = Description {
        versions: Versions { oldest: 1, newest: 1 },
        names: vec!["model".into(), "folder/model".into()],
        fingerprint: "f".repeat(32),
        max_model_len: 4096,
        context_tokens: 32_768,
        vocabulary_size: 151_936,
        eos_token_ids: vec![151_645, 151_643],
        defaults,
        chat_template_defaults: json!({"enable_thinking": false, "a": [1]}).as_object().expect("one").clone(),
        tool_call_parser: Some("hermes".into()),
        reasoning_parser: Some("qwen3".into()),
        adapters: vec!["poet".into()],
        pooling: Some(pooling),
        takes_media: false,
        region: Some("eu".into()),
        role: Default::default(),
        is_ending: false,
        notice: Some("For research.".into()),
        artifacts: [
            ArtifactKind::TokenizerJson,
            ArtifactKind::TokenizerConfig,
            ArtifactKind::GgufVocabulary,
            ArtifactKind::ChatTemplates,
        ]
        .map(artifact)
        .to_vec(),
    };
    let bare = Description {
        defaults: GenerationDefaults::default(),
        chat_template_defaults: serde_json::Map::new(),
        tool_call_parser: None,
        reasoning_parser: None,
        adapters: Vec::new(),
        pooling: None,
        region: None,
        notice: None,
        artifacts: Vec::new(),
        ..full.clone()
    };
    check("description", &[full, bare]);
}

#[test]
fn recorded_vocabularies() {
    let full = Vocabulary {
        model: "gpt2".into(),
        pre: Some("qwen2".into()),
        model_name: Some("Qwen".into()),
        tokens: vec!["a".into(), "\u{120}b".into()],
        scores: vec![-1.5, -0.0],
        token_types: vec![1, -3],
        merges: vec!["a b".into()],
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        eot_token_id: Some(3),
        eom_token_id: Some(4),
        unknown_token_id: Some(5),
        padding_token_id: Some(6),
        add_bos_token: Some(true),
        add_eos_token: Some(false),
        add_space_prefix: Some(true),
        infill: InfillKeys::default(),
        encoder: EncoderKeys {
            separator_token_id: Some(7),
            cls_token_id: Some(8),
            lowercase: Some(true),
            strip_accents: Some(false),
            remove_extra_whitespaces: Some(true),
            precompiled_charsmap: vec![0, 255],
        },
    };
    check("vocabulary", &[full, Vocabulary::default()]);
}

#[test]
fn recorded_requests() {
    let sampling = SamplingParams {
        temperature: f32::MIN_POSITIVE,
        top_k: 7,
        top_p: 0.1,
        min_p: 1e-30,
        repetition_penalty: f32::MAX,
        presence_penalty: -0.0,
        frequency_penalty: -1.7,
        logit_bias: vec![(3, f32::NEG_INFINITY), (u32::MAX, 0.3)],
        allowed_token_ids: Some(vec![1, 2]),
        bad_words: vec![vec![1], vec![2, 3]],
        min_tokens: 4,
        max_tokens: u32::MAX,
        eos_token_ids: vec![5],
        ignore_eos: true,
        stop_token_ids: vec![6],
        seed: u64::MAX,
        logprobs: Some(0),
        prompt_logprobs: Some(20),
        beams: None,
        max_draft_tokens: 0,
    };
    let search = |early_stopping| {
        let beams = Some(BeamSearch { width: 4, length_penalty: 0.1, early_stopping });
        let sampling = SamplingParams { beams, ..SamplingParams::default() };
        Generate { sampling: sampling.into(), n: 2, ..Generate::default() }
    };
    let full = Generate {
        tenant: TenantId("team".into()),
        cache_salt: Some("salt".into()),
        cache_marks: Vec::new(),
        priority: Priority(-5),
        prompt: [0, 1, u32::MAX].into(),
        media: None,
        contents: Vec::new(),
        sampling: sampling.into(),
        constraint: None,
        adapter: Some("poet".into()),
        n: 3,
        resumed: Vec::new(),
        holder: None,
    };
    let continuation = |index, output: &[u32]| ResumedContinuation { index, output: output.into() };
    let resumed = vec![continuation(0, &[4, 5]), continuation(2, &[])];
    let mut requests = vec![full, Generate::default(), Generate { resumed, ..Generate::default() }];
    requests.extend(
        [EarlyStopping::WhenFull, EarlyStopping::WhenUnlikelyToImprove, EarlyStopping::WhenUnableToImprove]
            .map(search),
    );
    check("generate", &requests);
    check("command", &[Command::Abort { index: 3 }]);
    let cache_marks = vec![CacheMark { n_tokens: 160, keep_s: 300 }];
    check("marked", &[Generate { cache_marks, n: 1, ..Generate::default() }]);
}

#[test]
fn recorded_media() {
    let span = |start, kind| PromptSpan { start, len: 2, digest: ContentDigest([start as u8; 32]), kind };
    let spans = vec![span(1, SpanKind::Image), span(3, SpanKind::Video), span(5, SpanKind::Audio)];
    let positions = vec![RotaryPosition::of_text(0), RotaryPosition([1, 2, u32::MAX])];
    let request = |media: PromptMedia| Generate { media: Some(media.into()), n: 1, ..Generate::default() };
    let text_positions = request(PromptMedia { spans: spans.clone(), ..PromptMedia::default() });
    check("media", &[request(PromptMedia { spans, positions, contents: vec![] }), text_positions]);
    let newer = r#"{"media": {"spans": [{"start": 0, "len": 1, "digest": [], "kind": "smell"}]}}"#;
    assert!(serde_json::from_str::<Generate>(newer).is_err(), "a kind that is not known is not passed over");
}

#[test]
fn recorded_constraints() {
    let schema = json!({"z": 1, "a": {"y": [0.1, 1e30], "b": null}});
    let calls = ToolCalls {
        format: "hermes".into(),
        tools: vec![("f".into(), schema.clone()), ("g".into(), json!({}))],
        must_call: true,
        only_one: false,
    };
    let forms = [
        Form::JsonObject,
        Form::JsonSchema(schema.clone()),
        Form::Regex("a\n".into()),
        Form::Choice(vec!["a".into(), String::new()]),
        Form::Lark("start: x".into()),
        Form::Gbnf("root ::= x".into()),
        Form::StructuralTag(schema),
        Form::ToolCalls(calls),
    ];
    let reasoning = Reasoning {
        open: vec![1],
        close: vec![2, 3],
        lead: vec![4],
        direct: vec![5],
        is_open: true,
        budget: Some(100),
    };
    let mut constraints: Vec<Constraint> =
        forms.map(|form| Constraint { form: Some(form), reasoning: None }).to_vec();
    constraints.push(Constraint { form: None, reasoning: Some(reasoning) });
    constraints.push(Constraint { form: Some(Form::JsonObject), reasoning: Some(Reasoning::default()) });
    let request = |constraint| Generate { constraint: Some(constraint), n: 1, ..Generate::default() };
    check("constrained", &constraints.into_iter().map(request).collect::<Vec<_>>());
}

fn report(logprob: f32, n_top: u32) -> TokenReport {
    let one = |token| TokenLogprob { token, logprob, rank: u32::MAX };
    TokenReport { chosen: one(9), top: (0..n_top).map(one).collect() }
}

#[test]
fn recorded_events() {
    let mut events = vec![
        Event::Accepted,
        Event::Prompt { cached_tokens: 0, logprobs: Vec::new() },
        Event::Prompt { cached_tokens: 5, logprobs: vec![report(-0.25, 2), report(f32::NEG_INFINITY, 0)] },
    ];
    for logprob in [0.0, -0.0, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE, -1.25] {
        events.push(Event::Token { index: 0, report: report(logprob, 0) });
        events.push(Event::Token { index: 2, report: report(logprob, 2) });
    }
    let timing = Timing {
        first_step: Some(Duration::from_nanos(1)),
        first_token: Some(Duration::from_nanos(2_000_000_000)),
        last_token: Some(Duration::from_nanos(3_000_000_001)),
        end: Duration::from_nanos(3_000_000_002),
        n_output: 3,
        pulled_tokens: 0,
    };
    for reason in [
        FinishReason::Stop { token: None },
        FinishReason::Stop { token: Some(7) },
        FinishReason::Length,
        FinishReason::Abort,
        FinishReason::Error,
    ] {
        events.push(Event::Finished { index: 1, reason, timing });
    }
    let reason = FinishReason::Length;
    events.push(Event::Finished { index: 0, reason, timing: Timing::default() });
    events.extend(errors().map(|error| Event::Failed { error }));
    check("event", &events);
}

fn errors() -> impl Iterator<Item = WireError> {
    [
        ErrorKind::Empty,
        ErrorKind::InvalidToken { token: 7, vocabulary_size: 5 },
        ErrorKind::TooLong { n_tokens: 9, limit: 8 },
        ErrorKind::NeverFits { needed_blocks: 3, n_blocks: 2 },
        ErrorKind::QueueFull { n_requests: 1, n_tokens: 2 },
        ErrorKind::QueuedTooLong,
        ErrorKind::Draining,
        ErrorKind::Unhealthy,
        ErrorKind::Stopped,
        ErrorKind::NothingAllowed,
        ErrorKind::ConstraintTooComplex,
        ErrorKind::Failed,
    ]
    .into_iter()
    .map(|kind| WireError {
        kind,
        retryable: kind == ErrorKind::Stopped,
        message: "a \"line\"\n".into(),
    })
}

#[test]
fn recorded_statuses() {
    let step_time =
        StepTime { fixed: Nanos(5), per_prompt_token: Nanos(6), per_sequence: Nanos(7), max_step_tokens: 8 };
    let load = Load {
        n_running: 1,
        n_waiting: 2,
        n_paused: 3,
        n_queued_tokens: 4,
        machine: Some(ServiceRate { step_time, n_slots: 9, n_replicas: 1 }),
        total_blocks: 10,
        used_blocks: 11,
        cached_blocks: 0,
        marked_blocks: 0,
        totals: Totals {
            steps: 12,
            prompt_tokens: 13,
            output_tokens: 14,
            cache_query_tokens: 15,
            cache_hit_tokens: 16,
            restored_hit_tokens: 0,
            evictions: Evictions::default(),
            preemptions: 17,
            drafts: 18,
            draft_tokens: 19,
            accepted_draft_tokens: 20,
            encoded_media: 0,
            known_media: 0,
            restored_blocks: 0,
            stored_blocks: 0,
            failed_block_transfers: 0,
            pulled_blocks: 0,
            failed_pulls: 0,
            served_blocks: 0,
            block_bytes: 0,
            state_blocks: 0,
            block_pull_ns: 0,
            failed_requests: 21,
            executor_restarts: 22,
        },
        step_tokens: StepTokens {
            bounds: std::array::from_fn(|i| 1 << i),
            counts: std::array::from_fn(|i| i as u64),
            sum: u64::MAX,
        },
    };
    let stored = vec![BlockKey(0), BlockKey(u64::MAX)];
    let cache = CacheNews { is_snapshot: true, stored, removed: vec![BlockKey(1)] };
    let full = Status {
        health: replica::Status::Ready,
        load,
        refuses: errors().last(),
        cache: Some(cache),
        ranks: None,
    };
    let bare = |health| Status { health, load: Load::default(), refuses: None, cache: None, ranks: None };
    check("status", &[full, bare(replica::Status::Stalled), bare(replica::Status::Lost)]);
}

/// Binary frames of the first format, one of them of a kind that this build does not know.
#[test]
fn recorded_frames() {
    let recorded = include_bytes!("../fixtures/frames_1.bin");
    let layout = BlockLayout {
        model: "f".repeat(32).into(),
        kv_type: "f16".into(),
        name: "throng-cpu-panels-1".into(),
        n_bytes: 48,
        n_state_parts: 0,
    };
    let root = BlockHash::from_bytes(std::array::from_fn(|i| i as u8));
    let mut tokens: BlockTokens = std::array::from_fn(|i| 100 + i as u32);
    tokens[15] = u32::MAX;
    let first = BlockFrame { hash: root.child(&tokens), parent: root, tokens, bytes: (0..48).collect() };
    let (hash, bytes) = (first.hash.child(&tokens), vec![255; 48]);
    let second = BlockFrame { hash, parent: first.hash, tokens, bytes };
    let frames =
        [Frame::Layout(layout), Frame::Block(first.into()), Frame::Unknown, Frame::Block(second.into())];
    let mut buffer = FrameBuffer::default();
    buffer.push(recorded);
    let mut written = Vec::new();
    for expected in &frames {
        assert_eq!(buffer.next_frame(), Ok(Some(expected.clone())));
        // The frame of another kind is not written again.
        written.extend(expected.to_bytes().unwrap_or_else(|_| b"\x06\0\0\0\xc8newer".to_vec()));
    }
    assert!(!buffer.is_inside_frame());
    assert_eq!(written, recorded);
}
