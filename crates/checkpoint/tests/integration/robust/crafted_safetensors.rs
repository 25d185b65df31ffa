//! Malicious safetensors files and indexes, each with the error it must give.

use std::fs;
use std::path::Path;

use throng_checkpoint::TensorSource;
use throng_checkpoint::safetensors::{SafetensorsError, SafetensorsFolder, parse_index};

use super::within_bounds;

/// Asserts that the bytes are refused with this error.
macro_rules! refused {
    ($read:expr, $bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let bytes: Vec<u8> = $bytes;
        let error = within_bounds(bytes.len(), || $read(&bytes)).map(|_| ()).expect_err(stringify!($pattern));
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?} is not {}", stringify!($pattern));
    }};
}

/// A file of this header and `n_data_bytes`.
fn file(header: &str, n_data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + n_data_bytes, 7);
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn one(dtype: &str, shape: &str, offsets: &str) -> Vec<u8> {
    file(&format!("{{{}}}", entry("w", dtype, shape, offsets)), 16)
}

#[test]
fn headers() {
    let read = SafetensorsFolder::parse;
    assert!(read(&one("F32", "[4]", "[0,16]")).is_ok());
    refused!(read, vec![], SafetensorsError::NoHeader { found: 0 });
    refused!(read, vec![0; 7], SafetensorsError::NoHeader { found: 7 });
    refused!(read, vec![0; 8], SafetensorsError::HeaderJson(_));
    for huge in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_000, (16 << 20) + 1] {
        refused!(read, huge.to_le_bytes().to_vec(), SafetensorsError::HeaderTooLarge { found, .. } if *found == huge);
    }
    refused!(read, 9u64.to_le_bytes().to_vec(), SafetensorsError::Truncated { needed: 9, remaining: 0 });
    for not_a_map in ["[]", "1", "\"a\"", "{", "{\"a\":1}", "{\"a\":[]}", "nul", "{}x", "{\"w\":{}}"] {
        refused!(read, file(not_a_map, 0), SafetensorsError::HeaderJson(_));
    }
    refused!(read, file(&"[".repeat(100_000), 0), SafetensorsError::HeaderJson(_));
    refused!(
        read,
        file(&format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000)), 0),
        SafetensorsError::HeaderJson(_)
    );
    let mut not_utf8 = one("F32", "[4]", "[0,16]");
    not_utf8[10] = 0xff;
    refused!(read, not_utf8, SafetensorsError::HeaderJson(_));
    let many_dimensions = format!("[{}]", vec!["1"; 100_000].join(","));
    refused!(read, one("F32", &many_dimensions, "[0,4]"), SafetensorsError::HeaderJson(_));
    for bad in ["[-1]", "[1.5]", "[\"4\"]", "4", "null", "[18446744073709551616]"] {
        refused!(read, one("F32", bad, "[0,16]"), SafetensorsError::HeaderJson(_));
    }
    for bad in ["[0]", "[0,16,16]", "[-4,16]", "{}", "[0,\"16\"]"] {
        refused!(read, one("F32", "[4]", bad), SafetensorsError::HeaderJson(_));
    }
}

#[test]
fn layouts() {
    let read = SafetensorsFolder::parse;
    refused!(
        read,
        one("F32", "[4]", "[0,17]"),
        SafetensorsError::OutOfFile { .. } | SafetensorsError::Layout(_)
    );
    refused!(read, one("F32", "[4]", "[0,12]"), SafetensorsError::Layout(_));
    refused!(read, one("F32", "[4]", "[16,0]"), SafetensorsError::Layout(_));
    refused!(read, one("F32", "[3]", "[0,12]"), SafetensorsError::Layout(_));
    refused!(read, one("F32", "[3]", "[4,16]"), SafetensorsError::Layout(_));
    refused!(read, one("F32", "[4294967296,4294967296]", "[0,16]"), SafetensorsError::Layout(_));
    refused!(read, one("F32", "[4611686018427387905]", "[0,4]"), SafetensorsError::Layout(_));
    refused!(
        read,
        one("F32", "[4]", "[18446744073709551608,18446744073709551615]"),
        SafetensorsError::OutOfFile { .. }
    );
    // Data ends at the largest number, so that adding the header's size wraps around to a valid offset.
    let reach = 1u64 << 61;
    let mut entries: Vec<String> = (0..7)
        .map(|i| {
            entry(
                &format!("t{i}"),
                "F32",
                &format!("[{}]", reach / 4),
                &format!("[{},{}]", i * reach, (i + 1) * reach),
            )
        })
        .collect();
    entries.push(entry(
        "t7",
        "BF16",
        &format!("[{}]", reach / 2 - 8),
        &format!("[{},{}]", 7 * reach, u64::MAX - 15),
    ));
    refused!(read, file(&format!("{{{}}}", entries.join(",")), 16), SafetensorsError::OutOfFile { .. });

    let pair = |a: &str, b: &str| file(&format!("{{{a},{b}}}"), 16);
    let first = entry("a", "F32", "[2]", "[0,8]");
    assert!(read(&pair(&first, &entry("b", "F32", "[2]", "[8,16]"))).is_ok());
    refused!(read, pair(&first, &entry("b", "F32", "[3]", "[4,16]")), SafetensorsError::Layout(_));
    refused!(read, pair(&first, &entry("b", "F32", "[1]", "[12,16]")), SafetensorsError::Layout(_));
    refused!(read, pair(&first, &entry("a", "F32", "[2]", "[8,16]")), SafetensorsError::HeaderJson(_));
    let same = entry("a", "F32", "[4]", "[0,16]");
    refused!(read, pair(&same, &same), SafetensorsError::HeaderJson(error) if error.to_string().contains("twice"));
    let mut trailing = one("F32", "[4]", "[0,16]");
    trailing.push(0);
    refused!(read, trailing, SafetensorsError::Layout(_));
}

