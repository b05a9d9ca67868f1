//! What functions return, and the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use evermap_bindings::Fault;
use store::ErrorKind;

/// What a call returns. Zero or more is an answer; less than zero is an error, and
/// evermap_message() says which.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum evermap_status {
    /// It was done, or found.
    EVERMAP_OK = 0,
    /// The key is absent. Nothing was changed.
    EVERMAP_ABSENT = 1,
    /// The key is present, and was left as it is, because that was the condition.
    EVERMAP_KEPT = 2,
    /// A condition of a batch does not hold: nothing was changed. evermap_message() says which.
    EVERMAP_REFUSED = 3,
    /// There are no more pairs.
    EVERMAP_END = 4,
    /// An argument is wrong: NULL, a length beyond its limit, an unknown option.
    EVERMAP_ERR_INVALID = -1,
    /// There is no file, or no map of this name.
    EVERMAP_ERR_NOT_FOUND = -2,
    /// The disk, the file's capacity, a limit or memory is full. Nothing was changed.
    EVERMAP_ERR_NO_SPACE = -3,
    /// Something in the file does not verify.
    EVERMAP_ERR_DAMAGED = -4,
    /// The value is no counter, or the counter would overflow. Nothing was changed.
    EVERMAP_ERR_COUNTER = -5,
    /// The call would wait for values that this program holds: release them first. Nothing was
    /// done.
    EVERMAP_ERR_DEADLOCK = -6,
    /// Too much memory waits for values that are held. Nothing was changed.
    EVERMAP_ERR_HELD_UP = -7,
    /// The store was opened without the option `ordered`.
    EVERMAP_ERR_NOT_ORDERED = -8,
    /// The map was dropped.
    EVERMAP_ERR_DROPPED = -9,
    /// The snapshot has taken the memory that it may take.
    EVERMAP_ERR_TOO_OLD = -10,
    /// The store was closed.
    EVERMAP_ERR_CLOSED = -11,
    /// Another process has the file open, or this one has.
    EVERMAP_ERR_IN_USE = -12,
    /// The store was opened read-only, or is a snapshot. Nothing was changed.
    EVERMAP_ERR_READ_ONLY = -13,
    /// The file holds something else.
    EVERMAP_ERR_NOT_A_STORE = -14,
    /// The file was written by a later version of Evermap.
    EVERMAP_ERR_NEWER_FORMAT = -15,
    /// The file cannot be trusted after a crash of the machine: see the option `on_suspect`.
    EVERMAP_ERR_SUSPECT = -16,
    /// A setting cannot be met, or contradicts what the file was created with.
    EVERMAP_ERR_CONFIG = -17,
    /// The file system cannot keep the promise.
    EVERMAP_ERR_FILE_SYSTEM = -18,
    /// The operating system refused something.
    EVERMAP_ERR_IO = -19,
    /// A thread failed in the middle of a change. Opening the file again recovers the store.
    EVERMAP_ERR_POISONED = -20,
    /// This process was forked after the file was opened: it can read, and not write.
    EVERMAP_ERR_FORKED = -21,
    /// Another error.
    EVERMAP_ERR_OTHER = -22,
    /// A mistake in Evermap: please report the message. What was asked for may be done or not.
    EVERMAP_ERR_PANIC = -23,
}

use evermap_status::*;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Returns what the last call of this thread that returned an error, or EVERMAP_REFUSED, has to
/// say: a sentence in English. Valid until the next such call of this thread, or its end; not to
/// be freed. Empty if there was none. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn evermap_message() -> *const c_char {
    // Late in the end of a thread there is no message any more.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the name of a status, such as "EVERMAP_ERR_NO_SPACE", for logs. Not to be freed.
