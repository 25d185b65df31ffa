//! The choice of tokens without a copy of whole rows of logits: the device finds the largest logit, or the
//! first candidates of a row and the logits that the request's rules change, and the host's sampler chooses
//! among these where they suffice for the token that it would choose from the row. Does not know how it
//! chooses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use throng_core::request::{SamplingParams, TokenId};
use throng_model::backend::{Backend, BackendError, NO_TOKEN, SamplingRow, WantedToken};
use throng_model::sampler::{Sampler, SamplingInput};

use crate::GpuBackend;
use crate::buffers::Buffer;
use crate::device::Storage;
use crate::kernel::{Kernel, N_CANDIDATES, n_chunks};
use crate::recorder::linear_groups;

/// Maximum of `top_k` for which candidates are tried; the others are left for tokens that rules change.
const MOST_TOP_K: u32 = 48;
/// Rules that change more than one in this number of the vocabulary's logits read the whole row.
const MOST_CHANGED_ONE_IN: usize = 8;
/// Key of a NaN and of +∞, and of −∞, see `keys.wgsl`.
const INVALID_KEY: u32 = u32::MAX;
const LEAST_KEY: u32 = 0x007f_ffff;

/// A logit's key and its token.
type Candidate = [u32; 2];

/// Buffers for the choice of tokens, and the tokens chosen since the last collection.
#[derive(Default)]
pub(crate) struct Sampling {
    /// Rows for which the largest logit is requested, rows for which candidates are, and indices of logits
    /// that rules change.
    words: [Option<Storage>; 3],
    found: Option<Storage>,
    passes: [Option<Storage>; 2],
    values: Option<Storage>,
    workers: Vec<Mutex<Worker>>,
    pub(crate) chosen: Vec<TokenId>,
}

impl std::fmt::Debug for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampling").field("chosen", &self.chosen).finish_non_exhaustive()
    }
}

/// A sampler of a thread, and a row whose logits are all −∞ between two choices.
#[derive(Default)]
struct Worker {
    sampler: Sampler,
    row: Vec<f32>,
}

/// A row whose token the host's sampler chooses among candidates.
struct Listed<'a> {
    row_idx: usize,
    /// Place of its token among those that are chosen.
    place: usize,
    input: SamplingInput<'a>,
    /// Tokens whose logits rules may change, or that alone are allowed, in increasing order.
    changed: Vec<TokenId>,
    /// Whether only these tokens are allowed.
    allows_changed_only: bool,
}

/// Whether a rule may change logits before a token is chosen, or only some tokens are allowed.
fn has_rules(input: &SamplingInput<'_>) -> bool {
    let params = input.params;
    penalizes(params)
        || !params.logit_bias.is_empty()
        || !params.bad_words.is_empty()
        || params.allowed_token_ids.is_some()
        || input.n_output() < params.min_tokens
}

