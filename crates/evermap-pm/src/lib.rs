//! Memory that can persist.
//!
//! The modules, from the bottom up:
//!
//! * [`cell`]: the 8-byte words that persistent structures consist of;
//! * [`medium`]: the only way to write, flush and fence such words: plain memory
//!   ([`medium::Dram`]), a mapped file ([`medium::Mapped`]), or the crash simulator (`sim`, behind
//!   the feature of that name);
//! * [`region`]: a medium with a superblock: format, identity, generation, roots;
//! * [`heap`]: blocks inside a region, which are in use if they are reachable from the roots;
//! * [`epoch`]: grace periods, so that a block is reused only when no thread can still access it,
//!   and a structure can be changed in steps that every reader sees in their order;
//! * [`redo`]: a log of the changes of a region, from which it is rebuilt after power loss;
//! * [`pool`]: the four above as one object, which indexes are built on.
//!
//! In addition, [`fork`] detects that the process is a forked child, which must not write, and
//! [`clock`] tells a time that nobody sets.
//!
//! Positions in a region are 48-bit *offsets*, never addresses. Every offset, length and count that
//! was read from a region is checked before it is used.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("Evermap needs 64-bit Linux: its guarantees rest on Linux's files and mappings");

pub mod cell;
pub mod clock;
pub mod epoch;
pub mod error;
mod explore;
pub mod fork;
pub mod heap;
pub mod medium;
mod parallel;
pub mod pool;
pub mod quad;
mod random;
pub mod redo;
pub mod region;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod sync;

pub use cell::{PmU64, Pod};
pub use epoch::{Domain, GracePeriod, Guard, Reader, WaitError};
pub use error::{Error, ErrorKind, Result};
pub use medium::Medium;
pub use parallel::parallel;
pub use pool::Pool;
pub use quad::Quad;
