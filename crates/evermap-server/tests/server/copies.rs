//! A value is copied once on its way from the store to the reply.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::TestSession;
use crate::common::packet::opcode::{GET, GETKQ};
use crate::common::packet::request;
use evermap::{Evermap, Options};

/// Counts the bytes that each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: `System` does the work. Growing an allocation counts as an allocation of the new size,
// because the default `realloc` calls `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` is from `System.alloc` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// A copy needs memory. So if a get of a large value allocates less than two times its length,
/// there is no buffer besides the reply.
#[test]
fn a_get_copies_the_value_into_the_reply_only() {
    const LEN: usize = 1 << 20;
    let map = Evermap::in_memory(Options::new().capacity(4 << 30)).unwrap().default_map();
    map.put(b"key", vec![b'v'; LEN]).unwrap();
    let gets = [&b"get key\r\n"[..], b"gets key\r\n"].map(<[u8]>::to_vec);
    let binary = [GET, GETKQ].map(|opcode| request(opcode, "key", "").bytes());
    for request in gets.into_iter().chain(binary) {
        let mut session = TestSession::with(map.clone(), 2 * LEN, 2 * LEN);
        let mut out = Vec::new();
        let before = ALLOCATED.get();
        session.receive(&request, &mut out);
        let allocated = ALLOCATED.get() - before;
        assert!(out.len() > LEN && (out[0] == 0x81 || out.ends_with(b"\r\nEND\r\n")));
        println!("{allocated} bytes allocated for a value of {LEN}");
        assert!((LEN..LEN + LEN / 4).contains(&allocated), "{allocated} bytes allocated");
    }
}
