//! A table: an array of buckets, and what belongs to it.
//!
//! A pointer to a table contains its size, so both are replaced by one store, and no thread can
//! combine the array of one table with the size of another.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::bucket::Bucket;
use crate::memory::Memory;
use crate::step;

/// The bits of a pointer that hold the number of bits of a hash that do not choose the bucket.
const SHIFT: usize = 0x3f;
/// The bit of a pointer that is set if the hashes of the table depend on its seed.
const SEEDED: usize = 0x40;
/// The alignment of a table, which leaves these bits free.
const ALIGN: usize = 128;

const _: () = assert!(ALIGN > SHIFT | SEEDED);

/// The smallest and the largest number of bits of a bucket number.
const BITS_MIN: u32 = 1;
pub(crate) const BITS_MAX: u32 = 31;

/// What follows the buckets of a table.
#[repr(C, align(64))]
struct Trailer {
    /// The table into which the entries of this one are being moved, or null.
    next: TablePtr,
    seed: u64,
}

/// A place for a pointer to a table. Zeroed memory is null.
#[repr(transparent)]
pub(crate) struct TablePtr(AtomicPtr<Bucket>);

/// A table that is not freed during `'t`.
#[derive(Clone, Copy)]
pub(crate) struct Table<'t> {
    tagged: NonNull<Bucket>,
    life: PhantomData<&'t Bucket>,
}

/// A table that nobody else knows yet, and its memory.
pub(crate) struct NewTable {
    tagged: NonNull<Bucket>,
    pub(crate) memory: Memory,
}

/// A table to which nothing is added: what an empty map has.
#[repr(C, align(128))]
struct EmptyTable {
    buckets: [Bucket; 1 << BITS_MIN],
    trailer: Trailer,
}

static EMPTY: EmptyTable = EmptyTable {
    buckets: [const { Bucket::new() }; 1 << BITS_MIN],
    trailer: Trailer { next: TablePtr::null(), seed: 0 },
};

impl TablePtr {
    const fn null() -> Self {
        TablePtr(AtomicPtr::new(null_mut()))
    }

    /// Creates a pointer to the empty table.
    pub(crate) fn empty() -> Self {
        TablePtr(AtomicPtr::new(Table::empty().tagged.as_ptr()))
    }

    /// Returns the table, if there is one.
    ///
    /// # Safety
    /// The table is not freed during `'t`.
    #[inline(always)]
    pub(crate) unsafe fn load<'t>(&self) -> Option<Table<'t>> {
        step();
        // Acquire: pairs with the release in `store`, so that the table is complete.
        let tagged = NonNull::new(self.0.load(Acquire))?;
        Some(Table { tagged, life: PhantomData })
    }

    /// Returns the table. There must be one.
    ///
    /// # Safety
    /// 1. There is a table.
    /// 2. It is not freed during `'t`.
    #[inline(always)]
    pub(crate) unsafe fn load_set<'t>(&self) -> Table<'t> {
        // SAFETY: 1. and 2. are promised by the caller.
        unsafe { self.load().unwrap_unchecked() }
    }

    /// Publishes a table.
    pub(crate) fn store(&self, table: Table<'_>) {
        // Release: everything that was written to the table before.
        self.0.store(table.tagged.as_ptr(), Release);
        step();
    }
}

impl NewTable {
    /// Creates a table of `1 << bits` empty buckets, or two if that is less. Returns `None` if
    /// there is no memory.
    pub(crate) fn new(bits: u32, seed: Option<u64>) -> Option<Self> {
        let bits = bits.max(BITS_MIN);
        if bits > BITS_MAX {
            return None;
        }
        let bytes = size_of::<Bucket>().checked_mul(1 << bits)?;
        let memory = Memory::zeroed(bytes.checked_add(size_of::<Trailer>())?, ALIGN)?;
        let flags = (u64::BITS - bits) as usize | if seed.is_some() { SEEDED } else { 0 };
        let tagged = memory.base().cast::<Bucket>().map_addr(|address| address | flags);
        let trailer = Table { tagged, life: PhantomData }.trailer_ptr();
        // SAFETY: within the memory, which nobody else knows.
        unsafe { (*trailer.as_ptr()).seed = seed.unwrap_or(0) };
        Some(NewTable { tagged, memory })
    }

    /// Returns the table.
    ///
    /// # Safety
    /// The memory is not freed during `'t`.
    pub(crate) unsafe fn table<'t>(&self) -> Table<'t> {
        Table { tagged: self.tagged, life: PhantomData }
    }
}

impl PartialEq for Table<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.tagged == other.tagged
    }
}

