//! Bytes and numbers as words of a shared memory, read and written one by one. Does not know their meaning.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub(super) const WORD: usize = size_of::<u64>();

/// Writes bytes; the rest of the last word is zeros.
pub(super) fn write_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

/// Reads bytes.
pub(super) fn read_bytes(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<WORD>();
    for (word, bytes) in words.iter().zip(&mut *whole) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !rest.is_empty() {
        let last = words[whole.len()].load(Ordering::Relaxed).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Writes floats, two a word.
pub(super) fn write_f32(words: &[AtomicU64], numbers: &[f32]) {
    for (word, pair) in words.iter().zip(numbers.chunks(2)) {
        let second = pair.get(1).map_or(0, |x| x.to_bits());
        word.store(u64::from(pair[0].to_bits()) | u64::from(second) << 32, Ordering::Relaxed);
    }
}

/// Reads floats.
pub(super) fn read_f32(words: &[AtomicU64], numbers: &mut [f32]) {
    for (word, pair) in words.iter().zip(numbers.chunks_mut(2)) {
        let word = word.load(Ordering::Relaxed);
        pair[0] = f32::from_bits(word as u32);
        if let Some(second) = pair.get_mut(1) {
            *second = f32::from_bits((word >> 32) as u32);
        }
    }
}

/// Writes numbers of 16 bits, four a word.
pub(super) fn write_u16(words: &[AtomicU64], numbers: &[u16]) {
    for (word, four) in words.iter().zip(numbers.chunks(4)) {
        let bits = four.iter().rev().fold(0, |bits, &x| bits << 16 | u64::from(x));
        word.store(bits, Ordering::Relaxed);
    }
}

/// Reads numbers of 16 bits.
pub(super) fn read_u16(words: &[AtomicU64], numbers: &mut [u16]) {
    for (word, four) in words.iter().zip(numbers.chunks_mut(4)) {
        let bits = word.load(Ordering::Relaxed);
        for (i, number) in four.iter_mut().enumerate() {
            *number = (bits >> (16 * i)) as u16;
        }
    }
}
