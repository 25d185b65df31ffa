//! Slots of recurrent state.

use throng_core::prompt_media::ContentDigest;
use throng_core::request::TenantId;
use throng_core::scheduling::batch::{BLOCK_TOKENS, MemorySlot};
use throng_core::scheduling::block_hash::BlockHash;
use throng_core::scheduling::slot_pool::SlotPool;

fn name(token: u32) -> BlockHash {
    BlockHash::root(&TenantId::anonymous(), None, None).child(&[token; BLOCK_TOKENS])
}

fn keep(pool: &mut SlotPool<BlockHash>, token: u32) -> MemorySlot {
    let slot = pool.allocate().expect("a slot is left");
    pool.keep(slot, name(token));
    slot
}

#[test]
fn the_least_recently_used_checkpoint_gives_way() {
    let mut pool = SlotPool::new(3);
    let (first, second) = (keep(&mut pool, 1), keep(&mut pool, 2));
    let (own, from) = pool.begin_at(name(1));
    assert_eq!((from, pool.n_readers()), (first, 1));
    pool.end_reading(from);
    assert_eq!(pool.allocate(), Some(second));
    assert_eq!((pool.find(name(1)), pool.find(name(2))), (Some(first), None));
    pool.release(own);
    pool.check_invariants().unwrap();
}

#[test]
fn a_checkpoint_that_is_about_to_be_read_stays() {
    let mut pool = SlotPool::new(2);
    let kept = keep(&mut pool, 1);
    let (own, from) = pool.begin_at(name(1));
    assert_ne!(own, from);
    assert_eq!((pool.allocate(), pool.n_available()), (None, 0));
    pool.end_reading(from);
    assert_eq!(pool.allocate(), Some(kept));
}

#[test]
fn the_only_slot_is_taken_over() {
    let mut pool = SlotPool::new(1);
    let kept = keep(&mut pool, 1);
    assert_eq!(pool.begin_at(name(1)), (kept, kept));
    assert_eq!((pool.find(name(1)), pool.n_held(), pool.n_readers()), (None, 1, 0));
    pool.check_invariants().unwrap();
}

/// Requests with images over an encoder's memory with few slots: each image is encoded if no slot has
/// it, and stays in its slot while a request reads it.
#[test]
fn embeddings_of_images_are_shared_and_stay_while_they_are_read() {
    let seed = fastrand::get_seed();
    println!("seed {seed}");
    let mut pool = SlotPool::new(4);
    let mut memory = [None; 4];
    let mut readers: Vec<(ContentDigest, MemorySlot)> = Vec::new();
    let (mut n_encoded, mut n_shared) = (0, 0);
    for _ in 0..2_000 {
        if readers.len() == 3 {
            let (image, slot) = readers.swap_remove(fastrand::usize(..3));
            assert_eq!(memory[slot.0 as usize], Some(image), "another image was written over it");
            pool.end_reading(slot);
        }
        let image = ContentDigest([fastrand::u8(..7); 32]);
        if pool.find(image).is_none() {
            let slot = pool.allocate().expect("no more than three are read");
            memory[slot.0 as usize] = Some(image);
            pool.keep(slot, image);
            n_encoded += 1;
        } else {
            n_shared += 1;
        }
        readers.push((image, pool.begin_reading(image).expect("it is kept")));
        pool.check_invariants().unwrap();
        assert_eq!((pool.n_readers(), pool.n_held()), (readers.len(), 0));
    }
    assert!(n_encoded > 200 && n_shared > 200, "{n_encoded} encoded, {n_shared} shared");
}
