//! The invariants of the tree.

use evermap_index::ordered::leaf::prefix;
use evermap_pm::{Medium, Result};

use super::BwTree;
use super::access::{Node, Search};
use super::layout::{Part, RECORD_HEADER};
use super::walk::Shown;

impl<M: Medium, const ITEMS: usize> BwTree<M, ITEMS> {
    /// Describes what is wrong. Changes that are not complete are not wrong.
    pub(super) fn check_parts(&self, problems: &mut Vec<String>) -> Result<()> {
        self.each_node(&mut |shown| {
            if let Err(error) = self.check_node(shown, problems) {
                problems.push(error.to_string());
            }
            Ok(true)
        })
    }

    /// Returns `true` if what a base node knows of the deltas is what they say.
    fn are_deltas_known(&self, node: &Node<'_>) -> Result<bool> {
        let (m, mut link) = (self.medium(), node.word);
        while link.part() == Part::Insert {
            let (number, at) = (link.depth().saturating_sub(1) as usize, link.offset());
            let leaf = self.record(at)?;
            let tag = if node.level() == 0 { self.hash(&leaf.key(m)) } else { leaf.prefix(m) };
            if !node.base.knows(m, number, at, tag) {
                return Ok(false);
            }
            link = self.next_of(link)?;
        }
        Ok(true)
    }

    fn check_node(&self, shown: &Shown<'_>, problems: &mut Vec<String>) -> Result<()> {
        let (m, node) = (self.medium(), shown.end.target());
        let mut wrong = |what: &str| problems.push(format!("node {}: {what}", node.id));
        if !shown.is_whole {
            wrong("it does not begin where the one before it ends");
        }
        let merged = node.intent.map(|(_, child)| child);
        for node in shown.end.parts() {
            if !self.are_deltas_known(node)? {
                wrong("its base node knows other deltas than it has");
            }
        }
        let contents = self.gather([&node.base], merged, shown.end.parts(), &shown.bounds)?;
        if contents.has_others && self.frozen_sibling(&shown.end.node)?.is_none() {
            wrong("it has keys of another node");
        }
        let entries = &contents.entries;
        let mut last: Option<Vec<u8>> = None;
        for entry in entries {
            let key = self.key_of(entry)?;
            if entry.head != node.base.head(&key, prefix(&key)) {
                wrong("an entry has another head than its key");
            }
            if last.is_some_and(|last| last >= key) {
                wrong("its keys are not in order");
            }
            if node.level() == 0 {
                let found = self.find(&self.descend(&Search::at(&key), 0)?, &key)?;
                if found.is_none_or(|leaf| leaf.offset != entry.at + RECORD_HEADER) {
                    wrong("a search for a key does not find it");
                }
            } else {
                let child = self.node(entry.child, Some(node.level() - 1))?;
                if child.is_frozen() {
                    wrong("a child is being merged, and there is no intent");
                }
                if child.base.low(m) != key {
                    wrong("a child has another least key");
                }
            }
            last = Some(key);
        }
        let first = entries.first().map(|entry| self.key_of(entry)).transpose()?;
        if node.level() > 0 && first.is_none_or(|first| first != shown.bounds.low) {
            wrong("its first child does not begin where it does");
        }
        Ok(())
    }
}
