//! [`Nccl`]: an open `libnccl.so.2` with the fake GPU under it, and its calls. All `unsafe` of this crate is here.
//!
//! The calls are safe to write because of three rules. A communicator ([`Comm`]) is a cell that lives as long as the process and holds
//! null once it was destroyed, which NCCL answers with an error; so no handle dangles, and NCCL may write it after the call that
//! began it (a group, a nonblocking communicator). A communicator cannot leave the thread that made it. Buffers are NCCL's own and never
//! freed. What NCCL itself does wrong, on purpose in some scenarios, is why each worker is a process.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::script::{Config, DataType};

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[repr(transparent)]
pub struct Code(pub c_int);

impl Code {
    /// `ncclSuccess`.
    pub const SUCCESS: Code = Code(0);
    /// `ncclInvalidUsage`.
    pub const INVALID_USAGE: Code = Code(5);
    /// `ncclInProgress`.
    pub const IN_PROGRESS: Code = Code(7);

    /// This one, unless it is a success and `next` is not.
    pub fn and(self, next: impl FnOnce() -> Code) -> Code {
        if self == Code::SUCCESS || self == Code::IN_PROGRESS { next() } else { self }
    }
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// A communicator, or none yet, or none any more.
#[derive(Clone, Copy, Debug)]
pub struct Comm(&'static Cell<*mut c_void>);

impl Comm {
    fn empty() -> Self {
        Self(Box::leak(Box::new(Cell::new(ptr::null_mut()))))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_null(self) -> bool {
        self.0.get().is_null()
    }

    fn out(self) -> *mut *mut c_void {
        self.0.as_ptr()
    }
}

/// Memory that NCCL allocated, of `bytes`. It is kept until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    address: *mut c_void,
    /// Its size.
    pub bytes: u64,
}

/// What `ncclCommRegister` returned.
#[derive(Clone, Copy, Debug)]
pub struct Registration(*mut c_void);

/// `ncclConfig_t` as in 2.27. Newer ones append fields, and accept this size with this version.
#[repr(C)]
struct RawConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

impl RawConfig {
    fn new(config: &Config) -> Self {
        // The name must live as long as the communicator's creation, which may go on in the background.
        let name = config.name.as_ref().and_then(|name| CString::new(name.as_str()).ok());
        let number = |value: Option<i32>| value.unwrap_or(UNDEFINED);
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 22_700,
            blocking: number(config.blocking.map(i32::from)),
            cga_cluster_size: UNDEFINED,
            min_ctas: number(config.min_ctas),
            max_ctas: number(config.max_ctas),
            net_name: ptr::null(),
            split_share: number(config.split_share.map(i32::from)),
            traffic_class: UNDEFINED,
            comm_name: name.map_or(ptr::null(), |name| name.into_raw().cast_const()),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
        }
    }
}

/// `ncclSimInfo_t`, of 2.22.
#[repr(C)]
struct SimInfo {
    size: usize,
    magic: c_uint,
    version: c_uint,
    estimated_time: f32,
}

type Raw = *mut c_void;
type Collective5 = unsafe extern "C" fn(*const c_void, Raw, usize, c_int, Raw, Raw) -> Code;
type Reduction = unsafe extern "C" fn(*const c_void, Raw, usize, c_int, c_int, Raw, Raw) -> Code;
type Rooted = unsafe extern "C" fn(*const c_void, Raw, usize, c_int, c_int, c_int, Raw, Raw) -> Code;

/// The table of functions: a field for each, found when the library is opened. One with `?` may be missing in older releases.
macro_rules! functions {
    ($($name:ident: $type:ty,)* ? $($optional:ident: $optional_type:ty,)*) => {
        #[expect(non_snake_case, reason = "the names of nccl.h")]
        struct Functions { $($name: $type,)* $($optional: Option<$optional_type>,)* }

        impl Functions {
            /// # Safety
            /// The library is NCCL 2.27 or newer: its functions have the types of nccl.h.
            unsafe fn find(library: &Library) -> Result<Self> {
                // SAFETY: the caller's promise.
                unsafe {
                    Ok(Self {
                        $($name: *symbol(library, stringify!($name))?,)*
                        $($optional: symbol(library, stringify!($optional)).ok().map(|found| *found),)*
                    })
                }
            }
        }
    };
}

functions! {
    ncclGetVersion: unsafe extern "C" fn(*mut c_int) -> Code,
    ncclGetUniqueId: unsafe extern "C" fn(*mut UniqueId) -> Code,
    ncclGetErrorString: unsafe extern "C" fn(Code) -> *const c_char,
    ncclGetLastError: unsafe extern "C" fn(Raw) -> *const c_char,
    ncclCommInitAll: unsafe extern "C" fn(*mut Raw, c_int, *const c_int) -> Code,
    ncclCommInitRankConfig: unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int, *mut RawConfig) -> Code,
    ncclCommSplit: unsafe extern "C" fn(Raw, c_int, c_int, *mut Raw, *mut RawConfig) -> Code,
    ncclCommFinalize: unsafe extern "C" fn(Raw) -> Code,
    ncclCommDestroy: unsafe extern "C" fn(Raw) -> Code,
    ncclCommAbort: unsafe extern "C" fn(Raw) -> Code,
    ncclCommCount: unsafe extern "C" fn(Raw, *mut c_int) -> Code,
    ncclCommUserRank: unsafe extern "C" fn(Raw, *mut c_int) -> Code,
    ncclCommCuDevice: unsafe extern "C" fn(Raw, *mut c_int) -> Code,
    ncclCommGetAsyncError: unsafe extern "C" fn(Raw, *mut Code) -> Code,
    ncclCommRegister: unsafe extern "C" fn(Raw, Raw, usize, *mut Raw) -> Code,
    ncclCommDeregister: unsafe extern "C" fn(Raw, Raw) -> Code,
    ncclMemAlloc: unsafe extern "C" fn(*mut Raw, usize) -> Code,
    ncclGroupStart: unsafe extern "C" fn() -> Code,
    ncclGroupEnd: unsafe extern "C" fn() -> Code,
    ncclGroupSimulateEnd: unsafe extern "C" fn(*mut SimInfo) -> Code,
    ncclAllReduce: Reduction,
    ncclReduceScatter: Reduction,
    ncclReduce: Rooted,
    ncclAllGather: Collective5,
    ncclBroadcast: Reduction,
    ncclSend: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Raw, Raw) -> Code,
    ncclRecv: unsafe extern "C" fn(Raw, usize, c_int, c_int, Raw, Raw) -> Code,
    ?
    ncclAlltoAll: Collective5,
}

