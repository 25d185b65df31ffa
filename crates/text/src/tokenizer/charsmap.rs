//! Checks a precompiled character map (SentencePiece's `precompiled_charsmap`), which the library trusts:
//! with a map that points outside of itself, a thread would panic at the first text. Does not know the
//! map's purpose.

/// A double array: the units of the trie. The strings that its leaves point to follow it.
struct Map<'a> {
    units: Vec<usize>,
    strings: &'a str,
}

/// Whether every walk through the map stays inside of it, for any text.
pub(super) fn is_sound(charsmap: &[u8]) -> bool {
    Map::read(charsmap).is_some_and(|map| map.walks_stay_inside())
}

impl<'a> Map<'a> {
    fn read(charsmap: &'a [u8]) -> Option<Self> {
        let (n_bytes, rest) = charsmap.split_first_chunk::<4>()?;
        let n_bytes = u32::from_le_bytes(*n_bytes) as usize / 4 * 4;
        let (units, strings) = rest.split_at_checked(n_bytes)?;
        let unit = |bytes: &[u8]| bytes.iter().rev().fold(0, |unit, byte| unit << 8 | usize::from(*byte));
        Some(Self {
            units: units.chunks_exact(4).map(unit).collect(),
            strings: std::str::from_utf8(strings).ok()?,
        })
    }

    fn walks_stay_inside(&self) -> bool {
        let Some(&root) = self.units.first() else { return false };
        let mut is_known = vec![false; self.units.len()];
        let mut open = vec![offset(root)];
        while let Some(node) = open.pop() {
            // The library reads a unit for every possible next byte before it checks that the unit belongs
            // to that byte.
            for byte in 1..=0xff {
                let child = node ^ byte;
                let Some(&unit) = self.units.get(child) else { return false };
                if label(unit) != byte {
                    continue;
                }
                let next = child ^ offset(unit);
                if has_leaf(unit) && !self.is_leaf(next) {
                    return false;
                }
                if !std::mem::replace(&mut is_known[child], true) {
                    open.push(next);
                }
            }
        }
        true
    }

    /// Whether a unit points to the start of a character in the strings.
    fn is_leaf(&self, idx: usize) -> bool {
        self.units.get(idx).is_some_and(|unit| self.strings.is_char_boundary(unit & ((1 << 31) - 1)))
    }
}

// Fields of a unit, as in Darts-clone (darts.h).

fn offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

fn label(unit: usize) -> usize {
    unit & ((1 << 31) | 0xff)
}

fn has_leaf(unit: usize) -> bool {
    unit >> 8 & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of 'a' to the string at `value`, with `n_units` units.
    fn map(n_units: usize, child: u32, value: u32, strings: &str) -> Vec<u8> {
        let mut units = vec![0_u32; n_units];
        for (idx, unit) in [(usize::from(b'a'), child), (1, value)] {
            if let Some(slot) = units.get_mut(idx) {
                *slot = unit;
            }
        }
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        let length = (4 * n_units as u32).to_le_bytes();
        length.into_iter().chain(units).chain(strings.bytes()).collect()
    }

    #[test]
    fn maps_that_point_out_of_themselves_are_not_sound() {
        // The leaf of 'a' is unit 1.
        let child = (97 ^ 1) << 10 | 1 << 8 | 97;
        for (n_units, child, value, strings, sound) in [
            (256, child, 0, "bc\0", true),
            (512, child, 3, "bc\0", true),
            (256, 0, 7, "", true),
            (256, child, 4, "bc\0", false),
            (256, child, 1, "é\0", false),
            (255, child, 0, "bc\0", false),
            (97, child, 0, "bc\0", false),
            (1, 0, 0, "", false),
            (0, 0, 0, "bc\0", false),
            (256, (97 ^ 1024) << 10 | 1 << 8 | 97, 0, "bc\0", false),
            (256, 1 << 20 << 10 | 97, 0, "", false),
        ] {
            let map = map(n_units, child, value, strings);
            assert_eq!(is_sound(&map), sound, "{n_units} {child:x} {value} {strings:?}");
        }
        for map in [&b""[..], b"\x04", b"\xff\xff\xff\xff", b"\x04\0\0\0abc"] {
            assert!(!is_sound(map));
        }
    }
}
