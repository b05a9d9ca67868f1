//! Taking two zipped chains apart, one link at a time, while nodes are removed from them.
//!
//! Two chains are *zipped* when both new buckets of a group lead into the same old chain. They come
//! together at the *convergence node*, which two links name, and share everything from there on.
//! Before it, each chain has only nodes of its own bucket. Normally the auxiliary pointer names the
//! first node of the run that ends just before the convergence node:
//!
//! ```text
//! A ──▶ a1 ───────────╮
//!                     ▼
//! B ──▶ b1 ─▶ b2 ───▶ a3 ─▶ b3 ─▶ ...       b1 and b2 are the run, a3 is the convergence node
//!       ▲
//!      aux
//! ```
//!
//! A step makes the last node of the run skip what follows of the other bucket, which the other
//! chain enters from elsewhere. That is legal because no reader of the other bucket is in the run:
//! its chain has not led there since the last grace period.
//!
//! # Removals
//!
//! A removal redirects the links to its node in both chains, and the auxiliary pointer. That leaves
//! a valid state, but if it ends a run, not a normal one. Say `b1` is removed from `a1 b1 a2 b2`
//! before the first pass, where `aux` names `a1`:
//!
//! ```text
//! A ──▶ a1 ─▶ a2 ─▶ b2
//! B ──────────▲                             `B` leads to `a2`, into a run of `A`
//! ```
//!
//! A normal step would end the run of `a1` and `a2`, and readers of `B` would not reach `b2` any
//! more. The same happens when the last node of the run at the auxiliary pointer is removed. In
//! both cases the group becomes *uncertain*: its next step computes the convergence node from the
//! heads, and the chain that it does not belong to skips its run. The link that is changed is in,
//! or before, the part of that chain where readers of the other bucket are not.

use evermap_pm::Guard;

use super::super::heads::Heads;
use super::super::node::{Link, NodeRef};
use super::super::steps::Mistake;
use super::super::{Order, Shared};
use super::Rp;
use super::resize::Work;

impl<K, V> Work<K, V> {
    /// Returns `true` if a node belongs to the upper bucket of its group.
    #[inline]
    pub(super) fn is_upper<O: Order>(&self, node: NodeRef<'_, K, V>) -> bool {
        node.place & O::place(self.groups) != 0
    }

    /// Returns the first node of one bucket, in a chain from `first` on.
    pub(super) fn first_of<'s, O: Order>(
        &self,
        first: Option<NodeRef<'s, K, V>>,
        upper: bool,
        guard: &'s Guard<'_>,
    ) -> Option<NodeRef<'s, K, V>> {
        let mut next = first;
        while let Some(node) = next.filter(|&node| self.is_upper::<O>(node) != upper) {
            next = node.next.follow(guard);
        }
        next
    }

    /// Returns the head of one chain of a group that is being unzipped.
    fn head<'s>(&self, heads: &'s Heads<K, V>, group: u64, upper: bool) -> &'s Link<K, V> {
        heads.head(if upper { group + self.groups } else { group })
    }
}

impl<K: Shared, V: Shared, S, O: Order> Rp<K, V, S, O> {
    /// Changes one link of a zipped chain, so that the chains of its group come together later, or
    /// not at all: then the group is finished. Returns `true` if a link was changed. The caller has
    /// locked the stripe, and waited for readers since the last step.
    pub(super) fn unzip(&self, work: &Work<K, V>, group: u64, guard: &Guard<'_>) -> bool {
        if work.uncertain.contains(group) {
            work.uncertain.remove(group);
            return self.skip_from_convergence(work, group, guard);
        }
        if self.base.planted.has(Mistake::TwoJumpsInOnePass) {
            self.skip_from_aux(work, group, guard);
        }
        self.skip_from_aux(work, group, guard)
    }

    /// Makes the run at the auxiliary pointer skip the run behind it.
    fn skip_from_aux(&self, work: &Work<K, V>, group: u64, guard: &Guard<'_>) -> bool {
        let aux = work.aux(group, guard);
        let run = aux.follow(guard).map(|first| work.end_of_run::<O>(first, guard));
        let Some((last, Some(other))) = run else {
            // Nothing of the other bucket follows.
            work.unfinished.remove(group);
            return false;
        };
        let resume = work.first_of::<O>(Some(other), work.is_upper::<O>(last), guard);
        last.next.point_to(resume);
        if resume.is_some() {
            aux.point_to(Some(other));
        } else {
            work.unfinished.remove(group);
        }
        true
    }

