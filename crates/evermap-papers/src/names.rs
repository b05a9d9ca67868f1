//! The names of persistent indexes: the same wherever one is asked for by its name.
//!
//! Besides the structures of this crate these are the persistent indexes of [`evermap_index`].
//! Variants of one, with another geometry or another way to lock, have longer names.

/// Dash, extendible hashing.
pub const DASH_EH: &str = "dash-eh";
/// Dash, linear hashing.
pub const DASH_LH: &str = "dash-lh";
/// CCEH.
pub const CCEH: &str = "cceh";
/// Level hashing.
pub const LEVEL: &str = "level";
/// P-CLHT.
pub const P_CLHT: &str = "p-clht";
/// The line hash.
pub const LINE_HASH: &str = "line-hash";
/// The heterogeneous table, with tranches of 256 bytes.
pub const TRANCHE_256: &str = "tranche-256";
/// P-ART.
pub const P_ART: &str = "p-art";
/// FAST & FAIR.
pub const FAST_FAIR: &str = "fast-fair";
/// FPTree.
pub const FP_TREE: &str = "fp-tree";
/// NV-Tree.
pub const NV_TREE: &str = "nv-tree";
/// P-BwTree.
pub const P_BWTREE: &str = "p-bwtree";
/// P-Masstree.
pub const P_MASSTREE: &str = "p-masstree";
/// HiKV.
pub const HIKV: &str = "hikv";
/// HiKV with a log.
pub const HIKV_WAL: &str = "hikv-wal";
/// P-HOT.
pub const P_HOT: &str = "p-hot";

/// Returns the name of what is also called `name`: a shorter name of one of these, or else `name`
/// itself.
pub fn canonical(name: &str) -> &str {
    match name {
        "line" => LINE_HASH,
        "tranche" => TRANCHE_256,
        _ => name,
    }
}
