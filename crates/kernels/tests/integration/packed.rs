//! Packed bytes are kept on disk: read back they give the same matrix, and a changed layout has another
//! version number.

use crate::support::{Random, bits};
use throng_kernels::quant::{Format, PACKING_VERSION, PackError, PackedMatrix};
use throng_kernels::threads::ThreadPool;

const ROWS: usize = 37;
const COLS: usize = 512;

fn packed(format: Format) -> PackedMatrix {
    let stored = Random(21).weights(format, ROWS, COLS);
    PackedMatrix::pack(format, ROWS, COLS, &stored, &ThreadPool::new(2)).expect("fits")
}

#[test]
fn packed_bytes_taken_back_are_the_same_matrix() {
    for format in Format::ALL {
        let first = packed(format);
        assert_eq!(first.as_bytes().len(), first.n_bytes());
        let again = PackedMatrix::from_packed(format, ROWS, COLS, first.as_bytes(), &ThreadPool::new(2))
            .expect("the same shape");
        assert!(again.as_bytes() == first.as_bytes());
        let row = |matrix: &PackedMatrix| {
            let mut row = vec![0.0; COLS];
            matrix.dequantize_row(ROWS - 1, &mut row);
            bits(&row)
        };
        assert_eq!(row(&again), row(&first), "{}", format.name());
    }
}

#[test]
fn bytes_of_another_shape_are_refused() {
    let matrix = packed(Format::Q4_K);
    let pool = ThreadPool::new(1);
    let bytes = matrix.as_bytes();
    let of = |format, rows, cols, bytes| PackedMatrix::from_packed(format, rows, cols, bytes, &pool).err();
    assert_eq!(of(Format::Q4_K, ROWS, COLS, &bytes[1..]), Some(PackError::Shape));
    assert_eq!(of(Format::Q4_K, ROWS + 16, COLS, bytes), Some(PackError::Shape));
    assert_eq!(of(Format::Q4_K, ROWS, COLS + 1, bytes), Some(PackError::Shape));
    assert_eq!(of(Format::Q8_0, ROWS, COLS, bytes), Some(PackError::Shape));
    assert_eq!(of(Format::Q4_K, 0, COLS, &[]), Some(PackError::Shape));
}

#[test]
fn changed_bytes_need_a_new_version() {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut after = Vec::new();
    for format in Format::ALL {
        for byte in packed(format).as_bytes() {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        // New formats are at the end, and change only the last digest.
        if [Format::MXFP4, Format::TQ2_0, Format::MXFP8, Format::NVFP4_SCALED].contains(&format) {
            after.push(digest);
        }
    }
    assert_eq!(
        (PACKING_VERSION, after.as_slice()),
        (
            2,
            [
                16_636_479_441_675_871_965,
                610_506_896_501_045_110,
                14_643_528_233_385_359_844,
                14_125_020_787_390_977_040
            ]
            .as_slice()
        ),
        "the bytes changed: raise PACKING_VERSION and put all numbers here"
    );
}

/// Matrices share memory regions of 64 MiB: each keeps its bytes while others are allocated and freed, over
/// more than one region.
#[test]
fn matrices_in_a_shared_region_do_not_overlap() {
    let pool = ThreadPool::new(2);
    let cols = 512;
    let filled = |byte: u8, rows: usize| {
        let bytes = vec![byte; rows * cols * 4];
        PackedMatrix::from_packed(Format::F32, rows, cols, &bytes, &pool).expect("the same shape")
    };
    let holds = |matrix: &PackedMatrix, byte: u8| matrix.as_bytes().iter().all(|b| *b == byte);
    let mut random = Random(23);
    let mut alive: Vec<(u8, PackedMatrix)> = Vec::new();
    for byte in 1..=40 {
        alive.push((byte, filled(byte, 16 * (1 + random.below(300)))));
        if random.below(3) == 0 {
            let (byte, matrix) = alive.swap_remove(random.below(alive.len()));
            assert!(holds(&matrix, byte), "matrix {byte}, seed 23");
        }
    }
    for (byte, matrix) in &alive {
        assert!(holds(matrix, *byte), "matrix {byte}, seed 23");
    }
}
