//! What insertions cost in the orders of walks, and of the places of records, compared to a random
//! order: `orders INDEX KEYS` for one kind of index, as counts of words and lines.

use evermap_index::hash::{clht, dash};
use evermap_index::testkit::order::{OrderOfPlaces, report};
use evermap_index::testkit::{Plain, PoolSubject};
use evermap_index::{Clht, DashEh, Persistent};
use evermap_papers::{Cceh, DashLh, Level, LineHash, Tranche};
use evermap_papers::{cceh, level, line, tranche};
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

fn show<I>(keys: usize, places: OrderOfPlaces)
where
    Default<I>: PoolSubject<Plain>,
{
    println!("{}", report(&Default::<I>(std::marker::PhantomData), 1, keys, places));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [index, keys] = &arguments[..] else { panic!("usage: orders INDEX KEYS") };
    let keys = keys.parse().expect("a number of keys");
    match evermap_papers::names::canonical(index) {
        "dash-eh" => show::<DashEh<Plain, Sim>>(keys, OrderOfPlaces::Include),
        "dash-lh" => show::<DashLh<Plain, Sim>>(keys, OrderOfPlaces::Include),
        "cceh" => show::<Cceh<Plain, Sim>>(keys, OrderOfPlaces::Include),
        "level" => show::<Level<Plain, Sim>>(keys, OrderOfPlaces::Leave),
        "p-clht" => show::<Clht<Plain, Sim>>(keys, OrderOfPlaces::Include),
        "line-hash" => show::<LineHash<Plain, Sim>>(keys, OrderOfPlaces::Include),
        "tranche-256" => show::<Tranche<Plain, Sim>>(keys, OrderOfPlaces::Include),
        other => panic!("no index {other}"),
    }
}
