//! Malicious GGUF files, each with the error it must give.

use throng_checkpoint::gguf::writer::{HeaderWriter, TensorToWrite, write};
use throng_checkpoint::gguf::{Gguf, GgufArray, GgufError, GgufValue};
use throng_kernels::quant::Format;

use super::within_bounds;

const F32: u32 = 0;
const Q4_0: u32 = 2;

/// Asserts that the bytes are refused with this error.
macro_rules! refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let bytes: Vec<u8> = $bytes;
        let error = within_bounds(bytes.len(), || Gguf::parse(&bytes)).expect_err(stringify!($pattern));
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?} is not {}", stringify!($pattern));
        assert!(error.to_string().len() < 500, "a short message");
    }};
}

/// A version 3 header of `n_tensors` and `n_keys`, followed by what `build` appends.
fn header(n_tensors: u64, n_keys: u64, build: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let mut writer = HeaderWriter::new(3, n_tensors, n_keys);
    build(&mut writer);
    writer.into_bytes()
}

/// The same, with padding and `n_data_bytes` after it.
fn file(n_tensors: u64, n_keys: u64, n_data_bytes: usize, build: impl FnOnce(&mut HeaderWriter)) -> Vec<u8> {
    let mut bytes = header(n_tensors, n_keys, build);
    bytes.resize(bytes.len().next_multiple_of(32) + n_data_bytes, 0);
    bytes
}

/// One key with the raw type and bytes of its value.
fn key(value_type: u32, value: &[u8]) -> Vec<u8> {
    header(0, 1, |w| {
        w.string(b"some.key");
        w.raw(&value_type.to_le_bytes());
        w.raw(value);
    })
}

/// One tensor over 4 kB of data.
fn tensor(fastest_first: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    file(1, 0, 4096, |w| w.tensor("w", fastest_first, type_id, offset))
}

fn le(parts: &[u64]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.to_le_bytes()).collect()
}

