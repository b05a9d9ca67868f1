//! Looking up several keys and copying their values where they are needed.

use std::ops::ControlFlow;

use evermap::{Error, Evermap, Meta, Options};

#[test]
fn records_are_found_in_the_order_of_the_keys() {
    let map = Evermap::in_memory(Options::new()).unwrap().default_map();
    // More than one batch of the index, with every third key absent.
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    for (at, key) in keys.iter().enumerate().filter(|(at, _)| at % 3 > 0) {
        let meta = Meta::new().with_flags(at as u32);
        map.set(key.as_bytes()).meta(meta).put(&vec![at as u8; at * 10]).unwrap();
    }
    let (mut found, mut values) = (Vec::new(), Vec::new());
    let mut expected = Vec::new();
    map.cache()
        .find_many(&keys, |at, record| {
            let record = record.unwrap();
            assert_eq!((record.flags(), record.value_len()), (at as u32, at * 10));
            assert!(record.cas() > 0 && record.expires_at().is_none());
            record.append_to(&mut values).unwrap();
            expected.extend(vec![at as u8; at * 10]);
            found.push(at);
            if at < 80 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    let present: Vec<usize> = (0..=80).filter(|at| at % 3 > 0).collect();
    assert_eq!(found, present);
    assert!(values == expected);
}

#[test]
fn a_damaged_value_is_reported_when_it_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("map");
    let map = Evermap::open(&path, Options::new()).unwrap().default_map();
    map.put(b"good", b"intact").unwrap();
    map.put(b"bad", b"this value gets damaged").unwrap();
    map.into_db().close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let value = b"gets damaged";
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at] = b'G';
    std::fs::write(&path, bytes).unwrap();

    let map = Evermap::open(&path, Options::new()).unwrap().default_map();
    let mut out = b"> ".to_vec();
    let mut damaged = 0;
    map.cache()
        .find_many(&[b"bad".as_slice(), b"good"], |_, record| {
            match record.unwrap().append_to(&mut out) {
                Ok(()) => {}
                Err(Error::Damaged { .. }) => damaged += 1,
                Err(other) => panic!("{other}"),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((out.as_slice(), damaged), (&b"> intact"[..], 1));
    let copied = |key: &str| {
        let copied = map.cache().find(key, |record| {
            let mut out = vec![0; record.value_len()];
            record.copy_to(&mut out).map(|()| out)
        });
        copied.unwrap().unwrap()
    };
    assert!(matches!(copied("bad"), Err(Error::Damaged { .. })));
    assert_eq!(copied("good").unwrap(), b"intact");
}

/// Into a buffer of its length, in pieces of which each begins anywhere in a word.
#[test]
fn a_value_of_any_length_is_copied_to_where_it_is_wanted() {
    let map = Evermap::in_memory(Options::new()).unwrap().default_map();
    assert!(map.cache().find("key", |_| ()).unwrap().is_none());
    for key in ["", "k", "seventeen letters"] {
        for len in [0, 1, 7, 8, 9, 256, 4095, 4096, 4097, 20_000] {
            let value: Vec<u8> = (0..len).map(|at| at as u8 ^ key.len() as u8).collect();
            map.put(key, &value).unwrap();
            let copied = map.cache().find(key, |record| {
                let mut out = vec![0xff; record.value_len()];
                record.copy_to(&mut out).map(|()| out)
            });
            assert!(copied.unwrap().unwrap().unwrap() == value, "{len} bytes of {key:?}");
        }
    }
}
