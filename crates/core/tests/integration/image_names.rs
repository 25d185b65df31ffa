//! Two different images of one size never share the name of a block: pairs that differ in all values, in one
//! value or in the order of two, behind random texts. A naming that forgets the digest is found.
//!
//! A failure prints its seed: `THRONG_SEED=<seed> cargo test -p throng-core --test integration image_names`.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use throng_core::prompt_media::{
    ContentDigest, ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, SpanKind,
};
use throng_core::request::{TenantId, TokenId};
use throng_core::scheduling::batch::BLOCK_TOKENS;
use throng_core::scheduling::block_hash::BlockHash;
use throng_testkit::nightly::amount;

/// The token of images.
const IMAGE: TokenId = 7;

/// Names of the full blocks of a prompt with media.
type Naming = fn(&[TokenId], &PromptMedia) -> Vec<BlockHash>;

fn names(tokens: &[TokenId], media: &PromptMedia) -> Vec<BlockHash> {
    let root = BlockHash::root(&TenantId("a".into()), None, None);
    BlockHash::names_after(root, 0, tokens, Some(media)).collect()
}

/// The planted mistake: names that know where an image stands, but not which.
fn names_without_digests(tokens: &[TokenId], media: &PromptMedia) -> Vec<BlockHash> {
    let mut media = media.clone();
    media.spans.iter_mut().for_each(|span| span.digest = ContentDigest([0; 32]));
    names(tokens, &media)
}

fn content(grid: [u32; 2], n_tokens: u32, pixels: &[f32]) -> MediaContent {
    let layout = ContentLayout {
        kind: SpanKind::Image,
        grid: [1, grid[0], grid[1]],
        shape: vec![grid[0] * grid[1], pixels.len() as u32 / (grid[0] * grid[1])],
        runs: vec![FeatureRun { offset: 0, len: n_tokens }],
    };
    MediaContent::new(layout, pixels.into()).expect("values of that shape")
}

/// Values of two images of one size, which differ.
fn pair_of_images(rng: &mut Rng, n_values: usize) -> [Vec<f32>; 2] {
    let value = |rng: &mut Rng| rng.f32() * 2.0 - 1.0;
    let one: Vec<f32> = (0..n_values).map(|_| value(rng)).collect();
    let mut other = one.clone();
    let place = rng.usize(..n_values);
    match rng.u32(..3) {
        0 => other.iter_mut().for_each(|slot| *slot = value(rng)),
        // The nearest number.
        1 => other[place] = f32::from_bits(other[place].to_bits() ^ 1),
        _ => other.swap(place, (place + 1) % n_values),
    }
    if one == other {
        other[place] = -one[place] - 0.5;
    }
    [one, other]
}

/// Whether the two prompts of a seed, which differ in an image alone, share the name of a block that the
/// image is part of, or of a later one; and whether they have other names before it.
fn fault_of(seed: u64, naming: Naming) -> Option<&'static str> {
    let mut rng = Rng::with_seed(seed);
    let grid = [2 * rng.u32(1..=4), 2 * rng.u32(1..=4)];
    let n_tokens = grid[0] * grid[1] / 4;
    let n_values = (grid[0] * grid[1] * rng.u32(1..=6)) as usize;
    let text = |rng: &mut Rng, n: usize| (0..n).map(|_| rng.u32(10..50)).collect::<Vec<TokenId>>();
    let n_before = rng.usize(..3 * BLOCK_TOKENS);
    let (before, n_after) = (text(&mut rng, n_before), rng.usize(..3 * BLOCK_TOKENS) + BLOCK_TOKENS);
    let after = text(&mut rng, n_after);
    let tokens = [before, vec![IMAGE; n_tokens as usize], after].concat();
    let [one, other] = pair_of_images(&mut rng, n_values).map(|pixels| {
        let content = Arc::new(content(grid, n_tokens, &pixels));
        let (start, digest) = (n_before as u32, content.digest());
        let span = PromptSpan { start, len: n_tokens, digest, kind: SpanKind::Image };
        naming(&tokens, &PromptMedia { spans: vec![span], contents: vec![content], ..PromptMedia::default() })
    });
    let first = n_before / BLOCK_TOKENS;
    let known: HashSet<&BlockHash> = one[first..].iter().collect();
    if other[first..].iter().any(|name| known.contains(name)) {
        return Some("two images share the name of a block");
    }
    (one[..first] != other[..first]).then_some("equal texts before an image have different names")
}

/// The first seed with a fault.
fn first_fault(seeds: Range<u64>, naming: Naming) -> Option<(u64, &'static str)> {
    seeds.into_iter().find_map(|seed| Some((seed, fault_of(seed, naming)?)))
}

#[test]
fn two_images_of_one_size_share_no_block() {
    let only = std::env::var("THRONG_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = only.map_or(0..amount(3_000, 100_000), |seed| seed..seed + 1);
    if let Some((seed, fault)) = first_fault(seeds, names) {
        panic!("THRONG_SEED={seed}: {fault}");
    }
}

#[test]
fn a_naming_that_forgets_the_digest_is_found() {
    let (seed, fault) = first_fault(0..100, names_without_digests).expect("the mistake is found");
    println!("THRONG_SEED={seed}: {fault}");
    assert_eq!(fault, "two images share the name of a block");
}
