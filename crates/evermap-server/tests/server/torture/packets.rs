//! Requests of the binary protocol and the expected replies.

use std::io::Read;

use super::script::{Replies, Reply, Script};
use super::values::{LARGE, Random, SHARED, check, shared};
use crate::common::packet::opcode::*;
use crate::common::packet::{Packet, delta, request};

/// An expected reply, whose opaque number is that of its request.
pub(crate) struct PacketReply {
    opcode: u8,
    status: u16,
    opaque: u32,
    body: Body,
}

/// The key and the value of a reply.
enum Body {
    /// A valid value of this shared key, which the reply names.
    Shared(String),
    /// This key and this value.
    Exactly(String, Vec<u8>),
    /// The text of an error, or nothing.
    Any,
}

impl Script<'_> {
    /// Adds a request, and a reply if one is expected.
    fn packet(&mut self, packet: Packet, reply: Option<(u16, Body)>) {
        let (opcode, opaque) = (packet.opcode, self.next_opaque());
        self.bytes.extend(packet.opaque(opaque).bytes());
        self.requests += 1;
        if let Some((status, body)) = reply {
            let reply = PacketReply { opcode, status, opaque, body };
            self.replies.push(Reply::Packet(reply));
        }
    }

    /// Adds a random request that is small and has a small reply.
    pub(super) fn add_small_packet(&mut self, random: &mut Random) {
        match random.below(16) {
            0..4 => self.get_packets(random),
            4..6 => self.set_shared(random.below(SHARED - LARGE), 20 + random.below(400)),
            6..9 => self.set_own(random),
            9..12 => self.get_own_packet(random),
            12 => self.count_packet(random),
            13 => self.rejected_packet(random),
            _ => self.unusual_packet(random),
        }
    }

    pub(super) fn get_large_packet(&mut self, random: &mut Random) {
        let key = shared(SHARED - 1 - random.below(LARGE));
        let found = Body::Shared(key.clone());
        self.packet(request(GETK, key, ""), Some((0, found)));
    }

    /// Adds gets of several keys, as clients send them: quiet ones, and something that is always
    /// answered.
    fn get_packets(&mut self, random: &mut Random) {
        let opcode = [GETKQ, GETKQ, GETK, GATK, GATKQ][random.below(5)];
        for _ in 0..1 + random.below(8) {
            let key = shared(random.below(SHARED - LARGE));
            let found = Body::Shared(key.clone());
            self.packet(request(opcode, key, ""), Some((0, found)));
            if random.one_in(4) {
                self.packet(request(GETKQ, format!("absent-{}", self.name()), ""), None);
            }
        }
        self.packet(request(NOOP, "", ""), Some((0, Body::Any)));
    }

    pub(super) fn set_packet(&mut self, key: &str, value: &[u8], quiet: bool) {
        let packet = request(if quiet { SETQ } else { SET }, key, value).extras([0; 8]);
        self.packet(packet, (!quiet).then_some((0, Body::Any)));
    }

    fn get_own_packet(&mut self, random: &mut Random) {
        let key = self.own_key(random);
        let get = request(GETK, &key, "");
        match self.own(&key) {
            Some(value) => self.packet(get, Some((0, Body::Exactly(key, value)))),
            None => self.packet(get, Some((1, Body::Exactly(key, Vec::new())))),
        }
    }

    fn count_packet(&mut self, random: &mut Random) {
        let by = random.below(1000) as u64;
        let number = self.counter.map_or(7, |count| count + by);
        self.counter = Some(number);
        let key = format!("count-{}", self.name());
        let packet = Packet::new(INCREMENT).extras(delta(by, 7, 0)).key(key);
        let number = number.to_be_bytes().to_vec();
        self.packet(packet, Some((0, Body::Exactly(String::new(), number))));
    }

    /// Adds a packet that is rejected, with requests that would do harm as its body.
    fn rejected_packet(&mut self, random: &mut Random) {
        let victim = shared(random.below(SHARED));
        let harmful = [
            request(FLUSH, "", "").bytes(),
            request(DELETE, &victim, "").bytes(),
            request(SET, &victim, "x").bytes(),
            request(QUIT, "", "").bytes(),
        ];
        let opcode = [0x1f, 0x60, SASL_AUTH, 0xff][random.below(4)];
        self.packet(request(opcode, "key", harmful.concat()), Some((0x81, Body::Any)));
    }

    fn unusual_packet(&mut self, random: &mut Random) {
        let absent = format!("absent-{}", self.name());
        let (packet, status) = match random.below(7) {
            0 => (request(DELETEQ, absent, ""), 1),
            1 => (request(TOUCH, absent, ""), 1),
            2 => (request(APPENDQ, absent, "x"), 5),
            3 => (request(REPLACE, absent, "x"), 1),
            4 => (request(DECREMENTQ, absent, ""), 1),
            5 => (request(ADD, shared(random.below(SHARED)), "x"), 2),
            _ => (request(VERSION, "", ""), 0),
        };
        self.packet(packet, Some((status, Body::Any)));
    }
}

impl Replies {
    #[track_caller]
    pub(super) fn expect_packet(&mut self, expected: &PacketReply) {
        let PacketReply { opcode, status, opaque, body } = expected;
        let reply = self.read_packet();
        assert_eq!((reply.opcode, reply.status, reply.opaque), (*opcode, *status, *opaque));
        match body {
            Body::Any => {}
            Body::Shared(key) => {
                assert_eq!(reply.key, key.as_bytes());
                check(key, &reply.value).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
            Body::Exactly(key, value) => {
                assert_eq!(reply.key, key.as_bytes());
                assert!(reply.value == *value, "for {key}: {}", reply.value.escape_ascii());
            }
        }
        self.checked += reply.value.len() as u64;
    }

    #[track_caller]
    fn read_packet(&mut self) -> Packet {
        let mut reply = vec![0; 24];
        self.read_exactly(&mut reply);
        let body = u32::from_be_bytes([reply[8], reply[9], reply[10], reply[11]]) as usize;
        assert!(body < 2 << 20, "a body of {body} bytes");
        reply.resize(24 + body, 0);
        self.read_exactly(&mut reply[24..]);
        Packet::replies(&reply).remove(0)
    }

    #[track_caller]
    fn read_exactly(&mut self, bytes: &mut [u8]) {
        self.reader().read_exact(bytes).expect("a packet");
    }
}
