//! The size classes that memcached would use.

/// The size of the smallest chunk of memcached's allocator, in bytes.
const SMALLEST: u32 = 96;
/// The size of its largest chunk. Larger items are several chunks of this class.
const LARGEST: u32 = 512 << 10;
/// The bytes of an item beside its key and value: header, CAS id, a zero after the key and a line
/// end after the value.
const OVERHEAD: u32 = 48 + 8 + 1 + 2;

/// Returns the class of an item in memcached with its default settings, from 1 on: sizes grow by a
/// quarter, rounded up to 8 bytes.
///
/// The store allocates differently. The class is for programs that group log lines by it.
pub(super) fn size_class(key_len: usize, value_len: u32) -> u32 {
    let len = value_len.saturating_add(key_len as u32).saturating_add(OVERHEAD);
    let (mut class, mut size) = (1, SMALLEST);
    while size < len && size < LARGEST {
        size = (size + size / 4).next_multiple_of(8);
        if size >= LARGEST / 5 * 4 {
            size = LARGEST;
        }
        class += 1;
    }
    class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_classes_are_those_of_memcached() {
        let class_of = |size: u32| size_class(1, size - OVERHEAD - 1);
        for (class, largest) in (1..).zip([96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944]) {
            assert_eq!((class_of(largest), class_of(largest + 1)), (class, class + 1));
        }
        assert_eq!((size_class(250, u32::MAX), size_class(0, LARGEST)), (39, 39));
    }
}
