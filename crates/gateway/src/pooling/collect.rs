//! Collects the vectors of a session, in the order of its texts. Does not know their meaning.

use throng_http::Phase;
use throng_http::memory::Reservation;
use tokio::sync::watch;

use crate::generation::{Output, Session};
use crate::rejection::memory_full;
use throng_api::ApiError;
use throng_http::retry_after::retry_after_s;

/// Waits for all vectors of a session, one for each text. `memory` grows with them, and must be kept until
/// they are written.
///
/// # Errors
/// 500 when the computation fails, 503 when the server ends first or memory is full.
pub(crate) async fn collect_vectors(
    mut session: Session,
    mut memory: Reservation,
    mut phase: watch::Receiver<Phase>,
    request_id: &str,
) -> Result<(Vec<Vec<f32>>, Reservation), ApiError> {
    let (mut vectors, mut n_bytes) = (vec![Vec::new(); session.n_choices()], 0);
    loop {
        let output = tokio::select! {
            output = session.next() => output,
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => {
                return Err(ApiError::shutting_down(retry_after_s()));
            }
        };
        match output {
            None if vectors.iter().any(Vec::is_empty) => return Err(ApiError::internal_error(request_id)),
            None => return Ok((vectors, memory)),
            Some(Output::Failed(error)) => return Err(session.client_error(&error)),
            Some(Output::Token { choice_idx, report, .. }) => {
                n_bytes += report.top.len() * size_of::<f32>();
                memory.cover(n_bytes).map_err(memory_full)?;
                vectors[choice_idx] = report.top.iter().map(|element| element.logprob).collect();
            }
            Some(Output::Prompt { .. } | Output::Finished { .. }) => {}
        }
    }
}
