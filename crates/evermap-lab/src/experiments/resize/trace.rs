//! What a piece of code does, instruction by instruction.
//!
//! The processor is made to stop after each instruction of the calling thread, and the registers
//! are noted there. From them and the code follows every access to memory. So this counts what the
//! compiled program does, not what its source suggests, and it needs no counters of the processor,
//! which virtual machines often do not have.

use std::collections::HashMap;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What was executed.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    /// How many pieces of code this is the sum of.
    pub(super) pieces: u64,
    pub(super) instructions: u64,
    /// Instructions that lock a line, and fences.
    pub(super) locked: u64,
    /// Distinct lines that were read, outside of the thread's stack, summed over the pieces.
    pub(super) lines_read: u64,
    /// How often each line outside of the thread's stack was written.
    pub(super) writes: HashMap<u64, u64>,
    /// How often each line was read.
    pub(super) reads: HashMap<u64, u64>,
}

impl Trace {
    /// Adds what another piece did.
    pub(super) fn add(&mut self, other: Trace) {
        self.pieces += other.pieces;
        self.instructions += other.instructions;
        self.locked += other.locked;
        self.lines_read += other.lines_read;
        for (line, count) in other.writes {
            *self.writes.entry(line).or_default() += count;
        }
        for (line, count) in other.reads {
            *self.reads.entry(line).or_default() += count;
        }
    }

    /// Returns the number of stores outside of the stack for a piece.
    pub(super) fn stores(&self) -> f64 {
        self.per_piece(self.writes.values().sum())
    }

    /// Returns the number of stores for a piece to lines that another thread reads or writes when
    /// it does the same.
    pub(super) fn shared_stores(&self, other: &Trace) -> f64 {
        let shared = |line| other.writes.contains_key(line) || other.reads.contains_key(line);
        let shared = self.writes.iter().filter(|(line, _)| shared(line));
        self.per_piece(shared.map(|(_, count)| count).sum())
    }

    pub(super) fn per_piece(&self, count: u64) -> f64 {
        count as f64 / self.pieces.max(1) as f64
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use x86::of;

/// Cannot trace on this processor.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn of<R>(_code: impl FnOnce() -> R) -> Option<Trace> {
    None
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86 {
    use std::arch::asm;
    use std::cell::UnsafeCell;
    use std::collections::{HashMap, HashSet};
    use std::fs::File;
    use std::hint::black_box;
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;
    use std::ptr;
    use std::sync::{Mutex, PoisonError};

    use iced_x86::{
        Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
        Register, UsedMemory,
    };

    use super::{LINE, Trace};

    /// The most instructions that are noted.
    const MOST: usize = 1 << 16;
    /// The trap flag.
    const TRAP: libc::greg_t = 1 << 8;

    /// The registers before an instruction.
    type Registers = [u64; 17];

    /// In the order of [`Registers`]; the last one is that of the instruction.
    const ORDER: [libc::c_int; 17] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
        libc::REG_RIP,
    ];
    const PLACE: usize = 16;

    struct Notes {
        len: usize,
        /// Whether there were more.
        full: bool,
        steps: [Registers; MOST],
    }

    struct Shared(UnsafeCell<Notes>);

    // SAFETY: only the thread that holds `TRACING` uses it, or its signal handler.
    unsafe impl Sync for Shared {}

    static NOTES: Shared =
        Shared(UnsafeCell::new(Notes { len: 0, full: false, steps: [[0; 17]; MOST] }));
    /// Held by the thread that traces.
    static TRACING: Mutex<()> = Mutex::new(());

    /// Notes the registers. The kernel calls this after each instruction, on the thread that
    /// executed it.
    extern "C" fn on_trap(
        _signal: libc::c_int,
        _info: *mut libc::siginfo_t,
        context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel passes a context that is valid until this returns, because the handler
        // was installed with `SA_SIGINFO`. The notes are this thread's: it holds `TRACING`, and
        // does not use them while the trap flag is set.
        let (registers, notes) = unsafe {
            let context = &mut *context.cast::<libc::ucontext_t>();
            (&mut context.uc_mcontext.gregs, &mut *NOTES.0.get())
        };
        if notes.len == MOST {
            notes.full = true;
            registers[libc::REG_EFL as usize] &= !TRAP;
            return;
        }
        notes.steps[notes.len] = ORDER.map(|register| registers[register as usize] as u64);
        notes.len += 1;
    }

    /// Executes `code` instruction by instruction. Returns `None` if it is too long, or the system
    /// does not allow it.
    pub(in super::super) fn of<R>(code: impl FnOnce() -> R) -> Option<Trace> {
        let _tracing = TRACING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = install()?;
        // SAFETY: this thread holds `TRACING`, and no trap happens yet.
        unsafe {
            let notes = &mut *NOTES.0.get();
            (notes.len, notes.full) = (0, false);
        }
        // SAFETY: they change the trap flag only, for which a handler is installed, and leave the
        // stack as it was.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        let result = black_box(code());
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        drop(result);
        // SAFETY: `before` is what `sigaction` has returned.
        unsafe { libc::sigaction(libc::SIGTRAP, &before, ptr::null_mut()) };
        // SAFETY: this thread holds `TRACING`, and no trap happens any more.
        let notes = unsafe { &*NOTES.0.get() };
        if notes.full { None } else { analyze(&notes.steps[..notes.len]) }
    }

    /// Installs the handler, and returns the one before it.
    fn install() -> Option<libc::sigaction> {
        // SAFETY: a zeroed structure has no flags and an empty mask. The handler only uses what its
        // thread owns, and calls nothing that a signal handler must not call.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut before = MaybeUninit::uninit();
            let done = libc::sigaction(libc::SIGTRAP, &action, before.as_mut_ptr());
            (done == 0).then(|| before.assume_init())
        }
    }

