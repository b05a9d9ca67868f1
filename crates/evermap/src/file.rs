//! Opening the store in a file or in a medium of this process.

use std::path::Path;
use std::time::SystemTime;

use evermap_pm::Medium;
use evermap_pm::medium::{Mapped, MappedOptions};
use evermap_pm::region::{self, Identity, OnSuspect};

use crate::db::Origin;
use crate::error::{counted, storage};
use crate::{Error, ErrorKind, Evermap, Options, Result};

/// Opens a store without a log, to write to it.
#[track_caller]
pub(crate) fn open_plain(path: &Path, options: &Options) -> Result<Evermap> {
    let medium = open_mapped(path, &mapped_options(options), options)?;
    let identity = medium.identity();
    // A creation that fails leaves nothing behind.
    let created = medium.is_new_file().then(|| medium.keep_lock()).transpose()?.flatten();
    let opened = open_writable(path, medium, identity, options);
    if let (Err(_), Some(created)) = (&opened, created) {
        // The error says more than that the file could not be removed.
        let _ = created.remove();
    }
    opened
}

#[track_caller]
fn open_writable(
    path: &Path,
    medium: Mapped,
    identity: Identity,
    options: &Options,
) -> Result<Evermap> {
    let held = match options.on_suspect {
        OnSuspect::Discard => medium.keep_lock()?,
        OnSuspect::Refuse | OnSuspect::Salvage => None,
    };
    let Some(held) = held else { return open_whole(path, medium, identity, options) };
    // Opened as with `Refuse`, so that a store that can be trusted is kept. The lock is held from
    // the judgement to the end, so that both concern the same contents.
    let refusing = options.clone().on_suspect(OnSuspect::Refuse);
    match open_whole(path, medium, identity, &refusing) {
        Err(error) if error.is_damaged() || error.kind() == ErrorKind::Suspect => {
            let medium = held.truncate_and_map(&mapped_options(options))?;
            let origin = Origin::of_mapped(&medium, options.durability);
            Evermap::create_at(medium, identity, options, origin)
        }
        opened => opened,
    }
}

/// Opens what was in the medium of a store in use, as it was at one instant.
pub(crate) fn open_view(
    medium: Mapped,
    options: &Options,
    origin: Origin,
    instant: SystemTime,
) -> Result<Evermap> {
    let options = Options { create: false, read_only: true, evict: false, ..options.clone() };
    let identity = medium.identity();
    let origin = Origin { instant: Some(instant), ..origin };
    Evermap::open_at(medium, identity, &options, origin)
}

/// Opens what is in `medium`, unless that is only a part of what is in the file.
pub(crate) fn open_whole(
    path: &Path,
    medium: Mapped,
    identity: Identity,
    options: &Options,
) -> Result<Evermap> {
    refuse_part_of_a_page(path, &medium)?;
    let origin = Origin::of_mapped(&medium, options.durability);
    Evermap::open_at(medium, identity, options, origin)
}

/// Refuses a file of less than a page, which looks empty to the medium, unless it is.
pub(crate) fn refuse_part_of_a_page(path: &Path, medium: &Mapped) -> Result<()> {
    if medium.len() == 0 && medium.path().is_some() {
        let io = |source| evermap_pm::Error::io("reading", path, source);
        let bytes = std::fs::read(path).map_err(io)?;
        if region::starts_with_magic(&bytes) {
            return Err(region::truncated_header(bytes.len() as u64).into());
        }
        if !bytes.is_empty() {
            let why = format!("it has only {}", counted(bytes.len() as u64, "byte"));
            let path = path.to_owned();
            return Err(storage(evermap_pm::ErrorKind::NotAStore { path, why }));
        }
    }
    Ok(())
}

pub(crate) fn mapped_options(options: &Options) -> MappedOptions {
    MappedOptions {
        capacity: options.capacity,
        flush: options.durability.flush_kind(),
        create: options.create,
        lock_wait: options.lock_wait,
        allocate_holes: options.allocate_holes,
        read_only: options.read_only,
    }
}

#[track_caller]
pub(crate) fn open_mapped(
    path: &Path,
    mapped: &MappedOptions,
    options: &Options,
) -> Result<Mapped> {
    Mapped::open(path, mapped).map_err(|error| match error.kind() {
        evermap_pm::ErrorKind::Io { source, .. }
            if !options.create && source.kind() == std::io::ErrorKind::NotFound =>
        {
            Error::NotFound { path: Some(path.to_owned()) }
        }
        _ => error.into(),
    })
}
