//! Recognising a header that is older than the rest of the file.
//!
//! The header decides whether what was saved at the last close is still true. So its page must not
//! be that of an earlier time, which a device that loses a write leaves, and a copy that replaces a
//! part of the file. The generation of the last opening is also in another page:
//!
//! ```text
//! byte 4352   generation, stored there when it is durable in the header
//! byte 4360   its complement
//! ```
//!
//! No crash leaves it ahead of the header in a file whose pages are of one time.

use super::Region;
use super::superblock::SECOND_COPY;
use crate::medium::{Medium, Note};
use crate::{PmU64, pod};

/// The offset of the copy: the line after the second copy of the superblock.
const COPY: u64 = SECOND_COPY + 256;

pod! {
    /// The copy of the generation.
    struct GenerationCopy: 16 {
        generation: PmU64,
        complement: PmU64,
    }
}

impl<M: Medium> Region<M> {
    /// Returns `true` if the header is of an earlier opening than its copy of the generation.
    pub(super) fn is_header_outdated(&self) -> bool {
        let stored = self.medium.load(&self.header().generation[0]);
        self.is_generation_reliable() && self.copied_generation() > stored
    }

    /// Returns the generation of the last opening as the copy has it, or 0 if it has none: a file
    /// of an earlier version, or a damaged one.
    pub(super) fn copied_generation(&self) -> u64 {
        let (m, copy) = (&self.medium, self.generation_copy());
        let generation = m.load(&copy.generation);
        if m.load(&copy.complement) == !generation { generation } else { 0 }
    }

    /// Stores the generation once more. It is durable in the header.
    pub(super) fn write_generation_copy(&self) {
        let (m, copy) = (&self.medium, self.generation_copy());
        m.store(&copy.generation, self.generation);
        m.store(&copy.complement, !self.generation);
        m.note(Note::Harmless("torn, or of an earlier opening, it shows nothing"));
        m.persist(copy);
    }

    fn generation_copy(&self) -> &GenerationCopy {
        self.medium.at(COPY).expect("below the table")
    }
}
