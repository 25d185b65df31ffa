//! Keeps the process alive when a file is truncated while it is mapped. The system answers a read behind the
//! new end of the file with SIGBUS; the handler here maps pages of zeros in place of the lost ones and notes
//! that the mapping is damaged, so that readers continue and can check afterwards. Does not know the content
//! of files.

use std::ops::Range;

/// A mapping that may fault: registered while this value exists.
#[derive(Debug)]
pub(crate) struct Guard {
    #[cfg(unix)]
    region: &'static unix::Region,
}

impl Guard {
    /// Guards the mapping at these addresses.
    #[cfg(unix)]
    pub(crate) fn new(addresses: Range<usize>) -> Self {
        Self { region: unix::register(addresses) }
    }

    /// Does not guard: systems without this signal refuse to truncate a mapped file.
    #[cfg(not(unix))]
    pub(crate) fn new(_addresses: Range<usize>) -> Self {
        Self {}
    }

    /// Whether pages were replaced by zeros.
    pub(crate) fn is_damaged(&self) -> bool {
        #[cfg(unix)]
        return self.region.is_damaged();
        #[cfg(not(unix))]
        false
    }
}

#[cfg(unix)]
impl Drop for Guard {
    fn drop(&mut self) {
        self.region.give_back();
    }
}

#[cfg(unix)]
mod unix {
    use std::ops::Range;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
    use std::sync::{Mutex, Once, OnceLock, PoisonError};

    #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
    use libc::__errno as errno_location;
    #[cfg(not(any(
        target_vendor = "apple",
        target_os = "freebsd",
        target_os = "android",
        target_os = "netbsd",
        target_os = "openbsd"
    )))]
    use libc::__errno_location as errno_location;
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    use libc::__error as errno_location;

    /// A mapping. A region is never freed and never changes its addresses, since a handler may be reading it.
    /// A later mapping of the same addresses reuses it, which is the usual case; any other one costs another
    /// 50 bytes.
    #[derive(Debug)]
    pub(super) struct Region {
        addresses: Range<usize>,
        is_in_use: AtomicBool,
        damaged: AtomicBool,
        next: *mut Region,
    }

    // SAFETY: `next` is null or a leaked region, which is shared and never freed.
    unsafe impl Sync for Region {}

    /// The list that the handler walks.
    static REGIONS: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
    /// Lock for changes of the list.
    static CHANGING: Mutex<()> = Mutex::new(());
    /// The previous handler: that of the standard library, which detects overflown stacks.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn register(addresses: Range<usize>) -> &'static Region {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free =
            |region: &&Region| region.addresses == addresses && !region.is_in_use.load(Ordering::Relaxed);
        if let Some(region) = regions().find(is_free) {
            region.damaged.store(false, Ordering::Relaxed);
            region.is_in_use.store(true, Ordering::Release);
            return region;
        }
        let region: &'static Region = Box::leak(Box::new(Region {
            addresses,
            is_in_use: AtomicBool::new(true),
            damaged: AtomicBool::new(false),
            next: REGIONS.load(Ordering::Relaxed),
        }));
        REGIONS.store(ptr::from_ref(region).cast_mut(), Ordering::Release);
        region
    }

    impl Region {
        pub(super) fn is_damaged(&self) -> bool {
            self.damaged.load(Ordering::Relaxed)
        }

        pub(super) fn give_back(&self) {
            self.is_in_use.store(false, Ordering::Release);
        }
    }

    fn regions() -> impl Iterator<Item = &'static Region> {
        // SAFETY: the list holds leaked regions only, each fully made before it was stored with Release.
        let at = |region: *mut Region| unsafe { region.as_ref() };
        let first: Option<&'static Region> = at(REGIONS.load(Ordering::Acquire));
        std::iter::successors(first, move |region| at(region.next))
    }

    fn install() {
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_fault;
        // SAFETY: both structures are plain data for which zeros are valid; the handler has the signature
        // that SA_SIGINFO asks for and does only what a handler may (see there).
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
                return;
            }
            // Known before the first signal can come.
            let _ = BEFORE.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
        }
    }

    /// Runs on the thread that faulted, in the middle of any instruction: takes no lock and does not
    /// allocate.
    extern "C" fn on_bus_fault(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: the system passes a valid structure, which for this signal has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        let holds = |region: &&Region| {
            region.is_in_use.load(Ordering::Acquire) && region.addresses.contains(&address)
        };
        if let Some(region) = regions().find(holds)
            && replace(address, region.addresses.end)
        {
            region.damaged.store(true, Ordering::Relaxed);
            return;
        }
        // Not ours: who handled the signal before gets it, when the instruction faults again.
        // SAFETY: what was there before is a valid action; `sigaction` may be called in a handler.
        unsafe {
            match BEFORE.get() {
                Some(before) => libc::sigaction(libc::SIGBUS, before, ptr::null_mut()),
                None => libc::signal(libc::SIGBUS, libc::SIG_DFL) as libc::c_int,
            };
        }
    }

    /// Maps zeros in place of the pages from that of `address` on: the rest of the file is lost too.
    fn replace(address: usize, end: usize) -> bool {
        // SAFETY: `sysconf` has no conditions. The pages lie in a registered mapping, which is private and
        // read-only and stays one; its owner unmaps them all the same. `mmap` is a plain system call here.
        // The interrupted code may be about to read this thread's `errno`, so it is put back.
        unsafe {
            let errno = *errno_location();
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
            let start = address / page * page;
            let (flags, length) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, end - start);
            let zeros = libc::mmap(start as *mut libc::c_void, length, libc::PROT_READ, flags, -1, 0);
            *errno_location() = errno;
            zeros != libc::MAP_FAILED
        }
    }
}
