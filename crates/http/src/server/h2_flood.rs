//! Limits an HTTP/2 client's frames that cause work without progress (PING, SETTINGS, PRIORITY, RST_STREAM,
//! WINDOW_UPDATE, empty DATA, …) with a budget. Does not know the frames' contents, nor sockets.

use std::time::Duration;

use tokio::time::Instant;

const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const TYPE_DATA: u8 = 0;
const TYPE_HEADERS: u8 = 1;
const TYPE_CONTINUATION: u8 = 9;
const FLAG_END_STREAM: u8 = 1;
/// Minimum bytes of DATA that count as progress, unless the frame ends the body.
const MIN_DATA_BYTES: usize = 16;

/// Maximum budget of frames without progress.
const BURST: f64 = 1000.0;
/// Number of frames by which the budget grows each second.
const RATE: f64 = 100.0;
/// Number of frames by which the budget grows for each frame of a response: clients open windows,
/// measure round trips and cancel streams.
const PER_ANSWERED_FRAME: f64 = 8.0;

/// Builds a GOAWAY frame with ENHANCE_YOUR_CALM.
pub(super) fn goaway(last_stream: u32) -> [u8; 17] {
    let mut frame = [0; 17];
    frame[2] = 8;
    frame[3] = 7;
    frame[9..13].copy_from_slice(&last_stream.to_be_bytes());
    frame[16] = 0xb;
    frame
}

/// Counts the frames in a client's bytes.
#[derive(Debug)]
pub(super) struct FloodGauge {
    /// Remaining bytes of the preface or of a frame's payload.
    n_skip: usize,
    header: [u8; HEADER_BYTES],
    n_header: usize,
    last_stream: u32,
    budget: f64,
    at: Instant,
    n_answered_seen: usize,
}

impl FloodGauge {
    /// Creates the gauge of a connection that starts at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            n_skip: PREFACE_BYTES,
            header: [0; HEADER_BYTES],
            n_header: 0,
            last_stream: 0,
            budget: BURST,
            at: now,
            n_answered_seen: 0,
        }
    }

    /// Highest id of a stream that the client has opened.
    pub fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Counts the frames in read bytes. Returns whether the budget is exceeded. `n_answered`: frames of
    /// responses since the start of the connection.
    pub fn is_flooded_by(&mut self, bytes: &[u8], n_answered: usize, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.at).max(Duration::ZERO).as_secs_f64();
        let answered = n_answered.saturating_sub(self.n_answered_seen) as f64;
        (self.at, self.n_answered_seen) = (now, n_answered);
        let earned = seconds * RATE + answered * PER_ANSWERED_FRAME;
        self.budget = (self.budget + earned).min(BURST) - self.n_idle_frames(bytes) as f64;
        self.budget < 0.0
    }

    fn n_idle_frames(&mut self, mut bytes: &[u8]) -> usize {
        let mut n_idle = 0;
        loop {
            let n_skipped = self.n_skip.min(bytes.len());
            self.n_skip -= n_skipped;
            bytes = &bytes[n_skipped..];
            let n_taken = (HEADER_BYTES - self.n_header).min(bytes.len());
            self.header[self.n_header..][..n_taken].copy_from_slice(&bytes[..n_taken]);
            self.n_header += n_taken;
            bytes = &bytes[n_taken..];
            if self.n_header < HEADER_BYTES {
                return n_idle;
            }
            self.n_header = 0;
            n_idle += usize::from(self.end_header());
        }
    }

    /// Whether the frame whose header is complete makes no progress.
    fn end_header(&mut self) -> bool {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = self.header;
        self.n_skip = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        match kind {
            TYPE_DATA => self.n_skip < MIN_DATA_BYTES && flags & FLAG_END_STREAM == 0,
            TYPE_HEADERS => {
                let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
                self.last_stream = self.last_stream.max(stream);
                false
            }
            TYPE_CONTINUATION => self.n_skip == 0,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    #[test]
    fn frames_are_counted_however_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[0; 6]));
        bytes.extend(frame(TYPE_HEADERS, 4, 7, &[6; 300]));
        bytes.extend(frame(TYPE_DATA, 0, 7, &[6; 70_000]));
        bytes.extend(frame(TYPE_DATA, 0, 7, &[]));
        bytes.extend(frame(TYPE_DATA, FLAG_END_STREAM, 7, &[]));
        bytes.extend(frame(6, 0, 0, &[6; 8]));
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..100 {
            let mut gauge = FloodGauge::new(Instant::now());
            let (mut rest, mut n_idle) = (&bytes[..], 0);
            while !rest.is_empty() {
                let longest = rest.len().min(1 << random.u8(..17));
                let (piece, after) = rest.split_at(random.usize(1..=longest));
                n_idle += gauge.n_idle_frames(piece);
                rest = after;
            }
            assert_eq!((n_idle, gauge.last_stream()), (3, 7));
        }
    }

    #[test]
    fn a_flood_is_found_and_a_busy_client_is_not() {
        let start = Instant::now();
        let ping = frame(6, 0, 0, &[0; 8]);
        let mut flooded = FloodGauge::new(start);
        flooded.n_skip = 0;
        let n_allowed = (0..).take_while(|_| !flooded.is_flooded_by(&ping, 0, start)).count();
        assert_eq!(n_allowed, BURST as usize);

        let mut busy = FloodGauge::new(start);
        busy.n_skip = 0;
        let updates = frame(8, 0, 0, &[0; 4]).repeat(4);
        for n_answered in 0..100_000 {
            assert!(!busy.is_flooded_by(&updates, n_answered, start), "{n_answered}");
        }
    }
}