/// # Safety
/// The symbol has type `T`.
unsafe fn symbol<T>(library: &Library, name: &str) -> Result<Symbol<T>> {
    // SAFETY: the caller's promise.
    unsafe { library.get(name.as_bytes()) }.with_context(|| format!("the library has no {name}"))
}

/// An open NCCL.
pub struct Nccl {
    call: Functions,
    set_device: unsafe extern "C" fn(c_int) -> c_int,
}

/// What a call of a collective carries.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Read from.
    pub send: Buffer,
    /// Written to.
    pub recv: Buffer,
    /// Elements, as the call counts them.
    pub count: u64,
    /// The element.
    pub data_type: DataType,
    /// For those that have a root.
    pub root: i32,
}

/// `ncclSum`.
const SUM: c_int = 0;
/// The default stream.
const STREAM: Raw = ptr::null_mut();

impl Nccl {
    /// Opens the library and redirects the CUDA runtime in it. Both stay open until the process ends.
    ///
    /// # Errors
    /// One of the two cannot be opened, lacks a function, or the runtime could not be taken over.
    pub fn open(library: &Path, fakegpu: &Path) -> Result<Self> {
        let open = |path: &Path, flags| {
            // SAFETY: initialisers of NCCL and of our own fakegpu only set up their own data.
            unsafe { Library::open(Some(path), RTLD_NOW | flags) }
                .with_context(|| format!("{}", path.display()))
        };
        let nccl = open(library, RTLD_LOCAL)?;
        let fake = open(fakegpu, RTLD_GLOBAL)?;
        // SAFETY: the types are those of fakegpu (attach.c); nothing of NCCL has run yet, as fakegpu_attach demands.
        let (attach, set_device) = unsafe {
            let attach: Symbol<unsafe extern "C" fn() -> c_int> = symbol(&fake, "fakegpu_attach")?;
            let set_device: Symbol<unsafe extern "C" fn(c_int) -> c_int> =
                symbol(&fake, "fakegpu_set_device")?;
            (*attach, *set_device)
        };
        // SAFETY: as above.
        let answered = unsafe { attach() };
        ensure!(answered > 0, "fakegpu found no CUDA runtime to take over in {}", library.display());
        // SAFETY: `library` is an NCCL; one without the functions is refused.
        let call = unsafe { Functions::find(&nccl)? };
        // Never closed: communicators, and code that fakegpu patched, refer to them.
        std::mem::forget((nccl, fake));
        Ok(Self { call, set_device })
    }