    /// Counts what was executed, but for the instructions that clear the trap flag.
    fn analyze(steps: &[Registers]) -> Option<Trace> {
        let (memory, mut known) = (File::open("/proc/self/mem").ok()?, HashMap::new());
        // In the ABI of Linux, the identity of a thread is the base of its own segment.
        // SAFETY: may always be called.
        let own_segment = unsafe { libc::pthread_self() } as u64;
        let stack = own_stack()?;
        let mut trace = Trace { pieces: 1, ..Trace::default() };
        let (mut factory, mut lines) = (InstructionInfoFactory::new(), HashSet::new());
        for registers in steps {
            let place = registers[PLACE];
            let instruction = known.entry(place).or_insert_with(|| decode(&memory, place));
            trace.instructions += 1;
            trace.locked += u64::from(locks(instruction));
            for used in factory.info(instruction).used_memory() {
                let Some(address) = address(used, registers, own_segment) else { continue };
                if stack.contains(&address) {
                    continue;
                }
                let (reads, writes) = accesses(used.access());
                let last = address + (used.memory_size().size() as u64).max(1) - 1;
                for line in address / LINE..=last / LINE {
                    if writes {
                        *trace.writes.entry(line).or_default() += 1;
                    }
                    if reads {
                        *trace.reads.entry(line).or_default() += 1;
                        lines.insert(line);
                    }
                }
            }
        }
        trace.lines_read = lines.len() as u64;
        Some(trace)
    }

    /// Returns the addresses of the calling thread's stack. What lies beside it may be shared: the
    /// system puts mappings of all kinds next to each other.
    fn own_stack() -> Option<Range<u64>> {
        let mut attributes = MaybeUninit::uninit();
        let (mut start, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: the attributes are read, and destroyed, only if they have been initialized.
        let done = unsafe {
            libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
                let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut bytes);
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                got == 0
            }
        };
        done.then(|| start as u64..start as u64 + bytes as u64)
    }

    fn decode(memory: &File, place: u64) -> Instruction {
        let mut code = [0; 16];
        // What cannot be read, behind the last page, is no part of the instruction.
        let _ = memory.read_at(&mut code, place);
        Decoder::with_ip(64, &code, place, DecoderOptions::NONE).decode()
    }

    /// Returns `true` for an instruction that has a line to itself, or waits for stores.
    fn locks(instruction: &Instruction) -> bool {
        let in_memory =
            (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
        instruction.has_lock_prefix()
            || instruction.mnemonic() == Mnemonic::Xchg && in_memory
            || instruction.mnemonic() == Mnemonic::Mfence
    }

    fn address(used: &UsedMemory, registers: &Registers, own_segment: u64) -> Option<u64> {
        used.virtual_address(0, |register, _, _| match register {
            Register::FS => Some(own_segment),
            _ if register.is_segment_register() => Some(0),
            _ if register.is_gpr() => {
                let value = registers[register.full_register().number()];
                Some(if register.size() == 4 { value & u64::from(u32::MAX) } else { value })
            }
            _ => None,
        })
    }

    /// Returns whether memory is read, and whether it is written.
    fn accesses(access: OpAccess) -> (bool, bool) {
        match access {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write | OpAccess::CondWrite => (false, true),
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
            _ => (false, false),
        }
    }

    #[cfg(test)]
    mod tests {
        use std::sync::RwLock;
        use std::sync::atomic::Ordering::{Relaxed, SeqCst};
        use std::sync::atomic::{AtomicU64, fence};

        use super::*;

        fn line(of: &AtomicU64) -> u64 {
            ptr::from_ref(of).addr() as u64 / LINE
        }

        #[test]
        fn stores_and_locks_are_told_apart() {
            let word = Box::new(AtomicU64::new(1));
            let stored = of(|| word.store(5, Relaxed)).unwrap();
            assert_eq!((stored.writes.get(&line(&word)), stored.locked), (Some(&1), 0));
            let loaded = of(|| word.load(Relaxed)).unwrap();
            assert_eq!((loaded.writes.len(), loaded.locked), (0, 0));
            assert_eq!(loaded.reads.get(&line(&word)), Some(&1));
            let added = of(|| word.fetch_add(1, Relaxed)).unwrap();
            assert_eq!((added.writes.get(&line(&word)), added.locked), (Some(&1), 1));
            let swapped = of(|| word.swap(9, Relaxed)).unwrap();
            assert_eq!((swapped.writes.get(&line(&word)), swapped.locked), (Some(&1), 1));
            assert_eq!(of(|| fence(SeqCst)).unwrap().locked, 1);
            assert_eq!(word.load(Relaxed), 9);
        }

        #[test]
        fn a_lock_is_shared_and_the_stack_is_not() {
            let lock = Box::new(RwLock::new(3));
            let mut one = of(|| *lock.read().unwrap()).unwrap();
            let other = std::thread::scope(|threads| {
                threads.spawn(|| of(|| *lock.read().unwrap()).unwrap()).join().unwrap()
            });
            assert_eq!((one.locked, one.shared_stores(&other)), (2, 2.0));
            one.add(one.clone());
            assert_eq!((one.pieces, one.shared_stores(&other)), (2, 2.0));
            let local = of(|| black_box([1u64; 100]).iter().sum::<u64>()).unwrap();
            assert_eq!(local.stores(), 0.0);
            assert!(local.instructions > 10);
        }

        #[test]
        fn what_is_too_long_has_no_result() {
            assert!(of(|| (0..100_000u64).fold(0, |sum, one| black_box(sum + one))).is_none());
        }
    }
}