impl<'t> Table<'t> {
    fn empty() -> Table<'static> {
        let buckets = NonNull::from(&EMPTY).cast::<Bucket>();
        let flags = (u64::BITS - BITS_MIN) as usize;
        Table { tagged: buckets.map_addr(|address| address | flags), life: PhantomData }
    }

    /// Returns `true` if the table is the one that nothing may be added to.
    pub(crate) fn is_empty_table(self) -> bool {
        self == Table::empty()
    }

    /// Returns the number of bits of a bucket number.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        u64::BITS - self.shift()
    }

    #[inline(always)]
    fn shift(self) -> u32 {
        (self.tagged.addr().get() & SHIFT) as u32
    }

    /// Returns the number of buckets.
    #[inline(always)]
    pub(crate) fn buckets(self) -> usize {
        1 << self.bits()
    }

    /// Returns the number of the bucket for hashes that begin with `prefix`. Buckets are in the
    /// order of hashes.
    #[inline(always)]
    pub(crate) fn index(self, prefix: u64) -> usize {
        (prefix >> self.shift()) as usize
    }

    /// Returns the least hash of a bucket, or `None` if there is no such bucket.
    pub(crate) fn least_hash(self, index: usize) -> Option<u64> {
        (index < self.buckets()).then(|| (index as u64) << self.shift())
    }

    /// Returns the bucket for hashes that begin with `prefix`.
    #[inline(always)]
    pub(crate) fn bucket(self, prefix: u64) -> &'t Bucket {
        // SAFETY: `index` is below the number of buckets, which are initialised and not freed
        // during `'t`.
        unsafe { self.address().add(self.index(prefix)).as_ref() }
    }

    /// Returns the bucket with this number.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn bucket_at(self, index: usize) -> &'t Bucket {
        self.bucket(self.least_hash(index).expect("a bucket of the table"))
    }

    #[inline(always)]
    fn address(self) -> NonNull<Bucket> {
        let address = self.tagged.as_ptr().map_addr(|address| address & !(SHIFT | SEEDED));
        // SAFETY: buckets are aligned so that the flags are no part of their address.
        unsafe { NonNull::new_unchecked(address) }
    }

    #[inline(always)]
    fn trailer_ptr(self) -> NonNull<Trailer> {
        // SAFETY: the trailer follows the buckets.
        unsafe { self.address().add(self.buckets()).cast() }
    }

    fn trailer(self) -> &'t Trailer {
        // SAFETY: initialised by `NewTable::new`, and not freed during `'t`.
        unsafe { self.trailer_ptr().as_ref() }
    }

    /// Returns `true` if the hashes depend on a seed.
    #[inline(always)]
    pub(crate) fn is_seeded(self) -> bool {
        self.tagged.addr().get() & SEEDED != 0
    }

    /// Returns the seed of the hashes, if they depend on one.
    pub(crate) fn seed(self) -> Option<u64> {
        self.is_seeded().then(|| self.trailer().seed)
    }

    /// Returns the table into which this one is being moved, or was moved.
    #[inline]
    pub(crate) fn next(self) -> Option<Table<'t>> {
        // SAFETY: a table is freed a grace period after the one before it at the earliest.
        unsafe { self.trailer().next.load() }
    }

    /// Sets the table into which this one will be moved.
    pub(crate) fn set_next(self, next: Table<'_>) {
        debug_assert!(!self.is_empty_table());
        self.trailer().next.store(next);
    }

    /// Prefetches the bucket for hashes that begin with `prefix`.
    #[inline(always)]
    pub(crate) fn prefetch(self, prefix: u64) {
        prefetch(self.bucket(prefix));
    }
}

/// Prefetches the line at an address.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on speed, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_divide_the_hashes_in_order() {
        for bits in [1, 2, 7] {
            let new = NewTable::new(bits, None).unwrap();
            // SAFETY: `new` lives longer.
            let table = unsafe { new.table() };
            assert_eq!((table.bits(), table.buckets(), table.seed()), (bits, 1 << bits, None));
            assert_eq!((table.index(0), table.index(u64::MAX)), (0, table.buckets() - 1));
            for index in 0..table.buckets() {
                let least = table.least_hash(index).unwrap();
                assert_eq!(table.index(least), index);
                assert!(least == 0 || table.index(least - 1) == index - 1);
                assert!(std::ptr::eq(table.bucket(least), table.bucket_at(index)));
            }
            assert_eq!(table.least_hash(table.buckets()), None);
            assert!(table.next().is_none() && !table.is_empty_table());
        }
    }

    #[test]
    fn a_table_has_a_seed_and_a_successor() {
        let (old, new) = (NewTable::new(1, Some(7)).unwrap(), NewTable::new(3, Some(0)).unwrap());
        // SAFETY: both live longer.
        let (old, new) = unsafe { (old.table(), new.table()) };
        old.set_next(new);
        assert!(old.next() == Some(new));
        assert_eq!((old.seed(), new.seed(), new.bits()), (Some(7), Some(0), 3));
    }

    #[test]
    fn the_empty_table_has_no_entries() {
        let table = Table::empty();
        assert!(table.is_empty_table() && table.next().is_none() && table.seed().is_none());
        assert_eq!(table.bucket(u64::MAX).load().used().count(), 0);
        assert_eq!(table.bits(), BITS_MIN);
        assert!(NewTable::new(BITS_MAX + 1, None).is_none());
        let least = NewTable::new(0, None).unwrap();
        // SAFETY: `least` lives longer.
        assert_eq!(unsafe { least.table() }.buckets(), 2);
    }
}