/// An unknown number is "unknown".
#[unsafe(no_mangle)]
pub extern "C" fn evermap_status_name(status: i32) -> *const c_char {
    let name = STATUSES.iter().find(|(known, _)| *known as i32 == status);
    name.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// Every status, with its name.
const STATUSES: [(evermap_status, &CStr); 28] = [
    (EVERMAP_OK, c"EVERMAP_OK"),
    (EVERMAP_ABSENT, c"EVERMAP_ABSENT"),
    (EVERMAP_KEPT, c"EVERMAP_KEPT"),
    (EVERMAP_REFUSED, c"EVERMAP_REFUSED"),
    (EVERMAP_END, c"EVERMAP_END"),
    (EVERMAP_ERR_INVALID, c"EVERMAP_ERR_INVALID"),
    (EVERMAP_ERR_NOT_FOUND, c"EVERMAP_ERR_NOT_FOUND"),
    (EVERMAP_ERR_NO_SPACE, c"EVERMAP_ERR_NO_SPACE"),
    (EVERMAP_ERR_DAMAGED, c"EVERMAP_ERR_DAMAGED"),
    (EVERMAP_ERR_COUNTER, c"EVERMAP_ERR_COUNTER"),
    (EVERMAP_ERR_DEADLOCK, c"EVERMAP_ERR_DEADLOCK"),
    (EVERMAP_ERR_HELD_UP, c"EVERMAP_ERR_HELD_UP"),
    (EVERMAP_ERR_NOT_ORDERED, c"EVERMAP_ERR_NOT_ORDERED"),
    (EVERMAP_ERR_DROPPED, c"EVERMAP_ERR_DROPPED"),
    (EVERMAP_ERR_TOO_OLD, c"EVERMAP_ERR_TOO_OLD"),
    (EVERMAP_ERR_CLOSED, c"EVERMAP_ERR_CLOSED"),
    (EVERMAP_ERR_IN_USE, c"EVERMAP_ERR_IN_USE"),
    (EVERMAP_ERR_READ_ONLY, c"EVERMAP_ERR_READ_ONLY"),
    (EVERMAP_ERR_NOT_A_STORE, c"EVERMAP_ERR_NOT_A_STORE"),
    (EVERMAP_ERR_NEWER_FORMAT, c"EVERMAP_ERR_NEWER_FORMAT"),
    (EVERMAP_ERR_SUSPECT, c"EVERMAP_ERR_SUSPECT"),
    (EVERMAP_ERR_CONFIG, c"EVERMAP_ERR_CONFIG"),
    (EVERMAP_ERR_FILE_SYSTEM, c"EVERMAP_ERR_FILE_SYSTEM"),
    (EVERMAP_ERR_IO, c"EVERMAP_ERR_IO"),
    (EVERMAP_ERR_POISONED, c"EVERMAP_ERR_POISONED"),
    (EVERMAP_ERR_FORKED, c"EVERMAP_ERR_FORKED"),
    (EVERMAP_ERR_OTHER, c"EVERMAP_ERR_OTHER"),
    (EVERMAP_ERR_PANIC, c"EVERMAP_ERR_PANIC"),
];

/// Notes what the calling thread is told by [`evermap_message`].
pub(crate) fn tell(message: &str) {
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // A thread that is ending is told nothing.
    let _ = MESSAGE.try_with(|last| *last.borrow_mut() = message);
}

/// Runs the body of a function that C calls. What fails is told, and a panic is an error.
pub(crate) fn call(body: impl FnOnce() -> Result<evermap_status, Fault>) -> evermap_status {
    // What a panic leaves behind: a store is poisoned if it was in the middle of a change, and
    // batches and cursors have no invariants that a part of a call could break.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(fault)) => {
            tell(&fault.to_string());
            status_of(&fault)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            tell(&format!("a mistake in Evermap, please report it: {text}"));
            EVERMAP_ERR_PANIC
        }
    }
}

/// Runs the body of a function that frees something, and so cannot fail.
pub(crate) fn free(body: impl FnOnce()) {
    call(|| {
        body();
        Ok(EVERMAP_OK)
    });
}

fn status_of(fault: &Fault) -> evermap_status {
    match fault.kind() {
        ErrorKind::InvalidInput | ErrorKind::Encoding => EVERMAP_ERR_INVALID,
        ErrorKind::NotFound => EVERMAP_ERR_NOT_FOUND,
        ErrorKind::NoSpace => EVERMAP_ERR_NO_SPACE,
        ErrorKind::Damaged => EVERMAP_ERR_DAMAGED,
        ErrorKind::Counter => EVERMAP_ERR_COUNTER,
        ErrorKind::WouldDeadlock => EVERMAP_ERR_DEADLOCK,
        ErrorKind::HeldUp => EVERMAP_ERR_HELD_UP,
        ErrorKind::NotOrdered => EVERMAP_ERR_NOT_ORDERED,
        ErrorKind::Dropped => EVERMAP_ERR_DROPPED,
        ErrorKind::SnapshotTooOld => EVERMAP_ERR_TOO_OLD,
        ErrorKind::Closed => EVERMAP_ERR_CLOSED,
        ErrorKind::InUse => EVERMAP_ERR_IN_USE,
        ErrorKind::ReadOnly => EVERMAP_ERR_READ_ONLY,
        ErrorKind::NotAStore => EVERMAP_ERR_NOT_A_STORE,
        ErrorKind::NewerFormat => EVERMAP_ERR_NEWER_FORMAT,
        ErrorKind::Suspect => EVERMAP_ERR_SUSPECT,
        ErrorKind::Config | ErrorKind::OtherIndex => EVERMAP_ERR_CONFIG,
        ErrorKind::FileSystem => EVERMAP_ERR_FILE_SYSTEM,
        ErrorKind::Io => EVERMAP_ERR_IO,
        ErrorKind::Poisoned => EVERMAP_ERR_POISONED,
        ErrorKind::Forked => EVERMAP_ERR_FORKED,
        _ => EVERMAP_ERR_OTHER,
    }
}
