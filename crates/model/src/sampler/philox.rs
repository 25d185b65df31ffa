//! Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", SC'11). A number depends on its key and counter only, so a sequence draws the same in any
//! batch. Does not know the use of the numbers.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const N_ROUNDS: usize = 10;

/// The block of four random words at `counter` under `key`.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..N_ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let products = [
            u64::from(MULTIPLIERS[0]) * u64::from(counter[0]),
            u64::from(MULTIPLIERS[1]) * u64::from(counter[2]),
        ];
        counter = [
            (products[1] >> 32) as u32 ^ counter[1] ^ key[0],
            products[1] as u32,
            (products[0] >> 32) as u32 ^ counter[3] ^ key[1],
            products[0] as u32,
        ];
    }
    counter
}

/// A number in [0, 1) with 53 random bits for the output token at `position` of continuation `sequence_index`
/// of a request with `seed`.
pub fn uniform(seed: u64, sequence_index: u32, position: u32) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = philox4x32([position, sequence_index, 0, 0], key);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published answers of the authors' Random123 library (`kat_vectors`, philox4x32 with 10 rounds).
    #[test]
    fn gives_the_published_answers() {
        let ones = u32::MAX;
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let base = uniform(7, 3, 100);
        assert_eq!(base, uniform(7, 3, 100));
        let others =
            [uniform(8, 3, 100), uniform(7 | 1 << 40, 3, 100), uniform(7, 4, 100), uniform(7, 3, 101)];
        assert!(others.iter().all(|&other| other != base && (0.0..1.0).contains(&other)));
    }
}
