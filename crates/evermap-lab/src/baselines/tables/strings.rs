//! Maps from byte strings to byte strings in ordinary memory, as subjects.
//!
//! Keys and values are boxed slices, as in a program whose strings have any length. So an insert
//! allocates both, in every map alike, and a lookup copies the value.

use crate::subject::store::Result;
use crate::subject::{Found, Place, Size, Store};

/// A byte string that a map owns.
pub(super) type Owned = Box<[u8]>;

/// A concurrent map from byte strings to byte strings, called as its author intends.
pub(super) trait Strings: Send + Sync + 'static {
    /// What lookups need to hold. `()` for maps that lock.
    type Reader<'a>;

    /// Takes a reader.
    fn reader(&self) -> Self::Reader<'_>;

    /// Calls `each` with the value of `key`. Returns `false`, without a call, if it is absent.
    fn get(&self, key: &[u8], reader: &Self::Reader<'_>, each: impl FnOnce(&[u8])) -> bool;

    /// Binds `key` to `value`. Returns `true` if it was bound.
    fn put(&self, key: Owned, value: Owned) -> bool;

    /// Removes `key`. Returns `true` if it was bound.
    fn remove(&self, key: &[u8]) -> bool;

    /// Returns the number of keys.
    fn len(&self) -> usize;
}

/// A map as a store.
pub(super) struct InMemory<T>(pub(super) T);

fn present_if(bound: bool) -> Found {
    if bound { Found::Present } else { Found::Absent }
}

impl<T: Strings> Store for InMemory<T> {
    type Reader<'a> = T::Reader<'a>;

    #[inline(always)]
    fn reader(&self) -> Result<T::Reader<'_>> {
        Ok(self.0.reader())
    }

    #[inline(always)]
    fn get(&self, key: &[u8], reader: &T::Reader<'_>, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        Ok(self.0.get(key, reader, |found| value.extend_from_slice(found)))
    }

    #[inline(always)]
    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        Ok(present_if(self.0.put(key.into(), value.into())))
    }

    #[inline(always)]
    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(present_if(self.0.remove(key)))
    }

    fn size(&self) -> Result<Size> {
        Ok(Size { len: Some(self.0.len() as u64), ..Size::default() })
    }

    fn place(&self) -> Place {
        Place::default()
    }
}

#[cfg(all(test, feature = "rivals"))]
mod tests {
    use crate::driver::{Config, Plan, Quiet};
    use crate::experiments::drive;
    use crate::subject::MediumKind;
    use crate::testing::Kept;
    use crate::workload::{KeyValueLengths, Phase};

    #[test]
    fn maps_of_byte_strings_pass_all_phases() {
        let names = [
            "volatile-map",
            "papaya",
            "dashmap",
            "scc-hashmap",
            "scc-hashindex",
            "rwlock-hashbrown",
            "std-hashmap",
            "std-hashmap-fold",
        ];
        let config = Config {
            indexes: names.map(str::to_owned).to_vec(),
            keys: 3_000,
            threads: 2,
            rounds: 1,
            medium: MediumKind::Dram,
            quiet: Quiet::NOT_NEEDED,
            limits: false,
            plan: Plan::Phases(Phase::ALL.to_vec()),
            lengths: Some(KeyValueLengths {
                keys: "8-40".parse().unwrap(),
                values: "8-300".parse().unwrap(),
            }),
            ..Config::default()
        };
        let driven = drive(&config, &mut Kept::default()).unwrap();
        assert_eq!(driven.subjects.len(), names.len());
    }
}
