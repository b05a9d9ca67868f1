//! What insertions cost in the order of an iterator, compared to a random order.

use evermap_index::testkit::Tier;

use super::*;

/// A hasher with the same keys in every map.
type BuildFixed = BuildHasherDefault<std::hash::DefaultHasher>;
type Map = VolatileMap<u64, u64, BuildFixed>;

/// What insertions into a map cost at most, as a multiple of what they cost in a random order.
const FACTOR: f64 = 2.0;

/// Inserts keys, and looks them up. Returns the numbers of accesses.
fn cost(map: &Map, keys: &[u64]) -> [u64; 2] {
    let map = map.pin();
    STEPS.set(0);
    keys.iter().for_each(|&key| assert_eq!(map.insert(key, key), None));
    let insertions = STEPS.replace(0);
    keys.iter().for_each(|key| assert_eq!(map.get(key), Some(key)));
    [insertions, STEPS.get()]
}

/// Checks that insertions of the same keys into two maps cost about the same.
fn compare(name: &str, (ordered, map): (&[u64], &Map), (random, other): (&[u64], &Map)) {
    let (ordered, random) = (cost(map, ordered), cost(other, random));
    let factors: Vec<f64> =
        ordered.iter().zip(&random).map(|(&cost, &random)| cost as f64 / random as f64).collect();
    println!("{name}: {factors:.2?} times the accesses of insertions and lookups");
    assert!(factors.iter().all(|&factor| factor <= FACTOR), "{name}: {factors:?}");
    assert!(map.audit().is_empty());
}

/// A program copies a map by inserting what an iterator shows into another one.
#[test]
fn insertions_in_the_order_of_an_iterator_cost_what_others_do() {
    let keys = if tier() == Tier::Full { 1_000_000 } else { 30_000 };
    let mut random = Rng::new(3);
    let mut draw = || random.draw();
    let keys: Vec<u64> = (0..keys).map(|_| draw()).collect();
    let others: Vec<u64> = keys.iter().map(|_| draw()).collect();
    for fresh in [tiny, Map::default] {
        let source = fresh();
        cost(&source, &keys);
        let shown: Vec<u64> = source.pin().keys().copied().collect();
        assert_eq!(shown.len(), keys.len());
        compare("all", (&shown, &fresh()), (&keys, &fresh()));
        let half = keys.len() / 2;
        compare("half", (&shown[..half], &fresh()), (&keys[..half], &fresh()));
        let [with, also_with] = [fresh(), fresh()];
        cost(&with, &others);
        cost(&also_with, &others);
        compare("beside others", (&shown, &with), (&keys, &also_with));
        let emptied = fresh();
        cost(&emptied, &keys);
        emptied.pin().clear();
        source.pin().clear();
        compare("again", (&shown, &source), (&keys, &emptied));
        let taken: Vec<u64> = source.into_iter().map(|(key, _)| key).collect();
        compare("taken", (&taken, &fresh()), (&keys, &fresh()));
    }
}
