//! A client that has to authenticate, in either protocol.
//!
//! Nothing may be stored, found or deleted before one of the attempts has succeeded.
//!
//! ```text
//! cargo +nightly fuzz run auth -- -max_total_time=60 -dict=auth.dict
//! ```

#![no_main]

mod pieces;

use std::sync::{Arc, LazyLock};

use evermap_server::protocol::Credentials;
use evermap_server::stats::Count;
use libfuzzer_sys::fuzz_target;
use pieces::TestSession;

static USERS: LazyLock<Arc<Credentials>> =
    LazyLock::new(|| Arc::new(Credentials::from_text(b"ann:one\nbob:two words\n").unwrap()));

fuzz_target!(|input: &[u8]| {
    let Some((choice, sent)) = pieces::split(input) else { return };
    let known = |session: &mut TestSession| session.credentials = Some(USERS.clone());
    pieces::check(choice, sent, known);

    let mut session = TestSession::new(pieces::ITEM_SIZE_MAX, usize::MAX / 2);
    known(&mut session);
    session.send(sent);
    let count = |count| session.counters.get(count);
    if count(Count::AuthCmds) == count(Count::AuthErrors) {
        for executed in [
            Count::CmdGet,
            Count::CmdSet,
            Count::CmdTouch,
            Count::CmdFlush,
            Count::DeleteHits,
            Count::DeleteMisses,
            Count::IncrMisses,
            Count::DecrMisses,
        ] {
            assert_eq!(count(executed), 0, "{}", executed.name());
        }
    }
});
