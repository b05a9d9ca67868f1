//! Evermap's own store.

use evermap::{Evermap, Options};

use crate::LabError;
use crate::indexed::{Stage, nameless};
use crate::store::{Result, Store, Stored};
use crate::subject::{Entry, File, Found, Guards, MediumKind, Place, Setup, Size, Subject};

/// The registry's line.
pub(crate) const ENTRY: Entry = Entry {
    name: "evermap",
    about: "Evermap's store: Dash-EH over checksummed records, with expiry and compaction",
    rival: false,
    build: |setup| {
        setup.media_only(ENTRY.name, &[MediumKind::Dram, MediumKind::Process])?;
        let opened = Opened::new(setup).map_err(|error| LabError::index(ENTRY.name, error))?;
        Ok(Box::new(Stored::new(ENTRY.name, opened, setup.shape.unwrap_or_default()))
            as Box<dyn Subject>)
    },
};

/// The store, and where it is.
struct Opened {
    map: Evermap,
    place: Place,
}

impl Opened {
    fn new(setup: &Setup) -> Result<Self> {
        let stage = Stage { name: ENTRY.name, guards: Guards::PerOperation, setup };
        let (capacity, place) = (stage.capacity(), stage.place());
        let options = Options::new().capacity(capacity).seed(0);
        let map = match &setup.file {
            _ if setup.medium == MediumKind::Dram => {
                Evermap::open("", Options::volatile().capacity(capacity).seed(0))?
            }
            File::New(path) => Evermap::open(path, options)?,
            File::Existing(path) => Evermap::open(path, options.create(false))?,
            File::Nameless => {
                let path = nameless(&setup.location);
                let map = Evermap::open(&path, options)?;
                std::fs::remove_file(&path)?;
                map
            }
        };
        Ok(Opened { map, place })
    }
}

impl Store for Opened {
    /// Look-ups take guards themselves.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        Ok(self.map.get_into(key, value)?)
    }

    fn get_many(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let mut failure = None;
        self.map.get_many(keys, |place, item| {
            match item {
                Ok(item) => each(place, item.value),
                Err(error) => failure = Some(error),
            }
            failure.is_none()
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        self.map.put(key, value)?;
        Ok(Found::Unsaid)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(if self.map.remove(key)? { Found::Present } else { Found::Absent })
    }

    fn size(&self) -> Result<Size> {
        let stat = self.map.stat()?;
        Ok(Size {
            len: Some(stat.records.value),
            load_factor: Some(stat.load_factor),
            dram_bytes: None,
            pm_bytes: Some(stat.allocated_bytes),
        })
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
