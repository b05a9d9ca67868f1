//! Figures as JSON.

use crate::common::{self, Kept};
use evermap::{CostStat, SpaceStat, Stat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns a value as JSON, which has to be the same value again.
fn json<T: Serialize + DeserializeOwned>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let read: T = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), json);
    json
}

#[test]
fn figures_are_the_same_after_json() {
    let options = common::options().ordered(true).memory_limit(8 << 20).evict(true);
    let map = Kept::new(64 << 20).open(&options).unwrap();
    for number in 0..1000u32 {
        map.put(number.to_le_bytes(), [7; 100]).unwrap();
    }
    let reader = map.reader().unwrap();
    json::<Stat>(&map.stat());
    drop(reader);
    map.build_ordered(1).unwrap();
    let after = json::<Stat>(&map.stat());
    assert!(after["ordered"]["state"]["ready"]["nanos"].is_u64());
    for (name, value) in [
        ("durability", "process"),
        ("index", common::index().name()),
        ("sweep", "not-needed"),
        ("damage", "none"),
    ] {
        assert_eq!(after[name], value, "{name}");
    }
    assert_eq!(after["records"]["value"], 1000);
    assert_eq!(after["records"]["exact"], true);
    assert_eq!(after["epoch"]["online_readers"], 0);
    let space = json::<SpaceStat>(&map.space().unwrap());
    assert!(space["allocated_bytes"].as_u64() > Some(100_000));
    let cost = json::<CostStat>(&map.cost().unwrap());
    assert_eq!(cost["records"], 1000);
}

/// Programs that read them depend on the names.
#[test]
fn the_names_of_figures_stay() {
    let stat = json::<Stat>(&common::in_memory(common::options()).unwrap().stat());
    let mut names: Vec<_> = stat.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected = [
        "clean_open",
        "damage",
        "damage_found",
        "damage_met",
        "damaged_places",
        "durability",
        "epoch",
        "evicted_bytes",
        "evicted_directly",
        "evicted_unfetched",
        "eviction_age",
        "evictions",
        "expired_unfetched",
        "extent_size",
        "file_bytes",
        "file_system",
        "flush_due",
        "flush_mark",
        "generation",
        "held_up_by",
        "index",
        "map",
        "map_evictions",
        "maps",
        "max_bytes",
        "medium",
        "memory_limit",
        "memory_limit_asked",
        "memory_used",
        "moved_for_space",
        "next_cas",
        "next_expiry",
        "ordered",
        "path",
        "persistent_order",
        "purged",
        "purges",
        "record_bytes",
        "records",
        "records_at_open",
        "suspect",
        "sweep",
    ];
    assert_eq!(names, expected);
    for kind in evermap::IndexKind::ALL {
        assert_eq!(json(kind), kind.name());
    }
}
