//! Nodes and the links between them, the same for all tables.
//!
//! A node is allocated, filled, and published by a link that names it. From then on nothing in it
//! changes but its `next` link. It is freed a grace period after the last link that named it was
//! pointed elsewhere, except that links of nodes which were removed before it may still name it:
//! only readers follow those that began before it was removed. In a table whose readers hold a lock
//! it is freed under that lock.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use evermap_pm::{Domain, Error, Guard, Result};

use super::Allowed;
use super::steps::{Kept, load_step, store_step};

/// A pair of a table.
pub(super) struct Node<K, V> {
    pub(super) next: Link<K, V>,
    /// Where the pair belongs, computed from the hash of its key: see
    /// [`Order`](super::order::Order).
    pub(super) place: u64,
    pub(super) key: K,
    pub(super) value: V,
    kept: Kept,
}

/// A node that is not freed during `'s`.
pub(super) struct NodeRef<'s, K, V> {
    node: NonNull<Node<K, V>>,
    life: PhantomData<&'s Node<K, V>>,
}

impl<K, V> Clone for NodeRef<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for NodeRef<'_, K, V> {}

impl<K, V> PartialEq for NodeRef<'_, K, V> {
    /// Compares addresses.
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl<'s, K, V> NodeRef<'s, K, V> {
    #[inline(always)]
    pub(super) fn get(self) -> &'s Node<K, V> {
        // SAFETY: a `NodeRef` exists only for a node that was filled and that is not freed during
        // `'s`. Only its `next` link changes, which is an atomic.
        let node = unsafe { self.node.as_ref() };
        load_step();
        node.kept.assert_alive("node");
        node
    }
}

impl<K, V> Deref for NodeRef<'_, K, V> {
    type Target = Node<K, V>;

    #[inline(always)]
    fn deref(&self) -> &Node<K, V> {
        self.get()
    }
}

/// A word that names a node or nothing: the head of a chain, or the link from a node to the next.
#[repr(transparent)]
pub(super) struct Link<K, V>(AtomicPtr<Node<K, V>>);

impl<K, V> Link<K, V> {
    fn to(node: *mut Node<K, V>) -> Self {
        Link(AtomicPtr::new(node))
    }

    /// Returns the node that this link names.
    #[inline(always)]
    pub(super) fn follow<'s>(&self, _guard: &'s Guard<'_>) -> Option<NodeRef<'s, K, V>> {
        load_step();
        // Acquire: pairs with the release in `point_to`, so that the node is filled, and so that
        // loads through it come later.
        let node = NonNull::new(self.0.load(Acquire))?;
        // The guard was created before this load, and the node is freed a grace period after no
        // link names it any more: not during `'s`.
        Some(NodeRef { node, life: PhantomData })
    }

    /// Names another node, or nothing.
    #[inline]
    pub(super) fn point_to(&self, node: Option<NodeRef<'_, K, V>>) {
        let node = node.map_or(std::ptr::null_mut(), |node| node.node.as_ptr());
        // Release: a thread that follows the link finds the node filled.
        self.0.store(node, Release);
        store_step();
    }

    /// Returns `true` if this link names `node`.
    pub(super) fn names(&self, node: NodeRef<'_, K, V>) -> bool {
        // Relaxed: only the address is used.
        self.0.load(Relaxed) == node.node.as_ptr()
    }
}

/// The memory for a node, allocated before anything is changed, so that a change cannot fail for
/// lack of memory.
pub(super) struct Vacant<K, V>(NonNull<Node<K, V>>);

impl<K, V> Vacant<K, V> {
    const LAYOUT: Layout = Layout::new::<Node<K, V>>();

    /// Allocates the memory that a change may need.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn if_needed(allowed: Allowed) -> Result<Option<Self>> {
        if allowed == Allowed::Removal { Ok(None) } else { Self::allocate().map(Some) }
    }

    fn allocate() -> Result<Self> {
        // SAFETY: the size is not zero, because a node contains a link.
        let memory = NonNull::new(unsafe { alloc(Self::LAYOUT) });
        match memory {
            Some(memory) => Ok(Vacant(memory.cast())),
            None => Err(Error::no_space("memory of the process", Self::LAYOUT.size() as u64)),
        }
    }

    /// Makes it a node that links to `next`. The caller publishes it.
    pub(super) fn fill<'s>(
        self,
        next: Option<NodeRef<'_, K, V>>,
        (place, key, value): (u64, K, V),
        _guard: &'s Guard<'_>,
    ) -> NodeRef<'s, K, V> {
        let next = next.map_or(std::ptr::null_mut(), |node| node.node.as_ptr());
        let node = Node { next: Link::to(next), place, key, value, kept: Kept::default() };
        // SAFETY: allocated with the layout of a node, and owned by `self`.
        unsafe { self.0.write(node) };
        let filled = NodeRef { node: self.0, life: PhantomData };
        std::mem::forget(self);
        filled
    }
}

impl<K, V> Drop for Vacant<K, V> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not filled.
        unsafe { dealloc(self.0.as_ptr().cast(), Self::LAYOUT) };
    }
}

/// A node that a deferred call frees.
struct Unlinked<K, V>(NonNull<Node<K, V>>);

// SAFETY: it owns the node, and a key and a value that may be dropped on another thread.
unsafe impl<K: Send, V: Send> Send for Unlinked<K, V> {}

impl<K, V> Unlinked<K, V> {
    /// # Safety
    /// The node is not used now or later.
    unsafe fn free(self, keep: bool) {
        if keep {
            // SAFETY: it was not freed, and is not freed later either.
            unsafe { self.0.as_ref() }.kept.mark_freed();
            return;
        }
        // SAFETY: allocated by `Vacant` from the global allocator with the layout of a node, which
        // is what a box does, and filled; no other thread uses it, by the contract.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Frees a node after a grace period. `keep` is for tests that want to notice a use after that: the
/// node is then only marked as freed.
///
/// # Safety
/// 1. No link names the node, and none ever will, except links of nodes that were retired earlier.
/// 2. It is retired once.
pub(super) unsafe fn retire<K, V>(node: NodeRef<'_, K, V>, domain: &Domain, keep: bool)
where
    K: Send + 'static,
    V: Send + 'static,
{
    let unlinked = Unlinked(node.node);
    let call = move || {
        let unlinked = unlinked;
        // SAFETY: by the contract, only readers that began before this call can still use it, and
        // the grace period is over.
        unsafe { unlinked.free(keep) }
    };
    domain.defer(size_of::<Node<K, V>>(), call);
}

/// Frees a node immediately.
///
/// # Safety
/// It is not used now or later, and not retired.
pub(super) unsafe fn free<K, V>(node: NodeRef<'_, K, V>, keep: bool) {
    // SAFETY: by the contract.
    unsafe { Unlinked(node.node).free(keep) };
}
