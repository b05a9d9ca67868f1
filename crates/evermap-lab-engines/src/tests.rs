//! Every engine does what the model does, alone and under threads.

use std::ops::ControlFlow;
use std::sync::Arc;

use evermap_pm::sim::rng::Rng;
use evermap_server::cache::{Item, Side, StoreMode, StoreRequest, Update};
use evermap_server::{Cache, CacheError, ModelCache};

use super::{NAMES, engine};

/// What a client sees of an item.
type Seen = (u32, u32, bool, Vec<u8>);

fn seen(item: Item<'_>) -> Result<Seen, CacheError> {
    let mut value = Vec::new();
    item.value.append_to(&mut value)?;
    Ok((item.flags, item.expiry, item.fetched, value))
}

fn get(cache: &dyn Cache, keys: &[&[u8]]) -> Vec<(usize, Seen)> {
    let mut all = Vec::new();
    let hit = &mut |i, item: Item<'_>| {
        all.push((i, seen(item)?));
        Ok(ControlFlow::Continue(()))
    };
    cache.get_many(keys, hit).unwrap();
    all
}

/// Does one random thing, and returns everything that it returns but for CAS ids.
fn act(cache: &dyn Cache, rng: &mut Rng) -> String {
    let key = format!("key-{}", rng.below(40)).into_bytes();
    let other = format!("key-{}", rng.below(40)).into_bytes();
    let value = format!("{}", rng.below(1000)).into_bytes();
    // Far in the past or in the future, so that the real clock does not matter.
    let expiry = [0, 1, u32::MAX - 1][rng.below(3) as usize];
    let mode = [StoreMode::Set, StoreMode::Add, StoreMode::Replace, StoreMode::Cas(77)];
    match rng.below(12) {
        0..4 => {
            let mode = mode[rng.below(4) as usize];
            let cas = (rng.below(3) == 0).then_some(77);
            let flags = rng.below(9) as u32;
            let request = StoreRequest { flags, expiry, mode, cas };
            format!("{:?}", cache.store(&key, &value, &request).unwrap().outcome)
        }
        4 => format!("{:?}", get(cache, &[&key, &other, &key])),
        5 => format!("{:?}", cache.concat(&key, &value, Side::Append, 9).map(|it| it.outcome)),
        6 => match cache.arithmetic(&key, 3, rng.below(2) == 0).unwrap() {
            evermap_server::cache::Arithmetic::Changed { number, .. } => number.to_string(),
            unchanged => format!("{unchanged:?}"),
        },
        7 => format!("{:?}", cache.delete(&key)),
        8 => format!("{:?}", cache.touch(&key, expiry)),
        9 => {
            let mut found = None;
            let hit = &mut |item: Item<'_>| {
                found = Some(seen(item)?);
                Ok(())
            };
            let live = cache.get_and_touch(&key, expiry, hit);
            format!("{live:?} {found:?}")
        }
        10 => {
            let keeps = rng.below(2) == 0;
            let result = cache.update(&key, &mut |item| {
                Ok(match item {
                    None => Update::Keep,
                    Some(_) if keeps => Update::Mark { expiry, marks: Default::default() },
                    Some(_) => Update::Remove,
                })
            });
            format!("{}", result.unwrap().is_some())
        }
        _ if rng.below(50) == 0 => format!("{:?}", cache.flush_all(None)),
        _ => {
            let mut found = None;
            let live = cache.peek(&key, &mut |item| {
                found = Some(seen(item)?);
                Ok(())
            });
            format!("{live:?} {found:?}")
        }
    }
}

fn contents(cache: &dyn Cache) -> Vec<(Vec<u8>, Seen)> {
    let mut all = Vec::new();
    let each = &mut |key: &[u8], item: Item<'_>| {
        all.push((key.to_vec(), seen(item).unwrap()));
        ControlFlow::Continue(())
    };
    cache.for_each(each).unwrap();
    all.sort();
    all
}

#[test]
fn every_engine_does_what_the_model_does() {
    for name in NAMES {
        let (cache, model) = (engine(name).unwrap().unwrap(), ModelCache::new(1_800_000_000));
        let [mut one, mut two] = [(); 2].map(|()| Rng::new(7));
        for step in 0..20_000 {
            let (got, expected) = (act(&*cache, &mut one), act(&model, &mut two));
            assert_eq!(got, expected, "{name}, step {step}");
        }
        assert_eq!(contents(&*cache), contents(&model), "{name}");
        let stats = |cache: &dyn Cache| {
            let mut all = Vec::new();
            cache.stats(&mut |name, value| all.push(format!("{name} {value}")));
            all
        };
        assert_eq!(stats(&*cache), stats(&model), "{name}");
    }
    assert!(engine("slab").is_none());
}

/// Threads increment numbers that they share while the table grows: none is lost.
#[test]
fn changes_of_threads_are_all_there() {
    const THREADS: u64 = 4;
    for name in NAMES {
        let cache: Arc<dyn Cache> = engine(name).unwrap().unwrap();
        let set = StoreRequest::new(StoreMode::Set);
        cache.store(b"shared", b"0", &set).unwrap();
        std::thread::scope(|threads| {
            for thread in 0..THREADS {
                let cache = &cache;
                threads.spawn(move || {
                    for number in 0..2000 {
                        cache.arithmetic(b"shared", 1, true).unwrap();
                        let key = format!("{thread}-{number}");
                        cache.store(key.as_bytes(), b"value", &set).unwrap();
                        let keys: [&[u8]; 2] = [key.as_bytes(), b"shared"];
                        assert_eq!(get(&**cache, &keys).len(), 2, "{name}, {key}");
                    }
                });
            }
        });
        let value = get(&*cache, &[b"shared"]).pop().unwrap().1.3;
        assert_eq!(String::from_utf8(value).unwrap(), (THREADS * 2000).to_string(), "{name}");
        assert_eq!(contents(&*cache).len() as u64, THREADS * 2000 + 1, "{name}");
    }
}
