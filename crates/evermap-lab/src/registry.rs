//! Everything that can be measured, by name.

use std::path::Path;

use evermap_papers::htm::{self, Missing};
use evermap_papers::names::canonical;

use crate::baselines::{hikv, plugin, tables};
use crate::error::LabError;
use crate::indexes::{ablated, entries, evermap, ordered};
use crate::subject::view::Entry;

#[cfg(feature = "stores")]
const STORES: &[Entry] = &crate::baselines::stores::ENTRIES;
#[cfg(not(feature = "stores"))]
const STORES: &[Entry] = &[];

/// Returns every subject that can be measured.
pub fn subjects() -> Vec<Entry> {
    let lists: [&[Entry]; 12] = [
        &entries::ENTRIES,
        &ablated::ENTRIES,
        &entries::SEGMENTS,
        &evermap::ENTRIES,
        &ordered::ENTRIES,
        &hikv::ENTRIES,
        &tables::reference::ENTRIES,
        &tables::alone::ENTRIES,
        &tables::volatile::ENTRIES,
        tables::RIVALS,
        STORES,
        &plugin::entries(),
    ];
    let mut all = lists.concat();
    all.retain(|entry| !TRANSACTIONAL.contains(&entry.name) || missing_transactions().is_none());
    all
}

/// What needs hardware transactions.
pub const TRANSACTIONAL: [&str; 2] = ["fp-tree-htm", "hikv-htm"];

/// Returns why what needs hardware transactions cannot be measured here, or `None` if it can.
pub fn missing_transactions() -> Option<Missing> {
    htm::are_supported().err()
}

/// Returns the subject called `name`.
///
/// # Errors
///
/// `UnknownIndex`, with the names that are known; `Config` if it needs what this processor lacks.
pub fn subject(name: &str) -> Result<Entry, LabError> {
    let (all, name) = (subjects(), canonical(name));
    if let (true, Some(why)) = (TRANSACTIONAL.contains(&name), missing_transactions()) {
        return Err(LabError::Config(format!("{name} cannot be measured: {why}")));
    }
    all.iter().find(|entry| entry.name == name).copied().ok_or_else(|| LabError::UnknownIndex {
        name: name.to_owned(),
        known: all.iter().map(|entry| entry.name).collect(),
    })
}

/// Returns the subjects called `names`, in this order.
///
/// # Errors
///
/// As [`subject`].
pub fn subjects_called(names: &[String]) -> Result<Vec<Entry>, LabError> {
    names.iter().map(|name| subject(name)).collect()
}

/// Loads a plugin: from then on its table is among the [`subjects`]. Returns its name. Loading a
/// file twice has no further effect.
///
/// # Safety
///
/// The library's code runs in this process: it must keep the promises of the header.
///
/// # Errors
///
/// `Plugin` if it cannot be loaded, has another version, lacks a function, or has a name that is
/// taken.
pub unsafe fn load_plugin(path: &Path) -> Result<&'static str, LabError> {
    let is_taken = |name: &str| subjects().iter().any(|entry| entry.name == name);
    // SAFETY: the caller promises what is required.
    unsafe { plugin::load(path, &is_taken) }
}
