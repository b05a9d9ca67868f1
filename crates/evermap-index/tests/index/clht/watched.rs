//! A hook before every access to a medium, for example to let another thread run.

use std::cell::Cell;
use std::sync::{Arc, RwLock};

use evermap_pm::sim::{self, Observer};

/// What a thread is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Load,
    /// To the word at this offset.
    Store(u64),
    Flush,
    Fence,
}

type Hook = Arc<dyn Fn(Access) + Send + Sync>;

/// Calls a hook before each access, except for those of the hook itself.
#[derive(Default)]
pub(crate) struct Watch(RwLock<Option<Hook>>);

thread_local! {
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

impl Watch {
    pub(crate) fn begin(&self, hook: impl Fn(Access) + Send + Sync + 'static) {
        *self.0.write().unwrap() = Some(Arc::new(hook));
    }

    pub(crate) fn end(&self) {
        *self.0.write().unwrap() = None;
    }
}

impl Observer for Watch {
    fn observe(&self, access: sim::Access) {
        let access = match access {
            sim::Access::Load(_) => Access::Load,
            sim::Access::Store(at, _) | sim::Access::StoreTransient(at) | sim::Access::Swap(at) => {
                Access::Store(at)
            }
            sim::Access::Flush(..) => Access::Flush,
            sim::Access::Fence => Access::Fence,
            _ => return,
        };
        let hook = self.0.read().unwrap().clone();
        let Some(hook) = hook else { return };
        if !IN_HOOK.replace(true) {
            hook(access);
            IN_HOOK.set(false);
        }
    }
}
