//! A client that sends any bytes, in pieces of any size.
//!
//! ```text
//! cargo +nightly fuzz run protocol -- -max_total_time=60 -dict=protocol.dict
//! ```

#![no_main]

mod pieces;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((choice, sent)) = pieces::split(input) {
        pieces::check(choice, sent, |_| {});
    }
});
