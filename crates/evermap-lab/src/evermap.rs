//! Evermap's own store.

use std::ops::Deref;

use evermap::{Evermap, Options};
use evermap_pm::Medium;
use evermap_pm::medium::{Counted, FlushKind, Mapped, Note};
use evermap_pm::region::Identity;

use crate::LabError;
use crate::indexed::{Stage, nameless};
use crate::store::{Result, Store, Stored};
use crate::subject::{Counts, Entry, File, Found, Guards, MediumKind, Place, Setup, Size, Subject};
use crate::workload::Shape;

/// The registry's line.
pub(crate) const ENTRY: Entry = Entry {
    name: "evermap",
    about: "Evermap's store: Dash-EH over checksummed records, with expiry and compaction",
    rival: false,
    build: |setup| {
        let media = [MediumKind::Dram, MediumKind::Process, MediumKind::Forced];
        setup.media_only(ENTRY.name, &media)?;
        build(setup).map_err(|error| LabError::index(ENTRY.name, error))
    },
};

/// On memory and on files it is what a program opens. On the other media it is the same without the thread that
/// keeps it up.
fn build(setup: &Setup) -> Result<Box<dyn Subject>> {
    let stage = Stage { name: ENTRY.name, guards: Guards::PerOperation, setup };
    let (capacity, place) = (stage.capacity(), stage.place());
    let options = Options::new().capacity(capacity).seed(0);
    let shape = setup.shape.unwrap_or_default();
    Ok(match setup.medium {
        _ if setup.counted => {
            let map = bare(Counted::new(stage.memory()?), &options)?;
            subject(Opened { map, counts: |medium| Some(medium.counts().into()), place }, shape)
        }
        MediumKind::Dram => {
            let options = Options::volatile().capacity(capacity).seed(0);
            subject(Opened { map: Evermap::open("", options)?, counts: |_| None, place }, shape)
        }
        MediumKind::Process => {
            subject(Opened { map: in_file(setup, options)?, counts: |_| None, place }, shape)
        }
        MediumKind::Forced | MediumKind::Emulated => {
            let map = bare(stage.file(FlushKind::Forced)?, &options)?;
            subject(Opened { map, counts: |_| None, place }, shape)
        }
    })
}

fn subject<H: Handle>(opened: Opened<H>, shape: Shape) -> Box<dyn Subject> {
    Box::new(Stored::new(ENTRY.name, opened, shape))
}

fn bare<M: Medium>(medium: M, options: &Options) -> Result<Box<evermap::Store<M>>> {
    Ok(Box::new(evermap::Store::create(medium, Identity::default(), options)?))
}

fn in_file(setup: &Setup, options: Options) -> Result<Evermap> {
    Ok(match &setup.file {
        File::New(path) => Evermap::open(path, options)?,
        File::Existing(path) => Evermap::open(path, options.create(false))?,
        File::Nameless => {
            let path = nameless(&setup.location);
            let map = Evermap::open(&path, options)?;
            std::fs::remove_file(&path)?;
            map
        }
    })
}

/// What holds a store.
trait Handle: Deref<Target = evermap::Store<Self::On>> + Send + Sync + 'static {
    /// Its medium.
    type On: Medium;
}

impl Handle for Evermap {
    type On = Mapped;
}

impl<M: Medium> Handle for Box<evermap::Store<M>> {
    type On = M;
}

/// The store, and where it is.
struct Opened<H: Handle> {
    map: H,
    counts: fn(&H::On) -> Option<Counts>,
    place: Place,
}

impl<H: Handle> Opened<H> {
    /// Does one operation, and announces it to the medium.
    #[inline(always)]
    fn during<R>(
        &self,
        operation: impl FnOnce(&evermap::Store<H::On>) -> evermap::Result<R>,
    ) -> Result<R> {
        let medium = self.map.medium();
        medium.note(Note::Begin(0));
        let result = operation(&self.map);
        medium.note(Note::End(0));
        Ok(result?)
    }
}

impl<H: Handle> Store for Opened<H> {
    /// Look-ups take guards themselves.
    type Reader<'a> = ();

    fn reader(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn get(&self, key: &[u8], (): &(), value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        self.during(|map| map.get_into(key, value))
    }

    fn get_many(&self, keys: &[&[u8]], (): &(), each: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let mut failure = None;
        self.during(|map| {
            map.get_many(keys, |place, item| {
                match item {
                    Ok(item) => each(place, item.value),
                    Err(error) => failure = Some(error),
                }
                failure.is_none()
            })
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<Found> {
        self.during(|map| map.put(key, value))?;
        Ok(Found::Unsaid)
    }

    fn remove(&self, key: &[u8]) -> Result<Found> {
        Ok(if self.during(|map| map.remove(key))? { Found::Present } else { Found::Absent })
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

    fn counts(&self) -> Option<Counts> {
        (self.counts)(self.map.medium())
    }

    fn place(&self) -> Place {
        self.place.clone()
    }
}