#[test]
fn types() {
    let read = SafetensorsFolder::parse;
    for (dtype, shape) in
        [("I64", "[2]"), ("F64", "[2]"), ("I8", "[16]"), ("BOOL", "[16]"), ("F8_E4M3", "[16]")]
    {
        refused!(
            read,
            one(dtype, shape, "[0,16]"),
            SafetensorsError::UnsupportedDtype { tensor, found } if tensor == "w" && found == dtype
        );
    }
    refused!(read, one("Q4", "[4]", "[0,16]"), SafetensorsError::Layout(_));
}

#[test]
fn indexes() {
    let index =
        |shard: &str| format!(r#"{{"weight_map":{{"w":{}}}}}"#, serde_json::json!(shard)).into_bytes();
    assert!(parse_index(&index("a.safetensors")).is_ok());
    for outside in [
        "../a.safetensors",
        "..",
        "a/b.safetensors",
        "/etc/a.safetensors",
        "./a.safetensors",
        "..\\a.safetensors",
        "C:a.safetensors",
        ".a.safetensors",
        "a\0.safetensors",
        "model.safetensors.index.json",
        "",
        "weights.bin",
    ] {
        refused!(parse_index, index(outside), SafetensorsError::ShardName { shard, .. } if shard == outside);
    }
    for bad in [
        "",
        "{}",
        "[]",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"w":1}}"#,
        r#"{"weight_map":{"w":["a.safetensors"]}}"#,
        r#"{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}"#,
        r#"{"weight_map":{},"weight_map":{}}"#,
    ] {
        refused!(parse_index, bad.as_bytes().to_vec(), SafetensorsError::IndexJson(_));
    }
    refused!(parse_index, "[".repeat(100_000).into_bytes(), SafetensorsError::IndexJson(_));
    refused!(parse_index, vec![b' '; (64 << 20) + 1], SafetensorsError::IndexTooLarge { .. });
}

#[test]
fn folders() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write_index = |map: &str| {
        fs::write(folder.join("model.safetensors.index.json"), format!(r#"{{"weight_map":{map}}}"#)).unwrap();
    };
    let open = |folder: &Path| SafetensorsFolder::open(folder).map(|_| ()).unwrap_err();
    write_index(r#"{"w":"gone.safetensors"}"#);
    assert!(
        matches!(open(folder), SafetensorsError::MissingShard { path, .. } if path.ends_with("gone.safetensors"))
    );

    fs::write(folder.join("real.safetensors"), one("F32", "[4]", "[0,16]")).unwrap();
    write_index(r#"{"w":"real.safetensors","v":"real.safetensors"}"#);
    assert!(matches!(open(folder), SafetensorsError::MissingFromShard { tensor, .. } if tensor == "v"));

    // A shard that is itself an index: indexes are not followed from shards, so there can be no cycle.
    fs::copy(folder.join("model.safetensors.index.json"), folder.join("cycle.safetensors")).unwrap();
    write_index(r#"{"w":"cycle.safetensors"}"#);
    assert!(
        matches!(open(folder), SafetensorsError::InFile { path, .. } if path.ends_with("cycle.safetensors"))
    );

    fs::create_dir(folder.join("folder.safetensors")).unwrap();
    write_index(r#"{"w":"folder.safetensors"}"#);
    assert!(matches!(open(folder), SafetensorsError::Io { .. }));

    write_index(r#"{"w":"../real.safetensors"}"#);
    assert!(matches!(
        open(folder),
        SafetensorsError::InFile { source, .. } if matches!(*source, SafetensorsError::ShardName { .. })
    ));

    // The hub's cache consists of symbolic links, which are followed.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.join("real.safetensors"), folder.join("link.safetensors")).unwrap();
        write_index(r#"{"w":"link.safetensors"}"#);
        assert_eq!(SafetensorsFolder::open(folder).unwrap().names(), ["w"]);
        std::os::unix::fs::symlink(folder.join("loop.safetensors"), folder.join("loop.safetensors")).unwrap();
        write_index(r#"{"w":"loop.safetensors"}"#);
        assert!(matches!(open(folder), SafetensorsError::MissingShard { .. }));
    }
}
