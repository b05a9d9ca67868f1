//! Threads that take turns on one thread of the system, each with a stack of its own. To change
//! between them takes a fraction of a microsecond, however busy the machine is.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::mem::MaybeUninit;
use std::rc::Rc;

use libc::{getcontext, makecontext, swapcontext, ucontext_t};

const STACK_BYTES: usize = 256 << 10;

/// The stacks of fibers, which the next ones use again.
#[derive(Default)]
pub(super) struct Stacks(Vec<Box<[MaybeUninit<u8>]>>);

type Body = Box<dyn FnOnce()>;

/// Fibers, and the one that runs.
pub(super) struct Fibers {
    /// The last one is that of the thread itself.
    contexts: Box<[UnsafeCell<ucontext_t>]>,
    /// Those that have not begun.
    bodies: RefCell<Vec<Option<Body>>>,
    current: Cell<usize>,
}

thread_local! {
    static FIBERS: RefCell<Option<Rc<Fibers>>> = const { RefCell::new(None) };
}

/// Runs a fiber from its beginning. What its body returns to is never reached: the body ends by
/// switching to another one.
extern "C" fn begin() {
    let fibers = FIBERS.with_borrow(Clone::clone).expect("a fiber runs");
    let body = fibers.bodies.borrow_mut()[fibers.current.get()].take();
    drop(fibers);
    body.expect("it begins once")();
    unreachable!("a fiber ends by a switch");
}

impl Fibers {
    /// Runs `bodies`, from the one with number `first` on, until one switches to the number of
    /// bodies. Each must end by a switch, and never panic.
    pub(super) fn run<'env>(
        stacks: &mut Stacks,
        bodies: Vec<Box<dyn FnOnce() + 'env>>,
        first: usize,
    ) {
        let count = bodies.len();
        // SAFETY: all bodies have ended when this returns, because the caller's fibers switch back
        // only then.
        let bodies: Vec<Body> = unsafe { std::mem::transmute(bodies) };
        // SAFETY: every bit pattern is a context; `getcontext` fills in each before it is used.
        let context = || UnsafeCell::new(unsafe { std::mem::zeroed() });
        let fibers = Rc::new(Fibers {
            contexts: (0..=count).map(|_| context()).collect(),
            bodies: RefCell::new(bodies.into_iter().map(Some).collect()),
            current: Cell::new(count),
        });
        while stacks.0.len() < count {
            stacks.0.push(Box::new_uninit_slice(STACK_BYTES));
        }
        for (context, stack) in fibers.contexts.iter().zip(&mut stacks.0).take(count) {
            let context = context.get();
            // SAFETY: the context and its stack exist until this function returns, and nothing else
            // uses the stack.
            unsafe {
                getcontext(context);
                (*context).uc_stack.ss_sp = stack.as_mut_ptr().cast();
                (*context).uc_stack.ss_size = STACK_BYTES;
                (*context).uc_link = std::ptr::null_mut();
                makecontext(context, begin, 0);
            }
        }
        FIBERS.set(Some(fibers.clone()));
        fibers.switch(first);
        FIBERS.set(None);
    }

    /// Goes on with another fiber. Returns when one switches to this one.
    fn switch(&self, next: usize) {
        let from = self.current.replace(next);
        if from != next {
            // SAFETY: both contexts are those of fibers that run or wait here, and exist until
            // `run` returns, which is after all have ended.
            unsafe { swapcontext(self.contexts[from].get(), self.contexts[next].get()) };
        }
    }
}

/// Goes on with another fiber.
pub(super) fn switch(next: usize) {
    let fibers = FIBERS.with_borrow(|fibers| fibers.as_ref().map(Rc::as_ptr));
    // SAFETY: `run` keeps it until all fibers have ended. A fiber that is never switched to again
    // would keep a counted reference forever.
    unsafe { &*fibers.expect("a fiber runs") }.switch(next);
}

/// Returns the number of the fiber that runs, if one does.
pub(super) fn current() -> Option<usize> {
    FIBERS.with_borrow(|fibers| fibers.as_ref().map(|fibers| fibers.current.get()))
}
