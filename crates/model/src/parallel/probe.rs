//! Measures memory and exchanges of all ranks at the same time, before they have anything else to do. Does
//! not know the use of the figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_comm::{CommError, Communicator, Deadline};
use throng_kernels::limits::{Pages, ReadBuffer, bytes_per_second};
use throng_kernels::threads::ThreadPool;

use super::RankLinks;

/// Bytes that a rank reads again and again: more than its cores keep.
const READ_BYTES: usize = 64 << 20;
/// Number of exchanges that are measured; the median counts.
const N_EXCHANGES: usize = 200;

/// Longest time of one exchange.
fn by() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

/// Bytes a second that a rank reads while the others read too.
///
/// # Errors
/// When a rank is lost.
pub fn read(all: &mut dyn Communicator, threads: &Arc<ThreadPool>) -> Result<f64, CommError> {
    let buffer = ReadBuffer::new(READ_BYTES, Pages::Huge, threads);
    all.barrier(by())?;
    Ok(buffer.map_or(0.0, |buffer| bytes_per_second(&buffer, threads)))
}

/// The median time to sum a row of this number of elements over the ranks that share a layer; `None` if each
/// has whole layers.
pub fn sum(links: &mut RankLinks, n_elements: usize) -> Option<Duration> {
    let group = links.layers.as_mut()?;
    let mut row = vec![0.0; n_elements];
    let mut once = || {
        let begun = Instant::now();
        group.sum(&mut row);
        begun.elapsed()
    };
    Some(median((0..N_EXCHANGES).map(|_| once()).collect()))
}

/// Half of the median time until a row that was sent to rank 1 is returned.
///
/// # Errors
/// When it is lost.
pub fn ping(all: &mut dyn Communicator, n_elements: usize) -> Result<Duration, CommError> {
    let mut row = vec![0; n_elements * size_of::<f32>()];
    let mut times = Vec::with_capacity(N_EXCHANGES);
    for _ in 0..N_EXCHANGES {
        let begun = Instant::now();
        all.send(1, &row, by())?;
        all.receive(1, &mut row, by())?;
        times.push(begun.elapsed());
    }
    Ok(median(times) / 2)
}

/// Returns the messages of rank 0's [`ping`].
///
/// # Errors
/// When rank 0 is lost.
pub fn pong(all: &mut dyn Communicator, n_elements: usize) -> Result<(), CommError> {
    let mut row = vec![0; n_elements * size_of::<f32>()];
    for _ in 0..N_EXCHANGES {
        all.receive(0, &mut row, by())?;
        all.send(0, &row, by())?;
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
