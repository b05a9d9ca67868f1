//! Removing a leaf.
//!
//! The node that has the leaf is replaced by one without it. A node that is left with one entry is
//! replaced by that. One that is the only node below another is merged with that if both fit into
//! one; others are merged with the one beside it. All of this is committed by one store, as any
//! other change is.

use evermap_pm::{Guard, Medium, Result};

use super::Hot;
use super::access::{Held, Path, Retries, Step};
use super::bits::Search;
use super::contents::Contents;
use super::draft::Draft;
use super::layout::Child;
use super::node::Node;

/// What is left of a node, or of several that are merged.
struct Rest<'m> {
    contents: Contents,
    /// The greatest height of a node with these contents.
    height: u32,
    /// The step to the nodes that are replaced, whose reference commits the removal.
    holder: Step<'m>,
}

impl<const ENTRIES: usize, M: Medium> Hot<M, ENTRIES> {
    /// The number of entries up to which nodes are merged: less than there may be, so that the
    /// result is not soon split again.
    const MERGED_MAX: usize = ENTRIES - ENTRIES / 4;

    /// Removes the leaf at the end of a path, durably. The node that has it is locked.
    ///
    /// # Errors
    /// `Damaged`, `Poisoned`; nothing has changed then. A removal needs no space.
    pub(super) fn remove_leaf<'m>(
        &'m self,
        search: &Search<'_>,
        mut path: Path<'m>,
        mut held: Held<'_, 'm, ENTRIES, M>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let step = path.pop().expect("it has a leaf");
        let mut draft = Draft::new(self);
        let drafted = match step.node.is_root() {
            true => Ok((step, Child::NONE)),
            false => self.without(search, &step, &mut path, &mut held, &mut draft),
        };
        match drafted {
            Ok((holder, child)) => {
                draft.commit(&holder, child, held, false, guard);
                self.retire_leaf(step.child, guard);
            }
            Err(error) if error.is_no_space() => self.bury(&step, held, guard),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes a leaf without taking space: it stays in its place, dead, until its node is
    /// replaced.
    fn bury(&self, step: &Step<'_>, mut held: Held<'_, '_, ENTRIES, M>, guard: &Guard<'_>) {
        held.release_all_but_first();
        self.publish(step, step.child.dead());
        held.changed(&step.node, guard);
    }

    /// Drafts the nodes for the removal of the leaf at `step`; `path` has the steps above. Returns
    /// the step whose reference commits it, and the child that it is to refer to.
    fn without<'m>(
        &'m self,
        search: &Search<'_>,
        step: &Step<'m>,
        path: &mut Path<'m>,
        held: &mut Held<'_, 'm, ENTRIES, M>,
        draft: &mut Draft<'_, ENTRIES, M>,
    ) -> Result<(Step<'m>, Child)> {
        let mut contents = step.node.contents(self.medium())?;
        contents.remove(step.at);
        let holder = self.lock_above(search, &step.node, path, held)?;
        let mut rest = Rest { contents, height: step.node.height, holder };
        if rest.contents.len() > 1 {
            self.merge(&mut rest, path.last(), held, draft)?;
        }
        Ok((rest.holder, draft.node(rest.contents, rest.height)?))
    }

    /// Merges what is left of a node with the node above it, or with the one beside it, if that is
    /// due. `above` is the step to the node above.
    fn merge<'m>(
        &'m self,
        rest: &mut Rest<'m>,
        above: Option<&Step<'m>>,
        held: &mut Held<'_, 'm, ENTRIES, M>,
        draft: &mut Draft<'_, ENTRIES, M>,
    ) -> Result<()> {
        let (m, parent, count) = (self.medium(), rest.holder, rest.contents.len());
        let Some(&above) = above else { return Ok(()) };
        let mut all = parent.node.contents(m)?;
        // Otherwise few nodes would be beside one that they can be merged with.
        let is_only_node = all.children().iter().filter(|child| !child.is_leaf()).count() == 1;
        let with_parent = is_only_node && count + all.len() - 1 <= Self::MERGED_MAX;
        let beside = match all.sibling(parent.at) {
            Some(at) if !with_parent => Some((at, self.contents_beside(&parent.node, at)?)),
            _ => None,
        };
        let beside = beside.filter(|(_, (_, other))| count + other.len() <= Self::MERGED_MAX);
        if !with_parent && beside.is_none() || !held.lock(&above)? {
            return Ok(());
        }
        if let Some((at, (node, mut other))) = beside {
            if let Some(node) = node {
                if !held.try_lock(&node) {
                    held.release_last();
                    return Ok(());
                }
                // Its references may have changed before it was locked.
                other = node.contents(m)?;
            }
            let (left, bit) = all.before(at.max(parent.at));
            let both = match at < parent.at {
                true => Contents::join(&other, bit, &rest.contents),
                false => Contents::join(&rest.contents, bit, &other),
            };
            let child = draft.node(both, parent.node.height - 1)?;
            all.remove(left + 1);
            all.set(left, child);
        } else {
            all.replace_by_all(parent.at, &rest.contents);
        }
        *rest = Rest { contents: all, height: parent.node.height, holder: above };
        Ok(())
    }

    /// Returns the child of a node that is locked, if it is a node, and its contents. A leaf is one
    /// entry.
    fn contents_beside<'m>(
        &'m self,
        node: &Node<'m>,
        at: usize,
    ) -> Result<(Option<Node<'m>>, Contents)> {
        let child = self.child(node, at);
        if child.is_leaf() {
            return Ok((None, Contents::of(child)));
        }
        let node = self.node(child, node.height)?;
        Ok((Some(node), node.contents(self.medium())?))
    }

    /// Locks the node above one that is locked, and so stays in the tree. `path` has the steps
    /// above it, of which the last one is removed and returned.
    fn lock_above<'m>(
        &'m self,
        search: &Search<'_>,
        node: &Node<'m>,
        path: &mut Path<'m>,
        held: &mut Held<'_, 'm, ENTRIES, M>,
    ) -> Result<Step<'m>> {
        let mut retries = Retries::default();
        loop {
            let step = path.pop().ok_or_else(|| node.damaged())?;
            if held.lock(&step)? {
                return Ok(step);
            }
            // Another node was inserted between them, or replaced the one above.
            retries.again(self, [step.node.lock].into_iter())?;
            *path = self.descend(search, |_| ())?;
            if path.pop().is_none_or(|last| last.node.offset != node.offset) {
                return Err(node.damaged());
            }
        }
    }
}