#[test]
fn beginnings() {
    refused!(vec![], GgufError::Truncated { .. });
    refused!(b"GGU".to_vec(), GgufError::Truncated { needed: 4, remaining: 3, .. });
    refused!(b"GGML\x03\0\0\0".to_vec(), GgufError::NotGguf { found } if found == b"GGML");
    refused!(b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaa".to_vec(), GgufError::NotGguf { .. });
    refused!(b"GGUF".to_vec(), GgufError::Truncated { .. });
    refused!(HeaderWriter::new(1, 0, 0).into_bytes(), GgufError::UnsupportedVersion { found: 1 });
    refused!(HeaderWriter::new(4, 0, 0).into_bytes(), GgufError::UnsupportedVersion { found: 4 });
    refused!(HeaderWriter::new(0, 0, 0).into_bytes(), GgufError::UnsupportedVersion { found: 0 });
    refused!(HeaderWriter::new(3u32.swap_bytes(), 0, 0).into_bytes(), GgufError::BigEndian);
    refused!(HeaderWriter::new(3, 0, 0).into_bytes()[..20].to_vec(), GgufError::Truncated { .. });
}

#[test]
fn counts() {
    for huge in [u64::MAX, i64::MAX as u64, 1 << 32, (1 << 17) + 1] {
        refused!(header(huge, 0, |_| {}), GgufError::TooMany { what: "tensors", .. });
        refused!(header(0, huge, |_| {}), GgufError::TooMany { what: "metadata keys", .. });
    }
    refused!(header(1 << 17, 0, |_| {}), GgufError::Truncated { remaining: 8, .. });
    refused!(header(0, 1 << 16, |_| {}), GgufError::Truncated { remaining: 0, .. });
    refused!(header(1, 0, |_| {}), GgufError::Truncated { .. });
    // More keys than there are, fewer than there are.
    refused!(header(0, 2, |w| w.entry("a", &GgufValue::U64(1))), GgufError::Truncated { .. });
    refused!(
        file(1, 0, 0, |w| w.entry("some.long.key.of.the.metadata", &GgufValue::U64(1))),
        GgufError::DimensionCount { .. }
    );
    // The keys take up the bytes that the tensor count needs.
    let keys = |w: &mut HeaderWriter| w.entry("k", &GgufValue::String("x".repeat(3200)));
    refused!(header(100, 1, keys), GgufError::Truncated { remaining: 0, .. });
}

#[test]
fn strings() {
    for huge in [u64::MAX, u64::MAX - 8, 1 << 40, 1000] {
        refused!(header(0, 1, |w| w.raw(&le(&[huge, 0, 0]))), GgufError::Truncated { needed, .. } if *needed == huge);
        refused!(key(8, &le(&[huge, 0])), GgufError::Truncated { needed, .. } if *needed == huge);
    }
    refused!(
        header(0, 1, |w| {
            w.string(b"\xff\xfe");
            w.raw(&[0; 16]);
        }),
        GgufError::InvalidUtf8 { .. }
    );
    refused!(key(8, &[&le(&[2])[..], b"\xc3\x28"].concat()), GgufError::InvalidUtf8 { reading } if reading.contains("some.key"));
    refused!(
        file(1, 0, 64, |w| {
            w.string(b"\x80");
            w.raw(&[0; 40]);
        }),
        GgufError::InvalidUtf8 { .. }
    );
    // A name of a megabyte is truncated in the error.
    let long = "n".repeat(1 << 20);
    refused!(file(1, 0, 64, |w| w.tensor(&long, &[], F32, 0)), GgufError::DimensionCount { tensor, .. } if tensor.len() < 200);
}

#[test]
fn values() {
    for unknown in [13, 255, u32::MAX] {
        refused!(key(unknown, &[0; 8]), GgufError::UnknownValueType { found, .. } if *found == unknown);
        let array = [&unknown.to_le_bytes()[..], &le(&[1, 0])].concat();
        refused!(key(9, &array), GgufError::UnknownValueType { found, .. } if *found == unknown);
    }
    refused!(key(7, &[2]), GgufError::InvalidBool { found: 2, .. });
    refused!(key(10, &[0; 7]), GgufError::Truncated { needed: 8, remaining: 7, .. });
    // Arrays: of arrays, of more elements than bytes, of so many that the size wraps around to zero.
    let array = |element_type: u32, n: u64| [&element_type.to_le_bytes()[..], &le(&[n]), &[0; 64]].concat();
    refused!(key(9, &array(9, 1)), GgufError::NestedArray { .. });
    refused!(key(9, &array(9, u64::MAX)), GgufError::NestedArray { .. });
    for element_type in [0, 4, 6, 7, 8, 12] {
        for n in [u64::MAX, 1 << 61, 1 << 62, 1 << 32, 65] {
            refused!(key(9, &array(element_type, n)), GgufError::Truncated { .. });
        }
    }
    refused!(
        key(9, &[&7u32.to_le_bytes()[..], &le(&[3]), &[1, 0, 9]].concat()),
        GgufError::InvalidBool { found: 9, .. }
    );
    // Strings in an array: the second claims to be huge.
    let strings = [&8u32.to_le_bytes()[..], &le(&[2, 1]), b"a", &le(&[u64::MAX])].concat();
    refused!(key(9, &strings), GgufError::Truncated { .. });
    let twice = [("a", GgufValue::U8(1)), ("b", GgufValue::U8(1)), ("a", GgufValue::F32(2.0))];
    refused!(write(3, &twice, &[]), GgufError::DuplicateKey { key } if key == "a");
}

#[test]
fn alignments() {
    let with = |alignment| write(3, &[("general.alignment", alignment)], &[]);
    refused!(with(GgufValue::U32(0)), GgufError::InvalidAlignment { found: 0 });
    refused!(with(GgufValue::U32(13)), GgufError::InvalidAlignment { found: 13 });
    refused!(with(GgufValue::U64(u64::MAX)), GgufError::InvalidAlignment { .. });
    refused!(with(GgufValue::I32(-32)), GgufError::WrongType { .. });
    refused!(with(GgufValue::String("32".into())), GgufError::WrongType { .. });
    refused!(with(GgufValue::Array(GgufArray::U32(vec![32]))), GgufError::WrongType { .. });
    // With an alignment beyond the file's end there is no data.
    refused!(
        file(1, 1, 4096, |w| {
            w.entry("general.alignment", &GgufValue::U64(1 << 63));
            w.tensor("w", &[1], F32, 0);
        }),
        GgufError::OutOfFile { data_bytes: 0, .. }
    );
    let data = [0; 8];
    let tensor = TensorToWrite { name: "w", shape: &[2], format: Format::F32, data: &data };
    for good in [1, 2, 64, 4096] {
        let bytes = write(3, &[("general.alignment", GgufValue::U32(good))], std::slice::from_ref(&tensor));
        assert!(Gguf::parse(&bytes).is_ok());
    }
}

#[test]
fn shapes() {
    assert!(Gguf::parse(&tensor(&[4, 4], F32, 0)).is_ok());
    refused!(tensor(&[], F32, 0), GgufError::DimensionCount { found: 0, .. });
    refused!(tensor(&[1; 5], F32, 0), GgufError::DimensionCount { found: 5, .. });
    refused!(
        header(1, 0, |w| {
            w.string(b"w");
            w.raw(&u32::MAX.to_le_bytes());
            w.raw(&[1; 100]);
        }),
        GgufError::DimensionCount { found: u32::MAX, .. }
    );
    for zero in [&[0][..], &[4, 0], &[0, u64::MAX], &[1, 1, 1, 0]] {
        refused!(tensor(zero, F32, 0), GgufError::ZeroDimension { .. });
    }
    // Products that wrap around: to zero, to a small number, after multiplication by the bytes of an element.
    for wrapping in [
        &[1 << 32, 1 << 32][..],
        &[1 << 63, 2],
        &[(1 << 63) + 1, 2],
        &[u64::MAX, u64::MAX],
        &[1 << 62],
        &[u64::MAX],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
    ] {
        refused!(tensor(wrapping, F32, 0), GgufError::SizeOverflow { .. });
    }
    refused!(tensor(&[1 << 61], F32, 0), GgufError::OutOfFile { .. } | GgufError::SizeOverflow { .. });
    refused!(tensor(&[33], Q4_0, 0), GgufError::PartialBlock { found: 33, .. });
    refused!(tensor(&[16, 2], Q4_0, 0), GgufError::PartialBlock { found: 16, .. });
}

#[test]
fn types() {
    refused!(tensor(&[32], 24, 0), GgufError::UnsupportedTensorType { name: "I8", tensor, .. } if tensor == "w");
    refused!(tensor(&[32], 9, 0), GgufError::UnsupportedTensorType { name: "Q8_1", .. });
    for unknown in [4, 5, 31, 1000, u32::MAX] {
        refused!(tensor(&[32], unknown, 0), GgufError::UnsupportedTensorType { name: "unknown", .. });
    }
}

#[test]
fn placement() {
    assert!(Gguf::parse(&tensor(&[1024], F32, 0)).is_ok());
    refused!(tensor(&[1025], F32, 0), GgufError::OutOfFile { n_bytes: 4100, data_bytes: 4096, .. });
    refused!(tensor(&[1024], F32, 32), GgufError::OutOfFile { .. });
    refused!(tensor(&[1], F32, 4096), GgufError::OutOfFile { .. });
    refused!(tensor(&[1 << 40], F32, 0), GgufError::OutOfFile { .. });
    for far in [u64::MAX - 31, 1 << 63, 1 << 40] {
        refused!(tensor(&[8], F32, far), GgufError::OutOfFile { .. });
    }
    for odd in [1, 16, 33, u64::MAX] {
        refused!(tensor(&[8], F32, odd), GgufError::MisalignedOffset { alignment: 32, .. });
    }
    let two = |first: (&str, u64, u64), second: (&str, u64, u64)| {
        file(2, 0, 256, |w| {
            w.tensor(first.0, &[first.1], F32, first.2);
            w.tensor(second.0, &[second.1], F32, second.2);
        })
    };
    assert!(Gguf::parse(&two(("a", 8, 0), ("b", 8, 32))).is_ok());
    assert!(Gguf::parse(&two(("a", 8, 128), ("b", 8, 0))).is_ok(), "holes and any order are fine");
    refused!(two(("a", 8, 0), ("b", 8, 0)), GgufError::Overlap { .. });
    refused!(two(("a", 9, 0), ("b", 8, 32)), GgufError::Overlap { first, second } if first == "a" && second == "b");
    refused!(two(("a", 8, 64), ("b", 64, 0)), GgufError::Overlap { .. });
    refused!(two(("a", 8, 0), ("a", 8, 32)), GgufError::DuplicateTensor { tensor } if tensor == "a");
}
