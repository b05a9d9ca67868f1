//! The index that finds records by their keys: one of several kinds, chosen when the store is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use evermap_index::key::BytesRef;
use evermap_index::{
    Action, Bytes, Change, DashEh, Guard, Index, Intent, Persistent, Result, Stats, Visitor,
};
use evermap_pm::{ErrorKind, Medium, Pool};

use crate::Error;
use crate::error::pm;

/// Declares the kinds of index that a store can be made with. The rest of the store does not know them.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal, $index:ident;)+) => {
        /// A kind of index that finds records by their keys.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum IndexKind {
            $($(#[$doc])+ $kind,)+
        }

        impl IndexKind {
            /// Every kind.
            pub const ALL: &'static [IndexKind] = &[$(IndexKind::$kind,)+];

            /// Its name, as the command line and the laboratory know it.
            pub fn name(self) -> &'static str {
                match self {
                    $(IndexKind::$kind => $name,)+
                }
            }
        }

        /// The index of a store. Every operation costs one well-predicted branch more than the index itself.
        pub(crate) enum Primary<M: Medium> {
            $($kind($index<Bytes, M>),)+
        }

        impl<M: Medium> Primary<M> {
            /// Makes an empty index of this kind in root slot `root`.
            pub(crate) fn create(kind: IndexKind, pool: &Arc<Pool<M>>, root: usize) -> Result<Self> {
                match kind {
                    $(IndexKind::$kind => {
                        $index::create(pool.clone(), root, Default::default()).map(Primary::$kind)
                    })+
                }
            }

            /// Opens the index in root slot `root`, whatever kind it is.
            pub(crate) fn open(pool: &Arc<Pool<M>>, root: usize) -> Result<Self> {
                $(if <$index<Bytes, M>>::is_at(pool, root) {
                    return $index::open(pool.clone(), root).map(Primary::$kind);
                })+
                let at = pool.medium().offset_of(pool.root(root));
                Err(evermap_pm::Error::damaged(at, "the root names no index that a store can have"))
            }

            /// Which kind it is.
            pub(crate) fn kind(&self) -> IndexKind {
                match self {
                    $(Primary::$kind(_) => IndexKind::$kind,)+
                }
            }
        }

        /// Does the same with an index of any kind.
        macro_rules! with {
            ($primary:expr, $any:ident => $does:expr) => {
                match $primary {
                    $(Primary::$kind($any) => $does,)+
                }
            };
        }
    };
}

kinds! {
    /// Dash, extendible hashing: the default.
    #[default]
    DashEh = "dash-eh", DashEh;
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IndexKind {
    type Err = Error;

    fn from_str(name: &str) -> std::result::Result<Self, Error> {
        IndexKind::ALL.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = IndexKind::ALL.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            pm(ErrorKind::Config(format!("index `{name}` is unknown; there are {known}")))
        })
    }
}

impl<M: Medium> Primary<M> {
    #[inline(always)]
    pub(crate) fn get(&self, key: BytesRef<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        with!(self, index => index.get(key, guard))
    }

    pub(crate) fn get_many(
        &self,
        keys: &[BytesRef<'_>],
        out: &mut [Option<u64>],
        guard: &Guard<'_>,
    ) -> Result<()> {
        with!(self, index => index.get_many(keys, out, guard))
    }

    pub(crate) fn mutate(
        &self,
        key: BytesRef<'_>,
        intent: Intent,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        with!(self, index => index.mutate(key, intent, guard, decide))
    }

    pub(crate) fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        with!(self, index => index.scan(from, guard, each))
    }

    pub(crate) fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        with!(self, index => index.stats(guard))
    }

    pub(crate) fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        with!(self, index => index.visit(visitor))
    }

    pub(crate) fn check(&self) -> Vec<String> {
        with!(self, index => index.check())
    }
}
