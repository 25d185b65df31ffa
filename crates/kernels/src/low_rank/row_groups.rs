//! Assigns rows of a buffer to groups. Does not know what the groups share.

/// Rows in groups: a row is in one group or in none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowGroups {
    /// The first of each group's rows in `rows`, and the end of the last group's.
    starts: Vec<usize>,
    rows: Vec<usize>,
    end_row: usize,
}

impl RowGroups {
    /// Groups the rows: row `i` is in the group `group_of[i]`. Buffers are kept.
    ///
    /// # Panics
    /// When a group is not below `n_groups`.
    pub fn set(&mut self, n_groups: usize, group_of: &[Option<usize>]) {
        self.starts.clear();
        self.starts.resize(n_groups + 1, 0);
        let in_groups = || group_of.iter().enumerate().filter_map(|(row, group)| Some((row, (*group)?)));
        for (_, group) in in_groups() {
            assert!(group < n_groups, "group {group} of {n_groups}");
            self.starts[group + 1] += 1;
        }
        for group in 0..n_groups {
            self.starts[group + 1] += self.starts[group];
        }
        self.rows.clear();
        self.rows.resize(self.starts[n_groups], 0);
        self.end_row = 0;
        for (row, group) in in_groups() {
            self.rows[self.starts[group]] = row;
            self.starts[group] += 1;
            self.end_row = row + 1;
        }
        // Each start has moved to its end, which is the next one's start.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of a group, increasing.
    pub fn rows(&self, group: usize) -> &[usize] {
        &self.rows[self.starts[group]..self.starts[group + 1]]
    }

    /// The row after the last one of any group.
    pub fn end_row(&self) -> usize {
        self.end_row
    }
}
