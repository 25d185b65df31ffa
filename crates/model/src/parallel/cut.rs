//! A part of a tensor: ranges along one of its dimensions. Does not know which tensors are cut.

use std::ops::Range;

use throng_kernels::quant::Format;

/// Ranges along one dimension of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// The dimension, slowest first.
    pub(super) axis: usize,
    /// Ranges that are kept, in this order.
    pub(super) ranges: Vec<Range<usize>>,
}

/// Bytes of a cut tensor.
#[derive(Debug)]
pub(super) enum CutBytes {
    /// Adjacent rows of the whole, in this range.
    Within(Range<usize>),
    /// Bytes copied together from several places.
    Copied(Vec<u8>),
}

/// Strides of a tensor's bytes around a dimension.
struct Strides {
    /// Times that the whole dimension is repeated.
    n_outer: usize,
    /// Bytes of the whole dimension.
    whole: usize,
    /// Elements of the dimension that are stored together, and their bytes.
    unit: (usize, usize),
}

impl Cut {
    /// Length of the dimension after the cut.
    pub(super) fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// The shape after the cut.
    pub(super) fn shape(&self, whole: &[usize]) -> Vec<usize> {
        let mut shape = whole.to_vec();
        if let Some(n) = shape.get_mut(self.axis) {
            *n = self.len();
        }
        shape
    }

    /// Bytes after the cut, of a tensor of this shape and format.
    pub(super) fn n_bytes(&self, whole: &[usize], format: Format) -> Option<usize> {
        format.bytes_of(self.shape(whole).iter().product())
    }

    /// The bytes of a tensor that are kept; `None` where a range is outside or begins within a block.
    pub(super) fn of(&self, shape: &[usize], format: Format, data: &[u8]) -> Option<CutBytes> {
        let n_inner: usize = shape.get(self.axis + 1..)?.iter().product();
        let unit = match n_inner.is_multiple_of(format.block_elements()) {
            true => (1, format.bytes_of(n_inner)?),
            false if n_inner == 1 => (format.block_elements(), format.block_bytes()),
            false => return None,
        };
        self.of_bytes(shape, unit, data)
    }

    /// The bytes that are kept of a tensor whose dimension is stored in units of this number of elements and
    /// bytes.
    pub(super) fn of_bytes(&self, shape: &[usize], unit: (usize, usize), data: &[u8]) -> Option<CutBytes> {
        let n = *shape.get(self.axis)?;
        let n_outer = shape[..self.axis].iter().product();
        let strides = Strides { n_outer, whole: n.div_ceil(unit.0) * unit.1, unit };
        // Nothing was read, in a check of shapes.
        if data.is_empty() {
            return Some(CutBytes::Within(0..0));
        }
        let ranges = self.ranges.iter().map(|range| strides.bytes_of(range, n));
        let ranges = ranges.collect::<Option<Vec<_>>>()?;
        if let ([range], 1) = (&*ranges, strides.n_outer) {
            return (range.end <= data.len()).then(|| CutBytes::Within(range.clone()));
        }
        let mut bytes = Vec::new();
        for outer in 0..strides.n_outer {
            let whole = data.get(outer * strides.whole..(outer + 1) * strides.whole)?;
            for range in &ranges {
                bytes.extend_from_slice(whole.get(range.clone())?);
            }
        }
        Some(CutBytes::Copied(bytes))
    }
}

impl Strides {
    fn bytes_of(&self, range: &Range<usize>, n: usize) -> Option<Range<usize>> {
        let (elements, bytes) = self.unit;
        let is_whole = |at: usize| at.is_multiple_of(elements) || at == n;
        let at = |at: usize| at.div_ceil(elements) * bytes;
        (is_whole(range.start) && is_whole(range.end) && range.end <= n)
            .then(|| at(range.start)..at(range.end))
    }
}

impl CutBytes {
    /// The bytes of the cut, given those of the whole tensor.
    pub(super) fn within<'a>(&'a self, whole: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Within(range) => &whole[range.clone()],
            Self::Copied(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(axis: usize, range: Range<usize>) -> Cut {
        Cut { axis, ranges: vec![range] }
    }

    fn kept(cut: &Cut, shape: &[usize], format: Format, data: &[u8]) -> Option<Vec<u8>> {
        cut.of(shape, format, data).map(|bytes| bytes.within(data).to_vec())
    }

    #[test]
    fn rows_are_adjacent_and_columns_are_copied() {
        let data: Vec<u8> = (0..4 * 3 * 2).collect();
        let rows = one(0, 1..3);
        assert_eq!(kept(&rows, &[4, 3], Format::F16, &data), Some((6..18).collect()));
        assert!(matches!(rows.of(&[4, 3], Format::F16, &data), Some(CutBytes::Within(_))));
        let columns = Cut { axis: 1, ranges: vec![2..3, 0..1] };
        let expected = [0, 6, 12, 18].iter().flat_map(|row| [row + 4, row + 5, *row, row + 1]).collect();
        assert_eq!(kept(&columns, &[4, 3], Format::F16, &data), Some(expected));
        assert_eq!(columns.shape(&[4, 3]), [4, 2]);
        assert_eq!(columns.n_bytes(&[4, 3], Format::F16), Some(16));
        let middle = one(1, 1..2);
        assert_eq!(
            kept(&middle, &[2, 3, 2], Format::F16, &data),
            Some([4..8, 16..20].into_iter().flatten().collect())
        );
    }

    #[test]
    fn blocks_are_not_cut() {
        let data: Vec<u8> = (0..2 * 3 * 34).collect();
        let shape = [2, 96];
        let second = one(1, 32..64);
        let expected = (34..68).chain(136..170).collect();
        assert_eq!(kept(&second, &shape, Format::Q8_0, &data), Some(expected));
        assert_eq!(kept(&one(1, 16..64), &shape, Format::Q8_0, &data), None);
        assert_eq!(kept(&one(1, 64..128), &shape, Format::Q8_0, &data), None);
        assert_eq!(kept(&second, &shape, Format::Q8_0, &[]), Some(Vec::new()));
    }
}
