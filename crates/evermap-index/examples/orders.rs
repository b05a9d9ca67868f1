//! What insertions cost in the orders of walks, and of the places of records, compared to a random
//! order: `orders INDEX KEYS` for one kind of index, as counts of words and lines.

use evermap_index::hash::{cceh, clht, dash, level, line, tranche};
use evermap_index::testkit::order::{Ranks, report};
use evermap_index::testkit::{Plain, PoolSubject};
use evermap_index::{Cceh, Clht, DashEh, DashLh, Level, LineHash, Persistent, Tranche};
use evermap_pm::sim::Sim;

/// The default geometry of an index.
struct Default<I>(std::marker::PhantomData<fn() -> I>);

macro_rules! subject {
    ($index:ty, $config:expr) => {
        impl PoolSubject<Plain> for Default<$index> {
            type Index = $index;

            fn config(&self) -> <$index as Persistent<Sim>>::Config {
                $config
            }

            fn extent_size(&self) -> u64 {
                2 << 20
            }
        }
    };
}

subject!(DashEh<Plain, Sim>, dash::Config::default());
subject!(DashLh<Plain, Sim>, dash::Config::default());
subject!(Cceh<Plain, Sim>, cceh::Config::default());
subject!(Level<Plain, Sim>, level::Config::default());
subject!(Clht<Plain, Sim>, clht::Config::default());
subject!(LineHash<Plain, Sim>, line::Config::default());
subject!(Tranche<Plain, Sim>, tranche::Config::default());

const RANKS: [Ranks; 3] = [
    Ranks { name: "ascending hashes", rank: |hash| hash },
    Ranks { name: "ascending reversed hashes", rank: u64::reverse_bits },
    Ranks { name: "ascending numbers of linear hashing", rank: |hash| (hash >> 24).reverse_bits() },
];

fn show<I>(keys: usize)
where
    Default<I>: PoolSubject<Plain>,
{
    println!("{}", report(&Default::<I>(std::marker::PhantomData), 1, keys, &RANKS));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [index, keys] = &arguments[..] else { panic!("usage: orders INDEX KEYS") };
    let keys = keys.parse().expect("a number of keys");
    match &index[..] {
        "dash-eh" => show::<DashEh<Plain, Sim>>(keys),
        "dash-lh" => show::<DashLh<Plain, Sim>>(keys),
        "cceh" => show::<Cceh<Plain, Sim>>(keys),
        "level" => show::<Level<Plain, Sim>>(keys),
        "p-clht" => show::<Clht<Plain, Sim>>(keys),
        "line-hash" => show::<LineHash<Plain, Sim>>(keys),
        "tranche" => show::<Tranche<Plain, Sim>>(keys),
        other => panic!("no index {other}"),
    }
}
