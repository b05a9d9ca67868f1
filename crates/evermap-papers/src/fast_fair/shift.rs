//! FAST: inserting and removing a record by shifting others, one 8-byte store at a time.
//!
//! After each store the records that count are those before or those after the change:
//!
//! ```text
//! to insert B:   A C .   ->   A C C'.   ->   A (A) C .   ->   A B C .
//! to remove B:   A B C .  ->  A (A) C .  ->  A C C'.  ->  A C .
//! ```
//!
//! `C'` is a copy of the record before it and does not count, and neither does `(A)`, which has the
//! reference of the record before it: see [`Record`](super::layout::Record). Stores to one line
//! become durable in their order. A line is flushed before the next one is changed, so the lines
//! are in order too.

use evermap_pm::Medium;
use evermap_pm::medium::Note;

use super::access::NodeRef;
use super::layout::{LINE_RECORDS, VACANT};
use super::{FastFair, Form, mistakes};

/// Why a crash seldom shows that the end of a node was not durable: recovery removes what the next
/// node has too, but has to read leaves for that.
pub(super) const BEHIND_THE_END: &str = "needed where a leaf behind the end was freed: \
     `the_end_of_a_node_is_durable_when_a_change_returns`";

/// Returns `true` if the record at `position` is the first in its line.
fn begins_line(position: usize) -> bool {
    position.is_multiple_of(LINE_RECORDS)
}

impl<M: Medium, F: Form> FastFair<M, F> {
    /// Inserts a record at `position` into a node that this thread has locked, and that has room.
    /// What the record refers to is flushed already.
    pub(super) fn insert_record(
        &self,
        node: &NodeRef<'_, F>,
        position: usize,
        prefix: u64,
        at: u64,
    ) {
        let (m, records) = (self.medium(), node.records());
        let count = node.count(m);
        // The node has to end behind the last record before that is moved.
        let end = &records[count + 1];
        if m.load(&end.at) != 0 {
            m.note(Note::Harmless("torn, the node still ends one record before"));
            m.store(&end.at, 0);
            if begins_line(count + 1) {
                m.note(Note::Harmless(BEHIND_THE_END));
                m.flush(end);
            }
        }
        // Together with what the record refers to.
        m.fence();
        for to in (position + 1..=count).rev() {
            let from = &records[to - 1];
            m.store(&records[to].at, m.load(&from.at));
            m.store(&records[to].prefix, m.load(&from.prefix));
            // Before anything is stored to the line of `from`.
            if begins_line(to) && !m.mutant(mistakes::INSERT_OUT_OF_ORDER) {
                m.flush(&records[to]);
                m.fence();
            }
        }
        let record = &records[position];
        if position < count {
            m.store(&record.at, node.left_of(m, position));
        }
        m.store(&record.prefix, prefix);
        m.store(&record.at, at);
        m.flush(record);
        m.fence();
        node.set_count(m, count + 1);
    }

    /// Removes the record at `position` from a node that this thread has locked.
    pub(super) fn remove_record(&self, node: &NodeRef<'_, F>, position: usize) {
        let (m, records) = (self.medium(), node.records());
        if position + 1 < node.count(m) {
            m.store(&records[position].at, node.left_of(m, position));
        }
        self.close_gap(node, position);
    }

    /// Removes a record that does not count, or that is the last.
    pub(super) fn close_gap(&self, node: &NodeRef<'_, F>, position: usize) {
        let (m, records) = (self.medium(), node.records());
        let last = node.count(m) - 1;
        for to in position..last {
            let from = &records[to + 1];
            m.store(&records[to].prefix, m.load(&from.prefix));
            m.store(&records[to].at, m.load(&from.at));
            // Before anything is stored to the line of `from`. The published code flushes as for an
            // insertion, at the other end of each line.
            if begins_line(to + 1) && !m.mutant(mistakes::REMOVE_OUT_OF_ORDER) {
                m.flush(&records[to]);
                m.fence();
            }
        }
        m.store(&records[last].at, 0);
        m.store_transient(&records[last].prefix, VACANT);
        m.flush(&records[last]);
        m.fence();
        node.set_count(m, last);
    }
}