fn penalizes(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// Tokens whose logits the rules may change, and the allowed ones, in increasing order.
fn changed_tokens(input: &SamplingInput<'_>, vocabulary: usize) -> Vec<TokenId> {
    let params = input.params;
    let mut changed: Vec<TokenId> = Vec::new();
    if penalizes(params) {
        changed.extend(input.history);
    }
    changed.extend(params.logit_bias.iter().map(|(token, _)| *token));
    changed.extend(params.bad_words.iter().filter_map(|word| word.last()));
    changed.extend(params.allowed_token_ids.iter().flatten());
    if input.n_output() < params.min_tokens {
        changed.extend(params.eos_token_ids.iter().chain(&params.stop_token_ids));
    }
    changed.retain(|&token| (token as usize) < vocabulary);
    changed.sort_unstable();
    changed.dedup();
    changed
}

/// The logit of a key. −0 comes back as 0, which no choice tells apart.
fn logit_of(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
}

/// Whether the token that the sampler chooses from the row is that which it chooses if all logits but those
/// of the candidates and of changed tokens are −∞.
fn suffices(listed: &Listed<'_>, candidates: &[Candidate], vocabulary: usize) -> bool {
    if vocabulary <= candidates.len() || listed.allows_changed_only {
        return true;
    }
    // A token that is neither a candidate nor changed stands behind all candidates that are not changed.
    let is_unchanged = |candidate: &&Candidate| listed.changed.binary_search(&candidate[1]).is_err();
    let n_unchanged = candidates.iter().filter(is_unchanged).count();
    let params = listed.input.params;
    if params.is_greedy() {
        return n_unchanged > 0;
    }
    if params.top_k > 0 {
        return n_unchanged >= params.top_k as usize;
    }
    // `min_p` without rules: all tokens that are likely enough are candidates if the last one is not.
    let [largest, last] = [candidates[0][0], candidates[candidates.len() - 1][0]].map(logit_of);
    logit_of_floor(largest, params).is_some_and(|floor| last < floor)
}

/// A little below the least logit that `min_p` keeps; see the host's sampler, which keeps none below it.
fn logit_of_floor(largest: f32, params: &SamplingParams) -> Option<f32> {
    let floor = largest + params.temperature * (params.min_p.ln() - 0.02);
    floor.is_finite().then_some(floor)
}

impl Worker {
    /// The token that the sampler chooses from a row of logits with these values.
    fn choose(
        &mut self,
        input: &SamplingInput<'_>,
        vocabulary: usize,
        values: impl Iterator<Item = (TokenId, f32)> + Clone,
    ) -> TokenId {
        self.row.resize(vocabulary, f32::NEG_INFINITY);
        values.clone().for_each(|(token, logit)| self.row[token as usize] = logit);
        let token = sample(&mut self.sampler, &mut self.row, input);
        values.for_each(|(token, _)| self.row[token as usize] = f32::NEG_INFINITY);
        token
    }
}

/// The token that the sampler chooses; [`NO_TOKEN`] if it chooses none or panics.
fn sample(sampler: &mut Sampler, row: &mut [f32], input: &SamplingInput<'_>) -> TokenId {
    let chosen =
        catch_unwind(AssertUnwindSafe(|| sampler.sample(row, input).map(|chosen| chosen.chosen.token)));
    match chosen {
        Ok(chosen) => chosen.unwrap_or(NO_TOKEN),
        Err(_) => {
            *sampler = Sampler::new();
            NO_TOKEN
        }
    }
}

impl GpuBackend {
    /// Whether the row's token is probably chosen without a copy of the row.
    pub(crate) fn samples_row(row: &SamplingRow<'_>) -> bool {
        let WantedToken::Sampled(input) = row.token else { return false };
        let params = input.params;
        let lists = params.is_greedy()
            || (1..=MOST_TOP_K).contains(&params.top_k)
            || params.allowed_token_ids.is_some()
            || (params.top_k == 0 && params.min_p > 0.0 && !has_rules(&input));
        row.logprobs.is_none() && params.logprobs.is_none() && input.mask.is_none() && lists
    }

    /// Chooses the tokens of rows, in order, and keeps them until they are collected.
    pub(crate) fn sample_rows(&mut self, logits: &Buffer, rows: &mut dyn Iterator<Item = SamplingRow<'_>>) {
        let mut sampling = std::mem::take(&mut self.sampling);
        let (mut plain, mut listed) = (Vec::new(), Vec::new());
        let first = sampling.chosen.len();
        for (place, row) in rows.enumerate() {
            let row_idx = row.row_idx;
            sampling.chosen.push(NO_TOKEN);
            let WantedToken::Sampled(input) = row.token else { continue };
            if input.params.is_greedy() && !has_rules(&input) {
                plain.push((row_idx, place));
                continue;
            }
            let changed = changed_tokens(&input, logits.cols);
            let allows_changed_only = input.params.allowed_token_ids.is_some();
            listed.push(Listed { row_idx, place, input, changed, allows_changed_only });
        }
        let mut chosen = std::mem::take(&mut sampling.chosen);
        let result = self.choose(&mut sampling, logits, &plain, &listed, &mut chosen[first..]);
        sampling.chosen = chosen;
        self.sampling = sampling;
        self.note(result);
    }

    /// Chooses the tokens of some rows in `chosen`.
    fn choose(
        &mut self,
        sampling: &mut Sampling,
        logits: &Buffer,
        plain: &[(usize, usize)],
        listed: &[Listed<'_>],
        chosen: &mut [TokenId],
    ) -> Result<(), BackendError> {
        let vocabulary = logits.cols;
        let most_changed = vocabulary / MOST_CHANGED_ONE_IN;
        let (whole, listed): (Vec<&Listed<'_>>, Vec<_>) = listed.iter().partition(|listed| {
            listed.changed.len() > most_changed.max(N_CANDIDATES) && vocabulary > N_CANDIDATES
        });
        let Found { largest, candidates, values } = self.find(sampling, logits, plain, &listed)?;
        for (&(_, place), &[key, token]) in plain.iter().zip(&largest) {
            chosen[place] = if key == INVALID_KEY || key <= LEAST_KEY { NO_TOKEN } else { token };
        }
        let n_candidates = N_CANDIDATES.min(vocabulary);
        let mut values = values.as_slice();
        let mut rows = Vec::with_capacity(listed.len());
        let mut missing = whole;
        for (listed, candidates) in listed.into_iter().zip(candidates.chunks_exact(N_CANDIDATES)) {
            let (own, others) = values.split_at(listed.changed.len());
            values = others;
            let candidates = &candidates[..n_candidates];
            if candidates[0][0] == INVALID_KEY {
                continue;
            }
            match suffices(listed, candidates, vocabulary) {
                true => rows.push((listed, candidates, own)),
                false => missing.push(listed),
            }
        }
        let threads = self.host_threads();
        sampling.workers.resize_with(threads.n_threads().max(1), Mutex::default);
        let (workers, results) = (&sampling.workers, Mutex::new(Vec::new()));
        let next = Mutex::new(rows.iter());
        threads.run(&|thread_idx| {
            let mut worker = lock(&workers[thread_idx]);
            loop {
                let Some((listed, candidates, own)) = lock(&next).next() else { break };
                let of_candidates = candidates.iter().map(|&[key, token]| (token, logit_of(key)));
                let changed =
                    listed.changed.iter().zip(*own).map(|(&token, &bits)| (token, f32::from_bits(bits)));
                let token = worker.choose(&listed.input, vocabulary, of_candidates.chain(changed));
                lock(&results).push((listed.place, token));
            }
        });
        for (place, token) in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            chosen[place] = token;
        }
        self.choose_from_rows(logits, &missing, sampling, chosen)
    }

    /// Chooses the tokens of rows whose candidates do not suffice, from the rows.
    fn choose_from_rows(
        &mut self,
        logits: &Buffer,
        missing: &[&Listed<'_>],
        sampling: &mut Sampling,
        chosen: &mut [TokenId],
    ) -> Result<(), BackendError> {
        let mut row = vec![0.0_f32; if missing.is_empty() { 0 } else { logits.cols }];
        let row_bytes = logits.cols * 4;
        for listed in missing {
            let at = listed.row_idx * row_bytes;
            self.read(&[(&logits.storage, at..at + row_bytes)], bytemuck::cast_slice_mut(&mut row))?;
            let mut worker = lock(&sampling.workers[0]);
            chosen[listed.place] = sample(&mut worker.sampler, &mut row, &listed.input);
        }
        Ok(())
    }

    /// Runs the kernels and copies their results to the host.
    fn find(
        &mut self,
        sampling: &mut Sampling,
        logits: &Buffer,
        plain: &[(usize, usize)],
        listed: &[&Listed<'_>],
    ) -> Result<Found, BackendError> {
        let Sampling { words: [plain_rows, listed_rows, all_places], found, passes, values, .. } = sampling;
        let width = logits.cols as u32;
        if !plain.is_empty() {
            let rows: Vec<u32> = plain.iter().map(|&(row_idx, _)| row_idx as u32).collect();
            let rows = uploaded(self, plain_rows, &rows)?;
            let n = plain.len();
            let out = grown(self, found, n * 8)?;
            let groups = linear_groups(n);
            self.recorder.run(Kernel::Largest, &[&logits.storage, rows, out], &[n as u32, width], groups);
        }
        let mut last_pass = 0;
        if !listed.is_empty() {
            let rows: Vec<u32> = listed.iter().map(|listed| listed.row_idx as u32).collect();
            let rows = uploaded(self, listed_rows, &rows)?;
            let (mut n, mut n_passes) = (logits.cols, 0);
            loop {
                let n_chunks = n_chunks(n);
                let n_bytes = listed.len() * n_chunks * N_CANDIDATES * 8;
                let [even, odd] = &mut *passes;
                let (from, to) = if n_passes % 2 == 0 { (odd, even) } else { (even, odd) };
                let to = grown(self, to, n_bytes)?;
                let params = [n as u32, width, n_chunks as u32];
                let groups = [n_chunks as u32, listed.len() as u32, 1];
                let kernel = Kernel::Candidates { is_first: n_passes == 0 };
                match from.as_ref().filter(|_| n_passes > 0) {
                    None => self.recorder.run(kernel, &[&logits.storage, rows, to], &params, groups),
                    Some(from) => self.recorder.run(kernel, &[from, to], &params, groups),
                }
                (last_pass, n_passes) = (n_passes % 2, n_passes + 1);
                if n_chunks == 1 {
                    break;
                }
                n = n_chunks * N_CANDIDATES;
            }
        }
        let places = listed
            .iter()
            .flat_map(|listed| listed.changed.iter().map(|&token| listed.row_idx as u32 * width + token));
        let places: Vec<u32> = places.collect();
        let n_values = places.len();
        if n_values > 0 {
            let places = uploaded(self, all_places, &places)?;
            let out = grown(self, values, n_values * 4)?;
            let groups = linear_groups(n_values.div_ceil(64));
            self.recorder.run(Kernel::Gather, &[&logits.storage, places, out], &[n_values as u32], groups);
        }
        let sizes = [plain.len() * 8, listed.len() * N_CANDIDATES * 8, n_values * 4];
        let buffers = [found.as_ref(), passes[last_pass].as_ref(), values.as_ref()];
        let ranges = buffers.into_iter().zip(sizes).filter_map(|(buffer, n)| Some((buffer?, 0..n)));
        let ranges: Vec<_> = ranges.filter(|(_, range)| !range.is_empty()).collect();
        let mut words = vec![0_u32; sizes.iter().sum::<usize>() / 4];
        self.read(&ranges, bytemuck::cast_slice_mut(&mut words))?;
        let (largest, rest) = words.split_at(sizes[0] / 4);
        let (candidates, values) = rest.split_at(sizes[1] / 4);
        let pairs = |words: &[u32]| words.as_chunks::<2>().0.to_vec();
        Ok(Found { largest: pairs(largest), candidates: pairs(candidates), values: values.to_vec() })
    }
}

/// Results of the kernels.
struct Found {
    /// The largest logit of each plain row.
    largest: Vec<Candidate>,
    /// The candidates of each listed row, [`N_CANDIDATES`] each.
    candidates: Vec<Candidate>,
    /// Bits of the logits of all changed tokens, row by row.
    values: Vec<u32>,
}

/// Writes words to a buffer, which grows. All operations that read it have been submitted.
fn uploaded<'a>(
    backend: &GpuBackend,
    buffer: &'a mut Option<Storage>,
    words: &[u32],
) -> Result<&'a Storage, BackendError> {
    let storage = grown(backend, buffer, size_of_val(words))?;
    backend.device.queue.write_buffer(&storage.buffer, 0, bytemuck::cast_slice(words));
    Ok(storage)
}

/// Grows a buffer to a number of bytes.
fn grown<'a>(
    backend: &GpuBackend,
    buffer: &'a mut Option<Storage>,
    n_bytes: usize,
) -> Result<&'a Storage, BackendError> {
    let found = buffer.take().filter(|buffer| buffer.buffer.size() >= n_bytes as u64);
    let found = match found {
        Some(found) => found,
        None => backend.device.storage("candidates", n_bytes.next_power_of_two())?,
    };
    Ok(buffer.insert(found))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
