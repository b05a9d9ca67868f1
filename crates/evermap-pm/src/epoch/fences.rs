//! The fence of all threads of this process at once, which the kernel executes on request.

// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Announces to the kernel that this process will use [`fence_all_threads`]. Returns `false` if the
/// kernel does not have such a fence, or a filter of system calls forbids it.
pub(crate) fn register_process_fence() -> bool {
    membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// Makes every thread of this process execute a full fence. Returns `false` if the kernel refuses,
/// because of a filter of system calls that was installed after [`register_process_fence`], or in a
/// forked child.
///
/// Interrupts each processor that runs a thread of this process: a few microseconds.
pub(crate) fn fence_all_threads() -> bool {
    membarrier(PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // The interpreter does not have it: guards execute fences themselves there.
    if cfg!(miri) {
        return false;
    }
    // SAFETY: this system call takes only numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
