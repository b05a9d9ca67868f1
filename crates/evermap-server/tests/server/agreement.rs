//! The same operations have the same results in the text and the binary protocol, over the model
//! and over the store.

use std::collections::HashMap;

use evermap::{Clock, Evermap, Map, Options};
use evermap_server::ModelCache;
use evermap_server::cache::Cache;
use evermap_server::protocol::ITEM_OVERHEAD;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::packet::opcode::*;
use crate::common::packet::{Packet, delta, request};
use crate::common::{NOW, TestSession};

const ITEM_SIZE_MAX: usize = 1100;

/// One operation of a client.
#[derive(Clone, Debug)]
enum Op {
    Get(&'static str),
    /// A storage command by its name in the text protocol, `append` and `prepend` included.
    Store {
        name: &'static str,
        key: &'static str,
        value: Vec<u8>,
        flags: u32,
        expiry: u32,
    },
    /// A set with the CAS id of the last get of the key, or with one that no item has.
    Cas {
        key: &'static str,
        value: Vec<u8>,
        wrong: bool,
    },
    /// An append under the same condition.
    AppendIf {
        key: &'static str,
        value: Vec<u8>,
        wrong: bool,
    },
    Delete(&'static str),
    /// A delete under the same condition.
    DeleteIf {
        key: &'static str,
        wrong: bool,
    },
    Change {
        key: &'static str,
        by: u64,
        up: bool,
    },
    /// A change that stores a number if there is no item.
    Create {
        key: &'static str,
        by: u64,
        up: bool,
        initial: u64,
    },
    Touch {
        key: &'static str,
        expiry: u32,
    },
    GetAndTouch {
        key: &'static str,
        expiry: u32,
    },
    Flush {
        delay: u32,
    },
    Wait(u32),
}

impl Op {
    fn append(key: &'static str, value: &[u8]) -> Op {
        Op::Store { name: "append", key, value: value.to_vec(), flags: 0, expiry: 0 }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let key = || select(&["a", "b", "c", "d"][..]);
    let value = || {
        prop_oneof![
            4 => vec(any::<u8>(), 0..40),
            4 => (0u64..200).prop_map(|number| number.to_string().into_bytes()),
            1 => Just(u64::MAX.to_string().into_bytes()),
            1 => vec(any::<u8>(), 400..700),
            1 => vec(any::<u8>(), 1000..1100),
        ]
    };
    let expiry = || select(vec![0, 0, 0, 1, 2, 5, 1_000_000, NOW + 3, NOW - 3]);
    let names = select(&["set", "set", "set", "add", "replace", "append", "prepend"][..]);
    prop_oneof![
        8 => key().prop_map(Op::Get),
        8 => (names, key(), value(), any::<u32>(), expiry()).prop_map(
            |(name, key, value, flags, expiry)| Op::Store { name, key, value, flags, expiry }
        ),
        3 => (key(), value(), any::<bool>())
            .prop_map(|(key, value, wrong)| Op::Cas { key, value, wrong }),
        2 => (key(), value(), any::<bool>())
            .prop_map(|(key, value, wrong)| Op::AppendIf { key, value, wrong }),
        2 => key().prop_map(Op::Delete),
        2 => (key(), any::<bool>()).prop_map(|(key, wrong)| Op::DeleteIf { key, wrong }),
        4 => (key(), select(vec![0, 1, 7, u64::MAX]), any::<bool>(), any::<u64>())
            .prop_map(|(key, by, up, initial)| Op::Create { key, by, up, initial }),
        4 => (key(), select(vec![0, 1, 7, 1000, u64::MAX]), any::<bool>())
            .prop_map(|(key, by, up)| Op::Change { key, by, up }),
        2 => (key(), expiry()).prop_map(|(key, expiry)| Op::Touch { key, expiry }),
        2 => (key(), expiry()).prop_map(|(key, expiry)| Op::GetAndTouch { key, expiry }),
        1 => select(vec![0, 2, 1_000]).prop_map(|delay| Op::Flush { delay }),
        2 => (0u32..4).prop_map(Op::Wait),
    ]
}

/// A client of one protocol, which describes every result in the words of the text protocol.
struct Client<C> {
    session: TestSession<C>,
    /// The CAS ids of the last gets.
    ids: HashMap<&'static str, u64>,
}

impl<C: Cache> Client<C> {
    fn new(cache: C) -> Self {
        Client { session: TestSession::with(cache, ITEM_SIZE_MAX, 1 << 16), ids: HashMap::new() }
    }

    /// Returns the CAS id that a comparison uses. It is never 0, which has no meaning in the binary
    /// protocol.
    fn id(&self, key: &str, wrong: bool) -> u64 {
        const WRONG: u64 = 1 << 62;
        let id = self.ids.get(key).copied().filter(|_| !wrong);
        id.unwrap_or(WRONG)
    }

    fn text(&mut self, op: &Op) -> String {
        let sent = match op {
            Op::Get(key) => format!("gets {key}\r\n").into_bytes(),
            Op::GetAndTouch { key, expiry } => format!("gats {expiry} {key}\r\n").into_bytes(),
            Op::Store { name, key, value, flags, expiry } => {
                block(format!("{name} {key} {flags} {expiry} {}", value.len()), value)
            }
            Op::Cas { key, value, wrong } => {
                block(format!("cas {key} 5 0 {} {}", value.len(), self.id(key, *wrong)), value)
            }
            Op::AppendIf { key, value, wrong } => {
                let append = Op::append(key, value);
                // Data that cannot fit is refused before the item is looked up.
                if key.len() + value.len() + ITEM_OVERHEAD > ITEM_SIZE_MAX {
                    return self.text(&append);
                }
                return self.text_if(key, *wrong, "NOT_STORED", append);
            }
            Op::DeleteIf { key, wrong } => {
                return self.text_if(key, *wrong, "NOT_FOUND", Op::Delete(key));
            }
            Op::Create { key, by, up, initial } => {
                let changed = self.text(&Op::Change { key, by: *by, up: *up });
                if changed != "NOT_FOUND" {
                    return changed;
                }
                let value = initial.to_string();
                let add = block(format!("add {key} 0 0 {}", value.len()), value.as_bytes());
                assert_eq!(self.session.send(&add), b"STORED\r\n");
                return value;
            }
            Op::Delete(key) => format!("delete {key}\r\n").into_bytes(),
            Op::Change { key, by, up } => {
                format!("{} {key} {by}\r\n", if *up { "incr" } else { "decr" }).into_bytes()
            }
            Op::Touch { key, expiry } => format!("touch {key} {expiry}\r\n").into_bytes(),
            Op::Flush { delay } => format!("flush_all {delay}\r\n").into_bytes(),
            Op::Wait(_) => return String::new(),
        };
        let reply = self.session.send(&sent);
        if let Op::Get(key) | Op::GetAndTouch { key, .. } = op {
            let Some(line) = reply.strip_prefix(b"VALUE ") else {
                assert_eq!(reply, b"END\r\n");
                self.ids.remove(key);
                return "missing".into();
            };
            let end = line.iter().position(|&byte| byte == b'\r').unwrap();
            let words = std::str::from_utf8(&line[..end]).unwrap();
            let [_, flags, len, id] = words.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{words}")
            };
            let value = &line[end + 2..][..len.parse().unwrap()];
            self.ids.insert(key, id.parse().unwrap());
            return format!("{flags} {}", value.escape_ascii());
        }
        let reply = String::from_utf8(reply).unwrap();
        reply
            .trim_end()
            .trim_start_matches("SERVER_ERROR ")
            .trim_start_matches("CLIENT_ERROR ")
            .into()
    }

    /// Executes an operation if the item has the CAS id that a comparison uses. No other client can
    /// change the item in between.
    fn text_if(&mut self, key: &'static str, wrong: bool, missing: &str, op: Op) -> String {
        let (id, known) = (self.id(key, wrong), self.ids.clone());
        let found = self.text(&Op::Get(key));
        let current = self.ids.get(key).copied();
        self.ids = known;
        match current {
            None => {
                assert_eq!(found, "missing");
                missing.into()
            }
            Some(current) if current == id => self.text(&op),
            Some(_) => "EXISTS".into(),
        }
    }

    fn binary(&mut self, op: &Op, quiet: bool) -> String {
        let loud_or_quiet = |loud, silent| if quiet { silent } else { loud };
        let packet = match op {
            Op::Get(key) => request(loud_or_quiet(GETK, GETKQ), key, ""),
            Op::GetAndTouch { key, expiry } => {
                request(loud_or_quiet(GAT, GATQ), key, "").extras(expiry.to_be_bytes())
            }
            Op::Store { name: "append", key, value, .. } => {
                request(loud_or_quiet(APPEND, APPENDQ), key, value)
            }
            Op::Store { name: "prepend", key, value, .. } => {
                request(loud_or_quiet(PREPEND, PREPENDQ), key, value)
            }
            Op::Store { name, key, value, flags, expiry } => {
                let opcode = match *name {
                    "set" => loud_or_quiet(SET, SETQ),
                    "add" => loud_or_quiet(ADD, ADDQ),
                    _ => loud_or_quiet(REPLACE, REPLACEQ),
                };
                let extras = [flags.to_be_bytes(), expiry.to_be_bytes()].concat();
                request(opcode, key, value).extras(extras)
            }
            Op::Cas { key, value, wrong } => {
                let extras = [5u32.to_be_bytes(), [0; 4]].concat();
                let id = self.id(key, *wrong);
                request(loud_or_quiet(SET, SETQ), key, value).extras(extras).cas(id)
            }
            Op::AppendIf { key, value, wrong } => {
                let id = self.id(key, *wrong);
                request(loud_or_quiet(APPEND, APPENDQ), key, value).cas(id)
            }
            Op::Delete(key) => request(loud_or_quiet(DELETE, DELETEQ), key, ""),
            Op::DeleteIf { key, wrong } => {
                let id = self.id(key, *wrong);
                request(loud_or_quiet(DELETE, DELETEQ), key, "").cas(id)
            }
            Op::Change { key, by, up } | Op::Create { key, by, up, .. } => {
                let opcode = match up {
                    true => loud_or_quiet(INCREMENT, INCREMENTQ),
                    false => loud_or_quiet(DECREMENT, DECREMENTQ),
                };
                let extras = match op {
                    Op::Create { initial, .. } => delta(*by, *initial, 0),
                    _ => delta(*by, 0, u32::MAX),
                };
                Packet::new(opcode).key(key).extras(extras)
            }
            Op::Touch { key, expiry } => request(TOUCH, key, "").extras(expiry.to_be_bytes()),
            Op::Flush { delay } => {
                request(loud_or_quiet(FLUSH, FLUSHQ), "", "").extras(delay.to_be_bytes())
            }
            Op::Wait(_) => return String::new(),
        };
        let reply = self.session.send(&packet.bytes());
        let replies = Packet::replies(&reply);
        assert!(!self.session.is_closed() && replies.len() <= 1, "{op:?}");
        self.describe(op, replies.first())
    }

    /// Describes the reply to an operation, or that there was none.
    fn describe(&mut self, op: &Op, reply: Option<&Packet>) -> String {
        let status = reply.map(|reply| reply.status);
        let described = match (op, status) {
            (Op::Get(key) | Op::GetAndTouch { key, .. }, Some(0)) => {
                let reply = reply.unwrap();
                self.ids.insert(key, reply.cas);
                let flags = u32::from_be_bytes(reply.extras[..].try_into().unwrap());
                return format!("{flags} {}", reply.value.escape_ascii());
            }
            (Op::Get(key) | Op::GetAndTouch { key, .. }, None | Some(1)) => {
                self.ids.remove(key);
                "missing"
            }
            (_, Some(3)) => "object too large for cache",
            (_, Some(6)) => "cannot increment or decrement non-numeric value",
            (Op::Store { .. } | Op::Cas { .. } | Op::AppendIf { .. }, None | Some(0)) => "STORED",
            (Op::Store { .. }, Some(1 | 2 | 5)) | (Op::AppendIf { .. }, Some(5)) => "NOT_STORED",
            (Op::Cas { .. } | Op::DeleteIf { .. }, Some(1)) => "NOT_FOUND",
            (Op::Cas { .. } | Op::AppendIf { .. } | Op::DeleteIf { .. }, Some(2)) => "EXISTS",
            (Op::Change { .. } | Op::Create { .. }, None) => "changed",
            (Op::Change { .. } | Op::Create { .. }, Some(0)) => {
                let number = u64::from_be_bytes(reply.unwrap().value[..].try_into().unwrap());
                return number.to_string();
            }
            (Op::Delete(_) | Op::DeleteIf { .. }, None | Some(0)) => "DELETED",
            (Op::Touch { .. }, Some(0)) => "TOUCHED",
            (Op::Flush { .. }, None | Some(0)) => "OK",
            (Op::Delete(_) | Op::Touch { .. } | Op::Change { .. }, Some(1)) => "NOT_FOUND",
            _ => panic!("{op:?}: {reply:?}"),
        };
        described.into()
    }
}

/// Returns a storage command of the text protocol.
fn block(line: String, value: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

/// A store in memory, whose clock the test advances.
fn store() -> (Map, Clock) {
    let clock = Clock::manual(crate::common::at(NOW));
    let options = Options::new().capacity(64 << 20).clock(clock.clone());
    (Evermap::in_memory(options).unwrap().default_map(), clock)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn text_and_binary_and_the_store_agree(ops in vec((op(), any::<bool>()), 1..60)) {
        let mut text = Client::new(ModelCache::new(NOW));
        let mut binary = Client::new(ModelCache::new(NOW));
        let (map, clock) = store();
        let mut stored = Client::new(map);
        let mut now = NOW;
        for (at, (op, quiet)) in ops.iter().enumerate() {
            if let Op::Wait(seconds) = op {
                now += seconds;
                text.session.cache.set_now(now);
                binary.session.cache.set_now(now);
                clock.set(crate::common::at(now));
                (text.session.now, binary.session.now, stored.session.now) = (now, now, now);
            }
            let mut expected = text.text(op);
            let is_change = matches!(op, Op::Change { .. } | Op::Create { .. });
            if is_change && *quiet && expected.bytes().all(|byte| byte.is_ascii_digit()) {
                // A quiet client does not learn the number.
                expected = "changed".into();
            }
            prop_assert_eq!(binary.binary(op, *quiet), &*expected, "{}: {:?}", at, op);
            prop_assert_eq!(stored.binary(op, *quiet), &*expected, "store, {}: {:?}", at, op);
            prop_assert_eq!(&binary.ids, &text.ids);
        }
    }
}
