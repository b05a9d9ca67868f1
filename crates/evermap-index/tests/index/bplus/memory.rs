//! A tree frees all memory that it allocates.

use evermap_index::ordered::bplus::{BPlus, Config};
use evermap_index::ordered::{OrderedIndex, Run};
use evermap_index::testkit::ordered::encoded::Encoding;
use evermap_pm::sim::rng::Rng;

use crate::allocator::{counted, left_by, uncounted};

/// This is one test, because the bytes of all threads of the process are counted together.
#[test]
fn nothing_leaks() {
    let key = |number: u64| Encoding::Words.encode(number);
    let churned = || {
        let tree = &BPlus::<7>::new();
        let churn = |thread: u64| {
            let mut random = Rng::new(thread);
            for word in 0..30_000 {
                let key = key(random.below(4000));
                if random.below(100) < 50 { tree.upsert(&key, word) } else { tree.remove(&key) }
                    .unwrap();
            }
        };
        uncounted(|| {
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    scope.spawn(move || counted(|| churn(thread)));
                }
            });
        });
        assert_eq!(tree.check(), super::SOUND);
    };
    // Allocations that the process makes once are made here.
    counted(churned);
    assert_eq!(left_by(|| drop(BPlus::<40>::new())), 0, "an empty tree");
    assert_eq!(left_by(churned), 0, "a tree that threads have changed");

    let mut run = Run::new();
    (0..20_000).for_each(|number| run.push(&key(number), number));
    assert_eq!(
        left_by(|| drop(BPlus::<7>::load(Config::default(), std::slice::from_ref(&run), 1))),
        0
    );
    let refused = Config { bytes_max: 300_000 };
    let load = || assert!(BPlus::<7>::load(refused, std::slice::from_ref(&run), 1).is_err());
    assert_eq!(left_by(load), 0, "a load that was refused");

    // The tree reports what it has allocated: nodes, their ranges and blocks.
    let (mut stated, mut tree) = (0, None);
    let empty = left_by(|| tree = Some(BPlus::<40>::new()));
    let taken = left_by(|| {
        let tree = tree.as_ref().expect("just made");
        let before = tree.stats().dram_bytes;
        (0..20_000).for_each(|number| assert!(tree.insert(&key(number), 1).unwrap().inserted()));
        stated = (tree.stats().dram_bytes - before) as i64;
    });
    let waiting = tree.as_ref().map_or(0, |tree| tree.reclamation().bytes_waiting as i64);
    let rest = taken - stated - waiting;
    // The lists of retired memory, and space for further nodes: pieces double at most.
    let room = stated + waiting + 65_536;
    assert!(
        (0..room + 32_768).contains(&rest),
        "{taken} taken, {stated} stated, {waiting} waiting"
    );
    assert_eq!(left_by(|| drop(tree)), -(empty + taken), "a large tree");
}