    /// Finds where the chains come together, and makes the one that the node there does not belong
    /// to skip its run.
    fn skip_from_convergence(&self, work: &Work<K, V>, group: u64, guard: &Guard<'_>) -> bool {
        let heads = self.heads(guard);
        let chain = |upper| work.head(heads, group, upper);
        let Some(Convergence { links, node }) = convergence([chain(false), chain(true)], guard)
        else {
            work.unfinished.remove(group);
            return false;
        };
        let belongs_to_upper = work.is_upper::<O>(node);
        let resume = work.first_of::<O>(Some(node), !belongs_to_upper, guard);
        links[usize::from(!belongs_to_upper)].point_to(resume);
        if resume.is_some() {
            // The run at this node is now in its own chain only, and the other chain continues
            // behind it: the normal state.
            work.aux(group, guard).point_to(Some(node));
        } else {
            work.unfinished.remove(group);
        }
        true
    }

    /// Redirects what names `old` besides the link of its own chain, which already names `to`. The
    /// caller has locked the stripe.
    pub(super) fn redirect_zipped(
        &self,
        work: &Work<K, V>,
        hash: u64,
        old: NodeRef<'_, K, V>,
        to: Option<NodeRef<'_, K, V>>,
        guard: &Guard<'_>,
    ) {
        let group = hash & (work.groups - 1);
        if !work.unfinished.contains(group) {
            return;
        }
        let planted = self.base.planted;
        let other = work.head(self.heads(guard), group, hash & work.groups == 0);
        let second = link_to(other, old, guard);
        if let Some(link) = second.filter(|_| !planted.has(Mistake::OneOfTwoLinks)) {
            link.point_to(to);
        }
        let aux = work.aux(group, guard);
        let at_aux = aux.names(old);
        if at_aux && !planted.has(Mistake::AuxNotAdvanced) {
            aux.point_to(to);
        }
        let ends_run = to.is_some_and(|to| work.is_upper::<O>(to) != work.is_upper::<O>(old));
        if ends_run && (at_aux || second.is_some()) && !planted.has(Mistake::RunEndNotNoticed) {
            work.uncertain.insert(group);
        }
    }
}

impl<K, V> Work<K, V> {
    /// Returns the last node of the run that begins at `first`, and what follows it.
    fn end_of_run<'s, O: Order>(
        &self,
        first: NodeRef<'s, K, V>,
        guard: &'s Guard<'_>,
    ) -> (NodeRef<'s, K, V>, Option<NodeRef<'s, K, V>>) {
        let mut last = first;
        loop {
            match last.next.follow(guard) {
                Some(node) if self.is_upper::<O>(node) == self.is_upper::<O>(first) => last = node,
                next => return (last, next),
            }
        }
    }
}

/// Returns the link of a chain that names `node`.
fn link_to<'s, K, V>(
    head: &'s Link<K, V>,
    node: NodeRef<'_, K, V>,
    guard: &'s Guard<'_>,
) -> Option<&'s Link<K, V>> {
    let mut link = head;
    while !link.names(node) {
        link = &link.follow(guard)?.get().next;
    }
    Some(link)
}

/// Where two chains come together.
struct Convergence<'s, K, V> {
    /// The link of each chain that names the node.
    links: [&'s Link<K, V>; 2],
    /// The first node that they share.
    node: NodeRef<'s, K, V>,
}

/// Returns where two chains come together, if they do.
fn convergence<'s, K, V>(
    heads: [&'s Link<K, V>; 2],
    guard: &'s Guard<'_>,
) -> Option<Convergence<'s, K, V>> {
    // What they share is the same in both, so they are at the same place if as much is left.
    let lengths = heads.map(|head| {
        std::iter::successors(head.follow(guard), |node| node.next.follow(guard)).count()
    });
    let mut links = heads;
    for (link, length) in links.iter_mut().zip(lengths) {
        for _ in lengths[0].min(lengths[1])..length {
            *link = &link.follow(guard)?.get().next;
        }
    }
    loop {
        let [one, other] = [links[0].follow(guard)?, links[1].follow(guard)?];
        if one == other {
            return Some(Convergence { links, node: one });
        }
        links = [&one.get().next, &other.get().next];
    }
}
