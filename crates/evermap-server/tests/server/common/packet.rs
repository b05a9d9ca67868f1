//! Packets of the binary protocol.

/// Opcodes, by the names of the protocol's specification.
pub(crate) mod opcode {
    pub(crate) const GET: u8 = 0x00;
    pub(crate) const SET: u8 = 0x01;
    pub(crate) const ADD: u8 = 0x02;
    pub(crate) const REPLACE: u8 = 0x03;
    pub(crate) const DELETE: u8 = 0x04;
    pub(crate) const INCREMENT: u8 = 0x05;
    pub(crate) const DECREMENT: u8 = 0x06;
    pub(crate) const QUIT: u8 = 0x07;
    pub(crate) const FLUSH: u8 = 0x08;
    pub(crate) const GETQ: u8 = 0x09;
    pub(crate) const NOOP: u8 = 0x0a;
    pub(crate) const VERSION: u8 = 0x0b;
    pub(crate) const GETK: u8 = 0x0c;
    pub(crate) const GETKQ: u8 = 0x0d;
    pub(crate) const APPEND: u8 = 0x0e;
    pub(crate) const PREPEND: u8 = 0x0f;
    pub(crate) const STAT: u8 = 0x10;
    pub(crate) const SETQ: u8 = 0x11;
    pub(crate) const ADDQ: u8 = 0x12;
    pub(crate) const REPLACEQ: u8 = 0x13;
    pub(crate) const DELETEQ: u8 = 0x14;
    pub(crate) const INCREMENTQ: u8 = 0x15;
    pub(crate) const DECREMENTQ: u8 = 0x16;
    pub(crate) const QUITQ: u8 = 0x17;
    pub(crate) const FLUSHQ: u8 = 0x18;
    pub(crate) const APPENDQ: u8 = 0x19;
    pub(crate) const PREPENDQ: u8 = 0x1a;
    pub(crate) const VERBOSITY: u8 = 0x1b;
    pub(crate) const TOUCH: u8 = 0x1c;
    pub(crate) const GAT: u8 = 0x1d;
    pub(crate) const GATQ: u8 = 0x1e;
    pub(crate) const SASL_LIST: u8 = 0x20;
    pub(crate) const SASL_AUTH: u8 = 0x21;
    pub(crate) const SASL_STEP: u8 = 0x22;
    pub(crate) const GATK: u8 = 0x23;
    pub(crate) const GATKQ: u8 = 0x24;
}

/// A request or a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) opcode: u8,
    /// Only of a reply.
    pub(crate) status: u16,
    pub(crate) opaque: u32,
    pub(crate) cas: u64,
    pub(crate) extras: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(opcode: u8) -> Self {
        Packet { opcode, ..Packet::default() }
    }

    pub(crate) fn opaque(self, opaque: u32) -> Self {
        Packet { opaque, ..self }
    }

    pub(crate) fn cas(self, cas: u64) -> Self {
        Packet { cas, ..self }
    }

    pub(crate) fn extras(self, extras: impl AsRef<[u8]>) -> Self {
        Packet { extras: extras.as_ref().to_vec(), ..self }
    }

    pub(crate) fn key(self, key: impl AsRef<[u8]>) -> Self {
        Packet { key: key.as_ref().to_vec(), ..self }
    }

    pub(crate) fn value(self, value: impl AsRef<[u8]>) -> Self {
        Packet { value: value.as_ref().to_vec(), ..self }
    }

    /// Returns the bytes of a request.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let lens = [self.key.len(), self.extras.len()];
        let body = lens[0] + lens[1] + self.value.len();
        self.with_lengths(lens[0] as u16, lens[1] as u8, body as u32)
    }

    /// Returns the bytes of a request whose header announces other lengths than it has.
    pub(crate) fn with_lengths(&self, key: u16, extras: u8, body: u32) -> Vec<u8> {
        let mut bytes = vec![0x80, self.opcode];
        bytes.extend(key.to_be_bytes());
        bytes.extend([extras, 0, 0, 0]);
        bytes.extend(body.to_be_bytes());
        bytes.extend(self.opaque.to_be_bytes());
        bytes.extend(self.cas.to_be_bytes());
        for part in [&self.extras, &self.key, &self.value] {
            bytes.extend(part);
        }
        bytes
    }

    /// Splits bytes into the replies that they consist of.
    #[track_caller]
    pub(crate) fn replies(mut bytes: &[u8]) -> Vec<Packet> {
        let mut replies = Vec::new();
        while !bytes.is_empty() {
            let number = |range: std::ops::Range<usize>| {
                bytes[range].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
            };
            assert_eq!((bytes[0], bytes[5]), (0x81, 0), "magic and data type");
            let (key, extras, body) =
                (number(2..4) as usize, bytes[4] as usize, number(8..12) as usize);
            let (parts, rest) = bytes[24..].split_at(body);
            let (extras, parts) = parts.split_at(extras);
            let (key, value) = parts.split_at(key);
            replies.push(Packet {
                opcode: bytes[1],
                status: number(6..8) as u16,
                opaque: number(12..16) as u32,
                cas: number(16..24),
                extras: extras.to_vec(),
                key: key.to_vec(),
                value: value.to_vec(),
            });
            bytes = rest;
        }
        replies
    }

    /// Returns a reply as text: opcode, status, CAS id, extras in hexadecimal, key and value.
    /// What is 0 or empty is left out.
    pub(crate) fn show(&self) -> String {
        let mut text = format!("{:02x} {:02x}", self.opcode, self.status);
        if self.cas != 0 {
            text += &format!(" #{}", self.cas);
        }
        if !self.extras.is_empty() {
            let hex: String = self.extras.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!(" [{hex}]");
        }
        if !(self.key.is_empty() && self.value.is_empty()) {
            text += &format!(" {}={}", self.key.escape_ascii(), self.value.escape_ascii());
        }
        text
    }
}

/// Returns a request with the usual extras of its command: flags 7; a difference of 1, without an
/// initial value; no expiry.
pub(crate) fn request(opcode: u8, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Packet {
    use opcode::*;
    let extras: &[u8] = match opcode {
        SET | SETQ | ADD | ADDQ | REPLACE | REPLACEQ => &[0, 0, 0, 7, 0, 0, 0, 0],
        INCREMENT | INCREMENTQ | DECREMENT | DECREMENTQ => {
            return Packet::new(opcode).extras(delta(1, 0, u32::MAX)).key(key).value(value);
        }
        TOUCH | GAT | GATQ | GATK | GATKQ | VERBOSITY => &[0; 4],
        _ => &[],
    };
    Packet::new(opcode).extras(extras).key(key).value(value)
}

/// Returns the extras of an increment or decrement.
pub(crate) fn delta(delta: u64, initial: u64, expiry: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expiry.to_be_bytes()].concat()
}
