//! A batch that was sent as a [`StepMessage`] and read again is equal, whatever was scheduled.

use std::sync::Arc;

use throng_core::scheduling::batch::{ScheduledBatch, ScheduledEncoding, ScheduledSequence, StepMessage};

/// Sends a batch through its serialized message.
pub fn check(batch: &ScheduledBatch) -> Result<(), String> {
    let mut message = StepMessage::default();
    message.fill(batch);
    let text = serde_json::to_string(&message).map_err(|error| error.to_string())?;
    let received: StepMessage = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut copy = ScheduledBatch::default();
    let constraint_of = |id| {
        let mut sequences = batch.sequences().iter();
        sequences.find(|scheduled| scheduled.id == id).and_then(|scheduled| scheduled.constraint.clone())
    };
    received.read(&mut copy, &constraint_of).map_err(|error| error.to_string())?;
    let same = received == message
        && copy.has_others() == batch.has_others()
        && copy.moves() == batch.moves()
        && copy.state_copies() == batch.state_copies()
        && copy.all_tokens() == batch.all_tokens()
        && copy.sequences().len() == batch.sequences().len()
        && copy.encodings().len() == batch.encodings().len();
    let asked = |batch: &ScheduledBatch| {
        let asked =
            |one: &ScheduledEncoding| (one.id, one.span_idx, one.n_before, one.share, one.media.clone());
        batch.encodings().iter().map(asked).collect::<Vec<_>>()
    };
    let same = same && asked(&copy) == asked(batch);
    let mut pairs = copy.sequences().iter().zip(batch.sequences());
    if same && pairs.all(|(received, sent)| is_same((&copy, received), (batch, sent))) {
        return Ok(());
    }
    Err(format!("a batch came back as another one:\n{batch:?}\n{copy:?}"))
}

type OfBatch<'a> = (&'a ScheduledBatch, &'a ScheduledSequence);

fn is_same((batch_a, a): OfBatch<'_>, (batch_b, b): OfBatch<'_>) -> bool {
    let place = |s: &ScheduledSequence| {
        (s.id, s.start, s.n_prompt, s.next_prompt_token, s.sample, s.n_drafts, s.n_to_draft, s.carried)
    };
    let number = |s: &ScheduledSequence| s.masks.as_ref().map(|masks| (masks.number(), masks.n_output()));
    let has_same_constraint = match (&a.constraint, &b.constraint) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    place(a) == place(b)
        && a.sampling == b.sampling
        && a.media == b.media
        && has_same_constraint
        && number(a) == number(b)
        && (a.adapter, a.state, a.token_range()) == (b.adapter, b.state, b.token_range())
        && batch_a.tokens(a) == batch_b.tokens(b)
        && batch_a.drafts(a) == batch_b.drafts(b)
        && batch_a.blocks(a) == batch_b.blocks(b)
        && (0..=a.n_drafts).all(|n| {
            batch_a.history(a, n) == batch_b.history(b, n) && batch_a.output(a, n) == batch_b.output(b, n)
        })
}

#[test]
fn a_message_of_no_batch_is_refused() {
    let message = |text: &str| serde_json::from_str::<StepMessage>(text).expect("it is one");
    let read = |text: &str| {
        let mut batch = ScheduledBatch::default();
        message(text).read(&mut batch, &|_| None).map(|()| batch.sequences().len()).map_err(|e| e.to_string())
    };
    let step = |changes: &[(&str, &str)]| {
        let mut text = r#"{"sequences":[{"request":1,"index":0,"start":0,"n_prompt":2,"next_prompt_token":null,
            "sample":true,"n_drafts":0,"n_to_draft":0,"carried":null,"sampling":0,"masks":null,"adapter":null,
            "media":null,"state":null,"n_tokens":2,"n_blocks":1,"n_history":0,"n_output":0}],"sampling":[{}],"tokens":[5,6],
            "blocks":[3],"history":[],"output":[],"media":[],"moves":[],"state_copies":[],"has_others":false}"#
            .to_owned();
        for (from, to) in changes {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        read(&text)
    };
    assert_eq!(step(&[]), Ok(1));
    let broken: [&[(&str, &str)]; 10] = [
        &[("\"n_tokens\":2", "\"n_tokens\":0")],
        &[("\"n_tokens\":2", "\"n_tokens\":3")],
        &[("\"tokens\":[5,6]", "\"tokens\":[5,6,7]")],
        &[("\"n_drafts\":0", "\"n_drafts\":2")],
        &[("\"start\":0", "\"start\":15")],
        &[("\"start\":0", "\"start\":4294967295")],
        &[("\"sampling\":0", "\"sampling\":1")],
        &[("\"carried\":null", "\"carried\":0")],
        &[("\"sample\":true", "\"sample\":false"), ("\"n_to_draft\":0", "\"n_to_draft\":1")],
        &[("\"state\":null", "\"state\":{\"from\":null,\"to\":0,\"saves\":[[3,1],null]}")],
    ];
    for changes in broken {
        let error = step(changes).expect_err("it describes no batch");
        assert!(error.starts_with("the message of a step describes no batch: "), "{changes:?}: {error}");
    }
}
