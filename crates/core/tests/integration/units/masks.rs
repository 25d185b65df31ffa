//! Masks of a sequence: they follow drafts, and are reported once to whoever awaits them.

use std::sync::Arc;
use std::time::Duration;

use throng_core::constraint::{ConstraintError, TokenConstraint, TokenMask};
use throng_core::request::{RequestId, SequenceId, TokenId};
use throng_core::scheduling::masks::{MaskPace, SequenceMasks};

/// Allows tokens below the length of the output and one more; fails after three tokens.
#[derive(Debug)]
struct Growing;

impl TokenConstraint for Growing {
    fn mask(&self, output: &[TokenId], mask: &mut TokenMask) -> Result<(), ConstraintError> {
        assert!(output.len() < 4, "as the test wants it");
        (0..=output.len() as TokenId).for_each(|token| mask.allow(token));
        Ok(())
    }

    fn forced(&self, output: &[TokenId], forced: &mut Vec<TokenId>) {
        forced.extend(output);
    }
}

fn masks(output: &[TokenId], n_drafts: usize) -> SequenceMasks {
    let sequence = SequenceId { request: RequestId(1), index: 0 };
    SequenceMasks::new(sequence, Arc::new(Growing), Arc::default(), output.to_vec(), n_drafts)
}

#[test]
fn masks_follow_drafts_as_far_as_these_are_allowed() {
    let masks = masks(&[7, 1, 3], 2);
    assert!(masks.get().is_none() && masks.wait(Duration::ZERO).is_none());
    assert_eq!(masks.evaluate(10, || MaskPace::Continue), Some(false));
    assert_eq!(masks.evaluate(10, || MaskPace::Continue), None);
    let evaluated = masks.get().expect("evaluated");
    let n_allowed = |n| evaluated.after(n).map(TokenMask::n_allowed);
    assert_eq!([0, 1, 2].map(n_allowed), [Ok(2), Ok(3), Err(ConstraintError::OutputRejected)]);
    assert!(masks.fit(1, &[1]) && masks.fit(1, &[]) && !masks.fit(1, &[2]) && !masks.fit(2, &[3]));
}

#[test]
fn whoever_evaluates_masks_that_somebody_awaits_has_to_report_it() {
    let masks = masks(&[0], 0);
    assert!(!masks.is_queued() && masks.queue() && !masks.queue() && masks.is_queued());
    assert!(masks.get_or_await().is_none());
    assert_eq!(masks.evaluate(10, || MaskPace::Continue), Some(true));
    let evaluated = masks.get_or_await().expect("evaluated");
    assert_eq!((evaluated.forced_after(0), evaluated.forced_after(1)), (&[][..], &[][..]));
}

#[test]
fn a_panic_or_too_much_work_is_an_error_in_place_of_a_mask() {
    let panicking = masks(&[0, 1, 1, 1], 0).awaited();
    assert_eq!(panicking.evaluate(10, || MaskPace::Continue), Some(true));
    let after = |masks: &SequenceMasks| masks.get().expect("evaluated").after(0).map(|_| ());
    assert_eq!(after(&panicking), Err(ConstraintError::Failed));
    let slow = masks(&[0], 0);
    slow.evaluate(10, || MaskPace::Exceeded);
    assert_eq!(after(&slow), Err(ConstraintError::LimitExceeded));
    // A draft costs no request its life: its mask is left to a later step.
    for pace in [MaskPace::Stop, MaskPace::Exceeded] {
        let with_drafts = masks(&[0, 1, 1], 2);
        let n_asked = std::cell::Cell::new(0);
        with_drafts.evaluate(10, || {
            n_asked.set(n_asked.get() + 1);
            if n_asked.get() == 2 { pace } else { MaskPace::Continue }
        });
        let evaluated = with_drafts.get().expect("evaluated");
        assert_eq!([0, 1, 2].map(|n| evaluated.after(n).is_ok()), [true, true, false]);
    }
    let given_up = masks(&[0], 0);
    given_up.fail(ConstraintError::Failed);
    assert_eq!(after(&given_up), Err(ConstraintError::Failed));
}
