//! Names of blocks: equal in all builds, and different for all that makes keys and values differ.

use throng_core::prompt_media::{ContentDigest, PromptMedia, PromptSpan, RotaryPosition, SpanKind};
use throng_core::request::{AdapterDigest, RequestId, TenantId};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::{BlockHash, BlockNamespace, BlockTokens};

const RECORDED: [&str; 3] = [
    "e5bfacc2f6462361e89cbc0250d6e3a495c55613b2e98c47c6a3895c3c55bed8",
    "04d135a2c5f9d830ee5255b2320ee002ec0ad046d1ff074008ffe2bbda649127",
    "8499e9e5ea4b7c04b16ecc0156a8440fcf58d23cf48d53b7f7f3e41b937f341d",
];

fn tenant(name: &str) -> TenantId {
    TenantId(name.into())
}

#[test]
fn roots_are_kept_apart() {
    let roots = [
        BlockHash::root(&tenant(""), None, None),
        BlockHash::root(&tenant(""), Some(""), None),
        BlockHash::root(&tenant("a"), None, None),
        BlockHash::root(&tenant("a"), Some("b"), None),
        BlockHash::root(&tenant("ab"), Some(""), None),
        BlockHash::root(&tenant(""), Some("ab"), None),
        BlockHash::root(&tenant("a"), None, Some(AdapterDigest([0; 32]))),
        BlockHash::root(&tenant("a"), None, Some(AdapterDigest([1; 32]))),
        BlockHash::root(&tenant("a"), Some("b"), Some(AdapterDigest([1; 32]))),
        BlockHash::private_root(RequestId(0)),
        BlockHash::private_root(RequestId(1)),
    ];
    for (i, a) in roots.iter().enumerate() {
        assert!(roots[i + 1..].iter().all(|b| a != b), "root {i} is not alone");
    }
}

#[test]
fn namespaces_are_kept_apart() {
    let hash = BlockHash::root(&tenant("a"), None, None).child(&[1; BLOCK_TOKENS]);
    let names = [("m", "f16"), ("m", "f32"), ("n", "f16"), ("mf16", ""), ("", "mf16")]
        .map(|(model, kv_type)| BlockNamespace::new(model, kv_type).name(&hash));
    for (i, a) in names.iter().enumerate() {
        assert!(names[i + 1..].iter().all(|b| a != b), "namespace {i} is not alone");
    }
    assert_eq!(names[0], BlockNamespace::new("m", "f16").name(&hash));
    assert_ne!(names[0], BlockNamespace::new("m", "f16").name(&hash.child(&[1; BLOCK_TOKENS])));
}

/// Gateways and workers of other builds compare these names.
#[test]
fn names_are_those_of_other_builds() {
    let block: BlockTokens = std::array::from_fn(|i| i as u32);
    let hex = |bytes: &[u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let plain = BlockHash::root(&tenant("a"), Some("salt"), None).child(&block);
    let adapted = BlockHash::root(&tenant("a"), None, Some(AdapterDigest([7; 32]))).child(&block);
    let name = BlockNamespace::new("model", "f16").name(&plain);
    assert_eq!([hex(plain.as_bytes()), hex(adapted.as_bytes()), hex(name.as_bytes())], RECORDED);
}

/// Indices of those of a prompt's five blocks that have the same names with other media.
fn equal_names(media: &PromptMedia, other: &PromptMedia) -> [bool; 5] {
    let root = BlockHash::root(&tenant("a"), None, None);
    let keys = |media| BlockHash::keys_of(root, &[1; 5 * BLOCK_TOKENS], Some(media));
    let (keys, others) = (keys(media), keys(other));
    std::array::from_fn(|i| keys[i] == others[i])
}

#[test]
fn an_image_names_the_blocks_that_it_covers_and_those_after() {
    let image = |start, len, digest| PromptSpan {
        start,
        len,
        digest: ContentDigest([digest; 32]),
        kind: SpanKind::Image,
    };
    let with = |spans: &[PromptSpan]| PromptMedia { spans: spans.to_vec(), ..PromptMedia::default() };
    let one = with(&[image(20, 20, 1)]);
    let from_second = [true, false, false, false, false];
    assert_eq!(equal_names(&one, &one), [true; 5]);
    assert_eq!(equal_names(&one, &with(&[image(20, 20, 2)])), from_second);
    assert_eq!(equal_names(&one, &with(&[image(20, 21, 1)])), from_second);
    assert_eq!(equal_names(&one, &with(&[image(21, 20, 1)])), from_second);
    assert_eq!(equal_names(&one, &with(&[])), from_second);
    let video = with(&[PromptSpan { kind: SpanKind::Video, ..image(20, 20, 1) }]);
    assert_eq!(equal_names(&one, &video), from_second);
    let two = with(&[image(20, 20, 1), image(64, 1, 1)]);
    assert_eq!(equal_names(&one, &two), [true, true, true, true, false]);
    let mut moved = one.clone();
    moved.positions = (0..80).map(RotaryPosition::of_text).collect();
    assert_eq!(equal_names(&one, &moved), [true; 5], "the positions of text");
    moved.positions[50] = RotaryPosition([50, 51, 50]);
    assert_eq!(equal_names(&one, &moved), [true, true, true, false, false]);
    let root = BlockHash::root(&tenant("a"), None, None);
    let text = BlockHash::keys_of(root, &[1; 80], None);
    assert_eq!(text, BlockHash::keys_of(root, &[1; 80], Some(&with(&[]))), "nothing beside text");
}

#[test]
fn a_name_covers_the_whole_prefix() {
    let root = BlockHash::root(&tenant("a"), None, None);
    let (x, y) = ([1; BLOCK_TOKENS], [2; BLOCK_TOKENS]);
    assert_eq!(root.child(&x).child(&y), root.child(&x).child(&y));
    assert_ne!(root.child(&x).child(&y), root.child(&y).child(&x));
    assert_ne!(root.child(&x), root.child(&x).child(&x));
}