    /// `ncclGetVersion`.
    pub fn version(&self) -> (Code, i32) {
        let mut version = 0;
        // SAFETY: an out-pointer for the time of the call.
        (unsafe { (self.call.ncclGetVersion)(&raw mut version) }, version)
    }

    /// `ncclGetErrorString` and `ncclGetLastError`.
    #[must_use]
    pub fn describe(&self, code: Code) -> String {
        // SAFETY: both return null or text that lives in NCCL; the last error is this thread's, without a communicator.
        let texts =
            unsafe { [(self.call.ncclGetErrorString)(code), (self.call.ncclGetLastError)(ptr::null_mut())] };
        // SAFETY: as above, and copied before another call.
        let text =
            |at: *const c_char| (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy());
        texts.into_iter().filter_map(text).filter(|t| !t.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// `cudaSetDevice`, for this thread.
    #[must_use]
    pub fn set_device(&self, device: i32) -> bool {
        // SAFETY: checks its argument.
        unsafe { (self.set_device)(device) == 0 }
    }

    /// `ncclGetUniqueId`.
    pub fn unique_id(&self) -> (Code, UniqueId) {
        let mut id = UniqueId([0; 128]);
        // SAFETY: an out-pointer for the time of the call.
        (unsafe { (self.call.ncclGetUniqueId)(&raw mut id) }, id)
    }

    /// `ncclCommInitAll` on devices 0, 1, ...
    pub fn init_all(&self, ranks: u32) -> (Code, Vec<Comm>) {
        let devices: Vec<c_int> = (0..ranks.cast_signed()).collect();
        let mut raw = vec![ptr::null_mut(); devices.len()];
        // SAFETY: NCCL writes `ranks` handles before it returns, since the communicators are blocking.
        let code = unsafe {
            (self.call.ncclCommInitAll)(raw.as_mut_ptr(), devices.len() as c_int, devices.as_ptr())
        };
        let comms = raw.into_iter().map(|handle| {
            let comm = Comm::empty();
            comm.0.set(if code == Code::SUCCESS { handle } else { ptr::null_mut() });
            comm
        });
        (code, comms.collect())
    }

    /// `ncclCommInitRankConfig`.
    pub fn init_rank(&self, ranks: u32, id: UniqueId, rank: u32, config: &Config) -> (Code, Comm) {
        let comm = Comm::empty();
        let mut config = RawConfig::new(config);
        let (ranks, rank) = (ranks.cast_signed(), rank.cast_signed());
        // SAFETY: the cell lives as long as the process; NCCL copies the configuration during the call.
        (unsafe { (self.call.ncclCommInitRankConfig)(comm.out(), ranks, id, rank, &raw mut config) }, comm)
    }

    /// `ncclCommSplit`; `key` orders the ranks.
    pub fn split(&self, parent: Comm, color: i32, key: i32, config: &Config) -> (Code, Comm) {
        let comm = Comm::empty();
        let mut config = RawConfig::new(config);
        // SAFETY: as for `init_rank`.
        (unsafe { (self.call.ncclCommSplit)(parent.0.get(), color, key, comm.out(), &raw mut config) }, comm)
    }

    /// `ncclCommFinalize`.
    pub fn finalize(&self, comm: Comm) -> Code {
        // SAFETY: a live handle or null.
        unsafe { (self.call.ncclCommFinalize)(comm.0.get()) }
    }

    /// `ncclCommDestroy`. The handle is null afterwards.
    pub fn destroy(&self, comm: Comm) -> Code {
        // SAFETY: a live handle or null, given up here.
        unsafe { (self.call.ncclCommDestroy)(comm.0.replace(ptr::null_mut())) }
    }

    /// `ncclCommAbort`. The handle is null afterwards.
    pub fn abort(&self, comm: Comm) -> Code {
        // SAFETY: a live handle or null, given up here.
        unsafe { (self.call.ncclCommAbort)(comm.0.replace(ptr::null_mut())) }
    }

    /// `ncclCommGetAsyncError`.
    pub fn async_error(&self, comm: Comm) -> (Code, Code) {
        let mut state = Code::SUCCESS;
        // SAFETY: a live handle or null; an out-pointer for the time of the call.
        (unsafe { (self.call.ncclCommGetAsyncError)(comm.0.get(), &raw mut state) }, state)
    }

    /// `ncclCommCount`, `ncclCommUserRank`, `ncclCommCuDevice`.
    pub fn place(&self, comm: Comm) -> (Code, [i32; 3]) {
        let mut place = [-1; 3];
        let [count, rank, device] = &mut place;
        // SAFETY: a live handle or null; out-pointers for the time of the calls.
        let code = unsafe {
            (self.call.ncclCommCount)(comm.0.get(), count)
                .and(|| (self.call.ncclCommUserRank)(comm.0.get(), rank))
                .and(|| (self.call.ncclCommCuDevice)(comm.0.get(), device))
        };
        (code, place)
    }

    /// `ncclMemAlloc`.
    pub fn allocate(&self, bytes: u64) -> (Code, Buffer) {
        let mut buffer = Buffer { address: ptr::null_mut(), bytes };
        // SAFETY: an out-pointer for the time of the call.
        let code = unsafe { (self.call.ncclMemAlloc)(&raw mut buffer.address, bytes as usize) };
        (code, buffer)
    }

    /// `ncclCommRegister` of a whole buffer.
    pub fn register(&self, comm: Comm, buffer: Buffer) -> (Code, Registration) {
        let mut handle = ptr::null_mut();
        let out = &raw mut handle;
        // SAFETY: a live handle or null; a buffer of that size that is never freed.
        let code =
            unsafe { (self.call.ncclCommRegister)(comm.0.get(), buffer.address, buffer.bytes as usize, out) };
        (code, Registration(handle))
    }

    /// `ncclCommDeregister`.
    pub fn deregister(&self, comm: Comm, registration: Registration) -> Code {
        // SAFETY: a live handle or null; a registration of it, which is used once.
        unsafe { (self.call.ncclCommDeregister)(comm.0.get(), registration.0) }
    }

    /// `ncclGroupStart`.
    pub fn group_start(&self) -> Code {
        // SAFETY: no arguments.
        unsafe { (self.call.ncclGroupStart)() }
    }

    /// `ncclGroupEnd`.
    pub fn group_end(&self) -> Code {
        // SAFETY: no arguments; all that the group's calls were given still lives.
        unsafe { (self.call.ncclGroupEnd)() }
    }

    /// `ncclGroupSimulateEnd`, and the time in microseconds that it estimates.
    pub fn group_simulate_end(&self) -> (Code, f32) {
        let size = size_of::<SimInfo>();
        let mut info = SimInfo { size, magic: 0x7468_5283, version: 22_200, estimated_time: -1.0 };
        // SAFETY: an out-pointer for the time of the call, of the size that it states.
        (unsafe { (self.call.ncclGroupSimulateEnd)(&raw mut info) }, info.estimated_time)
    }
}

/// The collectives. SAFETY of all: a live handle or null, and buffers that are never freed; the fake GPU
/// moves no data, so their content does not matter.
impl Nccl {
    /// `ncclAllReduce` (sum).
    pub fn all_reduce(&self, comm: Comm, o: &Operands) -> Code {
        self.reduction(self.call.ncclAllReduce, comm, o, SUM)
    }

    /// `ncclReduceScatter` (sum).
    pub fn reduce_scatter(&self, comm: Comm, o: &Operands) -> Code {
        self.reduction(self.call.ncclReduceScatter, comm, o, SUM)
    }

    /// `ncclBroadcast`.
    pub fn broadcast(&self, comm: Comm, o: &Operands) -> Code {
        self.reduction(self.call.ncclBroadcast, comm, o, o.root)
    }

    /// Those that have one number (an operation or a root) between data type and communicator.
    fn reduction(&self, call: Reduction, comm: Comm, o: &Operands, number: c_int) -> Code {
        let (count, kind) = (o.count as usize, o.data_type.number());
        // SAFETY: see above.
        unsafe { call(o.send.address, o.recv.address, count, kind, number, comm.0.get(), STREAM) }
    }

    /// `ncclReduce` (sum).
    pub fn reduce(&self, comm: Comm, o: &Operands) -> Code {
        let (count, kind) = (o.count as usize, o.data_type.number());
        let (send, recv) = (o.send.address, o.recv.address);
        // SAFETY: see above.
        unsafe { (self.call.ncclReduce)(send, recv, count, kind, SUM, o.root, comm.0.get(), STREAM) }
    }

    /// `ncclAllGather`.
    pub fn all_gather(&self, comm: Comm, o: &Operands) -> Code {
        let (count, kind) = (o.count as usize, o.data_type.number());
        let (send, recv) = (o.send.address, o.recv.address);
        // SAFETY: see above.
        unsafe { (self.call.ncclAllGather)(send, recv, count, kind, comm.0.get(), STREAM) }
    }

    /// `ncclAlltoAll`, if this NCCL has it; else invalid usage.
    pub fn all_to_all(&self, comm: Comm, o: &Operands) -> Code {
        let (count, kind) = (o.count as usize, o.data_type.number());
        let (send, recv) = (o.send.address, o.recv.address);
        // SAFETY: see above.
        self.call.ncclAlltoAll.map_or(Code::INVALID_USAGE, |call| unsafe {
            call(send, recv, count, kind, comm.0.get(), STREAM)
        })
    }

    /// `ncclSend` to one rank and `ncclRecv` from another. They belong into one group.
    pub fn send_recv(&self, comm: Comm, o: &Operands, to: i32, from: i32) -> Code {
        let (count, kind) = (o.count as usize, o.data_type.number());
        // SAFETY: see above.
        unsafe {
            (self.call.ncclSend)(o.send.address, count, kind, to, comm.0.get(), STREAM)
                .and(|| (self.call.ncclRecv)(o.recv.address, count, kind, from, comm.0.get(), STREAM))
        }
    }
}

/// Lets the kernel end this process when the thread that started it ends: no worker outlives a test that was killed.
pub fn die_with_parent() {
    // SAFETY: takes two numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
