//! Maps of Rust types, over maps of bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::common::{self, Random};
use evermap::{Error, ErrorKind, Map, TypedMap};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle { radius: f64 },
    Polygon(Vec<(i32, i32)>, Option<String>),
}

fn store() -> Map {
    common::in_memory(common::options().ordered(true)).unwrap()
}

#[test]
fn values_come_back_and_are_scanned_in_the_order_of_their_keys() {
    let store = store();
    let map: TypedMap<(i16, String), Shape> = store.typed();
    let mut expected = BTreeMap::new();
    let mut random = Random::new(1);
    for _ in 0..500 {
        let name: String =
            (0..random.below(4)).map(|_| ["", "\0", "a", "é"][random.below(4) as usize]).collect();
        let key = (random.below(7) as i16 - 3, name);
        let value = match random.below(3) {
            0 => Shape::Point,
            1 => Shape::Circle { radius: random.below(100) as f64 },
            _ => Shape::Polygon(vec![(-1, i32::MAX); random.below(5) as usize], Some("p".into())),
        };
        map.put(&key, &value).unwrap();
        expected.insert(key, value);
    }
    for (key, value) in &expected {
        assert_eq!(map.get(key).unwrap().as_ref(), Some(value));
    }
    let all: BTreeMap<_, _> = map.iter().map(Result::unwrap).collect();
    assert_eq!(all, expected);
    let ordered: Vec<_> = map.range(..).unwrap().map(Result::unwrap).collect();
    assert!(ordered.iter().map(|(key, value)| (key, value)).eq(&expected));
    let (from, to) = ((-1, String::new()), (2, "a".to_owned()));
    let some: Vec<_> = map.range(from.clone()..to.clone()).unwrap().map(Result::unwrap).collect();
    assert!(some.iter().map(|(key, value)| (key, value)).eq(expected.range(from..to)));
    let back: Vec<_> = map.range(..).unwrap().reverse().map(|pair| pair.unwrap().0).collect();
    assert!(back.iter().eq(expected.keys().rev()));
    let of_two: Vec<_> = map.prefix(&(2i16,)).unwrap().map(|pair| pair.unwrap().0).collect();
    assert!(of_two.iter().eq(expected.keys().filter(|key| key.0 == 2)));
}

#[test]
fn keys_can_be_borrowed() {
    let store = store();
    let map: TypedMap<String, u64> = store.typed();
    map.put("a", &1).unwrap();
    assert_eq!(map.get(&"a".to_owned()).unwrap(), Some(1));
    assert!(map.contains("a").unwrap() && !map.contains("b").unwrap());
    assert!(map.delete("a").unwrap() && !map.delete("a").unwrap());
    assert_eq!(map.clone().get("a").unwrap(), None);
}

/// The encodings are part of the format: these bytes must never change.
#[test]
fn what_is_stored_is_documented() {
    let store = store();
    let map: TypedMap<(u16, String), Shape> = store.typed();
    let shape = Shape::Polygon(vec![(1, -2)], None);
    map.put(&(7, "k".to_owned()), &shape).unwrap();
    assert_eq!(store.get(&[0, 7, b'k', 0, 0]).unwrap(), Some(vec![2, 1, 2, 3, 0]));
    assert!(map.map().contains(&[0, 7, b'k', 0, 0]).unwrap());
}

#[test]
fn bytes_of_another_type_are_an_error_of_that_key_only() {
    let store = store();
    let map: TypedMap<u16, Shape> = store.typed();
    map.put(&1, &Shape::Point).unwrap();
    map.put(&3, &Shape::Circle { radius: 1.0 }).unwrap();
    // A variant that does not exist, a value that is cut off, and one with additional bytes.
    for bytes in [&[3][..], &[1, 0, 0], &[0, 0]] {
        store.put(&[0, 2], bytes).unwrap();
        let error = map.get(&2).unwrap_err();
        assert!(
            matches!(&error, Error::Undecodable { what: "value", key, type_name, .. }
                if key == "\\x00\\x02" && type_name.ends_with("Shape")),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Encoding);
        let refused = map.modify(&2, |_| unreachable!("there is no value"));
        assert!(matches!(refused, Err(Error::Undecodable { .. })), "{refused:?}");
        assert!(matches!(map.get_many(&[1, 2, 3]), Err(Error::Undecodable { .. })));
        assert_eq!(store.get([0, 2]).unwrap(), Some(bytes.to_vec()), "it stays as it was");
        let found: Vec<_> = map.range(..).unwrap().map(|pair| pair.map(|(key, _)| key)).collect();
        assert!(matches!(found[..], [Ok(1), Err(Error::Undecodable { .. }), Ok(3)]), "{found:?}");
    }
    store.put(&[0, 2, 9], &[0]).unwrap();
    store.delete(&[0, 2]).unwrap();
    let errors: Vec<_> = map.iter().filter_map(Result::err).collect();
    assert!(matches!(&errors[..], [Error::Undecodable { what: "key", .. }]), "{errors:?}");
}

#[test]
fn a_value_that_cannot_be_serialized_is_not_stored() {
    #[derive(Deserialize)]
    struct Refusing;
    impl Serialize for Refusing {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }
    let store = store();
    let map: TypedMap<u8, Refusing> = store.typed();
    assert!(matches!(map.put(&1, &Refusing), Err(Error::Unencodable { .. })));
    assert!(!map.contains(&1).unwrap());
    assert!(matches!(map.modify(&1, |_| Some(Refusing)), Err(Error::Unencodable { .. })));
    assert!(!map.contains(&1).unwrap());
}
