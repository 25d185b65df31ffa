//! The orientation in EXIF data (EXIF 2.32, tag 0x0112).

/// The orientation in `exif`, TIFF data with or without the marker `Exif\0\0` before; 1, upright, if it has
/// none.
pub(super) fn orientation(exif: &[u8]) -> u16 {
    read(exif).filter(|value| (1..=8).contains(value)).unwrap_or(1)
}

fn read(exif: &[u8]) -> Option<u16> {
    const ORIENTATION: u16 = 0x0112;
    const SHORT: u16 = 3;
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let bytes: [u8; 4] = tiff.get(4..8)?.try_into().ok()?;
    let first = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) } as usize;
    let n_entries = usize::from(short(first)?);
    let entries = (0..n_entries).map_while(|entry| first.checked_add(2 + entry * 12));
    for entry in entries {
        if short(entry)? == ORIENTATION {
            return (short(entry + 2)? == SHORT).then(|| short(entry + 8)).flatten();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders_are_read_and_damage_is_upright() {
        let little =
            [b"II*\0".as_slice(), &[8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0]].concat();
        let big = [b"Exif\0\0MM\0*".as_slice(), &[0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 8, 0, 0]]
            .concat();
        assert_eq!((orientation(&little), orientation(&big)), (6, 8));
        assert!((0..big.len()).all(|len| matches!(orientation(&big[..len]), 1 | 8)));
        let far = [b"II*\0".as_slice(), &[0xff, 0xff, 0xff, 0xff]].concat();
        assert_eq!(orientation(&far), 1);
    }
}
