//! Memory that hosts have in common.

use std::ffi::{c_char, c_void};
use std::mem::size_of;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farpage_client::cluster::{Consistency, Scheduler, Wanted};
use farpage_client::{Access, Host};
use farpage_host::{CallError, Object};
use farpage_membership::ControlError;
use farpage_server::joined::{Joining, Member};
use farpage_server::{HaveError, OpenError, Unreleased, Wish, element_bytes};
use farpage_sys::copy;
use serde_json::{Value, json};

use crate::error::{
    FP_ARGUMENT, FP_DENIED, FP_KERNEL, FP_NOT_FOUND, FP_UNREACHABLE, FP_UNSUPPORTED, Failure,
    FpError, bytes_at, bytes_at_mut, call, coded, handle, text,
};
use crate::locks::{self, Held};
use crate::options::copy_known;
use crate::sync::limit;

/// The host that wrote to a page last decides of it.
pub const FP_DISTRIBUTED: u32 = 0;
/// The host on which the memory was made decides of all of it, and takes it with it.
pub const FP_SIMPLE: u32 = 1;

/// What a host writes others see at once.
pub const FP_STRICT: u32 = 0;
/// Several hosts may write to different parts of a page, and see what others wrote when those have
/// released it and they have acquired it (fp_shared_release, fp_shared_acquire, locks and barriers).
pub const FP_RELEASE: u32 = 1;

/// Memory of a member, unless it is said.
const RAM: u64 = 64 << 20;
/// Bytes of a page that goes between hosts, unless it is said.
const PAGE: u64 = 4096;
/// Bytes that are copied at a time from and to what is mapped.
const PART: usize = 1 << 20;

/// How a program joins a cluster. Set all to 0, then `size`; 0 and NULL mean the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpJoin {
    /// sizeof(fp_join).
    pub size: usize,
    /// Where other hosts reach this one, "10.0.0.7" or "10.0.0.7:7661"; NULL: the address from which
    /// the store is reached, at any free port.
    pub address: *const c_char,
    /// What this host is called in lists; NULL: its host name.
    pub name: *const c_char,
    /// Bytes of memory for what this program has of shared memory, 4 MiB or more, half of it for
    /// compressed pages; 0: 64 MiB.
    pub ram_bytes: u64,
}

/// Which shared memory is made. Set all to 0, then `size`; 0 and NULL mean the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpSharedOptions {
    /// sizeof(fp_shared_options).
    pub size: usize,
    /// Type of its elements, as NumPy calls it: "f8", "i4", "u1"; or a whole `descr` of records as
    /// JSON: [["id", "<i4"], ["", "|V4"], ["at", "<f8", [3]]]. On each host numbers are in the byte
    /// order of that host. NULL: bytes.
    pub dtype: *const c_char,
    /// How many elements it has in each dimension.
    pub shape: *const u64,
    /// How many dimensions.
    pub dimensions: usize,
    /// Bytes that go from host to host together: a power of two, 4096 to 2 MiB; 0: 4096.
    pub page_bytes: u64,
    /// FP_DISTRIBUTED or FP_SIMPLE.
    pub scheduler: u32,
    /// On how many hosts is what others have seen: 1 or 2; 0: 1.
    pub replicas: u32,
    /// Not 0: it stays until its name is taken away.
    pub stays: u32,
    /// Not 0: it is for a heap (fp_heap_open_shared) whose blocks are elements of this type, so that
    /// hosts of the other byte order read and write them as theirs. A dtype of 1, 2, 4, 8 or 16 bytes.
    pub heap: u32,
    /// Where what fp_shared_flush flushes is kept, beside a journal: a file of this host, from which it
    /// has its contents, and which is made when there is none. NULL: nowhere. Only without a cluster that
    /// this program has joined.
    pub file: *const c_char,
    /// FP_STRICT or FP_RELEASE.
    pub consistency: u32,
}

/// A program as a host of a cluster.
pub struct FpCluster(Arc<Member>);

/// Memory that hosts have in common.
pub struct FpShared(Where);

enum Where {
    /// Mapped, by way of the host kernel.
    Mapped(farpage_client::Shared),
    /// Of a member; used by calls.
    Called {
        member: Arc<Member>,
        number: u64,
        bytes: u64,
        object: Arc<Object>,
    },
}

impl From<farpage_server::joined::Error> for Failure {
    fn from(error: farpage_server::joined::Error) -> Self {
        use farpage_server::joined::Error;
        let code = match &error {
            Error::Store(..) | Error::Address(_) | Error::Ram(_) => FP_ARGUMENT,
            Error::Key(_) => FP_DENIED,
            Error::System(_) | Error::PagingSpace(_) | Error::Objects(_) => FP_KERNEL,
            Error::Join(_) => FP_UNREACHABLE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<HaveError> for Failure {
    fn from(error: HaveError) -> Self {
        let code = match &error {
            HaveError::NotYours(_) | HaveError::Over(_) => FP_DENIED,
            HaveError::Differs { .. } | HaveError::Consistency(..) => FP_ARGUMENT,
            HaveError::File(..) | HaveError::NoFile(_) | HaveError::OtherFile(_) => FP_ARGUMENT,
            HaveError::Open(OpenError::Kernel(_)) | HaveError::Flush(..) => FP_KERNEL,
            HaveError::Open(_) | HaveError::Unsealable(_) => FP_ARGUMENT,
            HaveError::Control(ControlError::NoName(_)) => FP_NOT_FOUND,
            HaveError::Control(_) => FP_UNREACHABLE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<Unreleased> for Failure {
    fn from(error: Unreleased) -> Self {
        Self::new(FP_KERNEL, error.to_string())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::new(FP_KERNEL, error.to_string())
    }
}

/// Makes this program a host of a cluster by itself, which needs neither `farpage up` nor userfaultfd:
/// for machines that have none, and processors that `farpage` does not run on. `store` is
/// etcd://HOST:PORT/NAME, `key` the cluster's key or the folder that it is in. What this program has
/// of shared memory is in `ram_bytes`, and what does not fit is refused. `options` may be NULL. NULL
/// when it fails. A child of fork is no host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_cluster_join(
    store: *const c_char,
    key: *const c_char,
    options: *const FpJoin,
    error: *mut FpError,
) -> *mut FpCluster {
    let join = || {
        let mut known = FpJoin {
            size: size_of::<FpJoin>(),
            address: std::ptr::null(),
            name: std::ptr::null(),
            ram_bytes: 0,
        };
        if !options.is_null() {
            // SAFETY: the header asks for one.
            known = unsafe { copy_known(options, known, "options") }?;
        }
        let joining = Joining {
            // SAFETY: the header asks for text.
            store: unsafe { text(store, "store") }?.to_owned(),
            // SAFETY: as above.
            key: PathBuf::from(unsafe { text(key, "key") }?),
            // SAFETY: as above, or NULL.
            address: unsafe { optional(known.address, "address") }?,
            // SAFETY: as above, or NULL.
            name: unsafe { optional(known.name, "name") }?,
            ram_bytes: if known.ram_bytes == 0 {
                RAM
            } else {
                known.ram_bytes
            },
        };
        let member = Member::join(&joining)?;
        Ok(Box::into_raw(Box::new(FpCluster(Arc::new(member)))))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), join) }
}

/// Hands over to the other hosts what only this one has, for `seconds` at most, and leaves. Memory
/// that was opened must be closed before. What could not be handed over is said on standard error, and
/// is the error FP_KERNEL; the program has left all the same. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_cluster_leave(
    cluster: *mut FpCluster,
    seconds: u32,
    error: *mut FpError,
) -> i32 {
    let leave = || {
        if cluster.is_null() {
            return Ok(());
        }
        // SAFETY: the header asks for what was joined and not left.
        let held = unsafe { &*cluster };
        if Arc::strong_count(&held.0) > 1 {
            return Err(Failure::argument(
                "cluster: shared memory of it is still open; close it (fp_shared_close), then leave",
            ));
        }
        // SAFETY: as above; nobody else has it.
        let cluster = unsafe { Box::from_raw(cluster) };
        let Some(member) = Arc::into_inner(cluster.0) else {
            return Ok(());
        };
        let left = member.leave(Duration::from_secs(seconds.into()));
        let said = left.iter().map(|left| {
            let (bytes, name, why) = (left.bytes, &left.name, left.why);
            format!("{bytes} bytes of '{name}' were not handed over ({why})")
        });
        let said: Vec<String> = said.collect();
        match said.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(FP_KERNEL, said.join("; "))),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, leave) }
}

/// Opens the memory of that name, which all hosts of the cluster have in common: of the cluster that
/// this program has joined, or with NULL that of the host kernel (`farpage up --cluster`). Where there
/// is none it is made as `wanted` says; with NULL that is FP_NOT_FOUND, and one that differs is
/// FP_ARGUMENT. It is the array of farpage.shared in Python. A child of fork opens it anew, and does not use what its
/// parent has open. NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_open(
    cluster: *const FpCluster,
    name: *const c_char,
    wanted: *const FpSharedOptions,
    error: *mut FpError,
) -> *mut FpShared {
    let open = || {
        // SAFETY: the header asks for text.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: and for NULL or options.
        let (wanted, file) = unsafe { self::wanted(wanted) }?.unzip();
        let file = file.flatten();
        // SAFETY: and for NULL or what was joined.
        let shared = match unsafe { cluster.as_ref() } {
            None => mapped(name, wanted, file)?,
            Some(_) if file.is_some() => return Err(by_calls("file", "has a file")),
            Some(cluster) => called(&cluster.0, name, wanted)?,
        };
        Ok(Box::into_raw(Box::new(FpShared(shared))))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), open) }
}

/// Where it is mapped. NULL of NULL, and of memory of a cluster that this program has joined, which is
/// used by fp_shared_read and fp_shared_write. A page that cannot be had raises SIGBUS, after a message
/// on standard error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_data(shared: *const FpShared) -> *mut c_void {
    // SAFETY: the header asks for NULL or what was opened.
    match unsafe { shared.as_ref() }.map(|shared| &shared.0) {
        Some(Where::Mapped(mapped)) => std::ptr::with_exposed_provenance_mut(mapped.address()),
        Some(Where::Called { .. }) | None => std::ptr::null_mut(),
    }
}

/// Its size in bytes; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_size(shared: *const FpShared) -> u64 {
    // SAFETY: as in `fp_shared_data`.
    unsafe { shared.as_ref() }.map_or(0, |shared| shared.0.bytes())
}

/// All that any host wrote to memory with a file before this is there when it returns, and stays when
/// the machine stops. Returns the error's code: FP_KERNEL for memory without a file, or of which a page
/// cannot be had, and nothing was flushed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_flush(shared: *const FpShared, error: *mut FpError) -> i32 {
    let flush = || {
        // SAFETY: the header asks for NULL or what was opened.
        match &unsafe { handle(shared, "shared") }?.0 {
            Where::Mapped(mapped) => {
                let host = Host::connect(&farpage_client::default_socket())?;
                Ok(host.flush_shared(mapped.name()).map(drop)?)
            }
            Where::Called { .. } => Err(by_calls("shared", "is flushed")),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, flush) }
}

/// Copies bytes to `buffer`, and waits for those that other hosts have. Each page is as it was at one
/// moment. What cannot be had is the error FP_KERNEL and no signal; what `buffer` holds then is
/// unspecified. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_read(
    shared: *const FpShared,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let read = || {
        // SAFETY: the header asks for NULL or what was opened.
        let shared = unsafe { handle(shared, "shared") }?;
        shared.0.check(offset, bytes)?;
        // SAFETY: and for so many bytes that only this call uses.
        let buffer = unsafe { bytes_at_mut(buffer, bytes) }?;
        match &shared.0 {
            Where::Called { object, .. } => Ok(object.read(offset, buffer)?),
            Where::Mapped(mapped) => {
                for (part, into) in buffer.chunks_mut(PART).enumerate() {
                    let at = offset as usize + part * PART;
                    copy::from(mapped.address() + at, into).map_err(|_| not_had(mapped, at))?;
                }
                Ok(())
            }
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, read) }
}

/// Copies bytes from `buffer`, as one who has the memory mapped would write them. What cannot be
/// written to is the error FP_KERNEL and no signal; what was written before that stays. Returns the
/// error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_write(
    shared: *const FpShared,
    offset: u64,
    buffer: *const c_void,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let write = || {
        // SAFETY: the header asks for NULL or what was opened.
        let shared = unsafe { handle(shared, "shared") }?;
        shared.0.check(offset, bytes)?;
        // SAFETY: and for so many bytes that nobody changes meanwhile.
        let buffer = unsafe { bytes_at(buffer, bytes) }?;
        match &shared.0 {
            Where::Called { object, .. } => Ok(object.write(offset, buffer)?),
            Where::Mapped(mapped) => {
                for (part, from) in buffer.chunks(PART).enumerate() {
                    let at = offset as usize + part * PART;
                    // SAFETY: the memory is shared, and no reference to it is anywhere.
                    unsafe { copy::to(mapped.address() + at, from) }
                        .map_err(|_| not_had(mapped, at))?;
                }
                Ok(())
            }
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, write) }
}

/// What was written to memory with FP_RELEASE at this host until now is seen by whoever acquires it from
/// now on, at any host. Giving back a lock and coming to a barrier do it by themselves, for all such memory
/// that this program has mapped; for other memory nothing is done. Returns the error's code: FP_KERNEL when
/// some of it is lost with a host that died, or this host is out of the cluster.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_release(shared: *const FpShared, error: *mut FpError) -> i32 {
    let release = || {
        // SAFETY: the header asks for NULL or what was opened.
        let shared = unsafe { handle(shared, "shared") }?;
        match &shared.0 {
            Where::Mapped(mapped) => Ok(mapped.release()?),
            Where::Called { member, number, .. } => Ok(member.release_writes(*number)?),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, release) }
}

/// What is read of memory with FP_RELEASE at this host from now on has all that was released before, by any
/// host. Taking a lock and passing a barrier do it by themselves, as for fp_shared_release. Returns the
/// error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_acquire(shared: *const FpShared, error: *mut FpError) -> i32 {
    let acquire = || {
        // SAFETY: the header asks for NULL or what was opened.
        let shared = unsafe { handle(shared, "shared") }?;
        match &shared.0 {
            Where::Mapped(mapped) => Ok(mapped.acquire()?),
            Where::Called { member, number, .. } => Ok(member.acquire_writes(*number)?),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, acquire) }
}

/// Keeps the pages that have some of the `bytes` bytes at `offset` of mapped shared memory at this host and in its
/// memory. Other hosts read them on and do not write to them, or with `to_write` not 0 do neither: they wait. When
/// this returns the pages are here; it waits as long as another host has some of them locked in a way that does
/// not allow it, `timeout_ms` at most: 0 for pages that are here already, UINT64_MAX as long as it takes.
///
/// What is to be written meanwhile, or locked for a device (fp_lock_area with FP_PINNED), is locked with `to_write`.
/// Several parts are one call, or locked in the order of their bytes on all hosts: hosts wait in a circle
/// otherwise. Writes a handle to `*handle`, for fp_unlock_area and fp_lock_check (FP_STALE when this host was cut off).
/// When it fails nothing is locked: FP_TIMED_OUT; FP_ARGUMENT for FP_RELEASE, FP_SIMPLE, what is sealed and is to be
/// written, and what any program of this host has locked to read and is to be written; FP_KERNEL for more than may be
/// kept in memory. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_lock(
    shared: *const FpShared,
    offset: u64,
    bytes: u64,
    to_write: u32,
    timeout_ms: u64,
    handle: *mut u64,
    error: *mut FpError,
) -> i32 {
    let access = match to_write {
        0 => Access::Read,
        _ => Access::Write,
    };
    let lock = || {
        // SAFETY: the header asks for NULL or what was opened.
        match &unsafe { crate::error::handle(shared, "shared") }?.0 {
            Where::Mapped(mapped) => {
                let wire = mapped.lock(offset, bytes, access, limit(timeout_ms))?;
                // SAFETY: NULL or the caller's own.
                unsafe { locks::keep(Held::AtHost(wire), handle) }
            }
            Where::Called { .. } => Err(by_calls("shared", "is locked")),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, lock) }
}

/// Unmaps it; pointers into it are not valid any more. It is gone when no program of any host has it,
/// unless it stays. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_shared_close(shared: *mut FpShared) {
    let close = || {
        if shared.is_null() {
            return Ok(());
        }
        // SAFETY: the header asks for what was opened and not closed.
        let shared = unsafe { Box::from_raw(shared) };
        if let Where::Called { member, number, .. } = &shared.0 {
            member.release(*number);
        }
        Ok(())
    };
    // SAFETY: NULL is allowed.
    unsafe { call(std::ptr::null_mut(), (), close) }
}

impl FpShared {
    /// Where programs of this host have it in common.
    pub(crate) fn mapped(&self) -> Result<&farpage_client::Shared, Failure> {
        match &self.0 {
            Where::Mapped(mapped) => Ok(mapped),
            Where::Called { .. } => Err(Failure::new(
                FP_UNSUPPORTED,
                "shared: it is used by calls, and a heap is only for programs that map it: of hosts with \
                 farpage up. Let one of those allocate, and read and write its blocks by \
                 fp_shared_read and fp_shared_write"
                    .into(),
            )),
        }
    }
}

impl Where {
    fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(mapped) => mapped.bytes(),
            Self::Called { bytes, .. } => *bytes,
        }
    }

    /// Refuses what is not inside.
    fn check(&self, offset: u64, bytes: usize) -> Result<(), Failure> {
        let end = offset.checked_add(bytes as u64);
        let size = self.bytes();
        if end.is_none_or(|end| end > size) {
            return Err(Failure::argument(format!(
                "range: {bytes} bytes from byte {offset} on are not inside {size} bytes; give less"
            )));
        }
        Ok(())
    }
}

fn mapped(name: &str, wanted: Option<Wanted>, file: Option<PathBuf>) -> Result<Where, Failure> {
    let host = Host::connect(&farpage_client::default_socket())?;
    let (shared, _) = match (wanted, file) {
        (Some(wanted), Some(file)) => host.shared_with_file(name, wanted, &file)?,
        (wanted, _) => host.shared(name, wanted)?,
    };
    Ok(Where::Mapped(shared))
}

/// What is only for programs of a host kernel.
fn by_calls(what: &str, does: &str) -> Failure {
    let message = format!(
        "{what}: only memory of a host with farpage up {does}; let a program there do it, with NULL for the \
         cluster"
    );
    Failure::new(FP_UNSUPPORTED, message)
}

fn called(member: &Arc<Member>, name: &str, wanted: Option<Wanted>) -> Result<Where, Failure> {
    let wish = wanted.map(|wanted| Wish {
        bytes: wanted.bytes,
        unit_bytes: wanted.unit_bytes,
        scheduler: match wanted.scheduler {
            Scheduler::Simple => farpage_server::Scheduler::Simple,
            Scheduler::Distributed => farpage_server::Scheduler::Distributed,
        },
        replicas: wanted.replicas,
        hold_us: wanted.hold_us,
        stale_us: wanted.stale_us,
        consistency: match wanted.consistency {
            Consistency::Strict => farpage_server::Consistency::Strict,
            Consistency::Release => farpage_server::Consistency::Release,
        },
        stays: wanted.stays,
        note: wanted.note,
    });
    let (number, described, object) = member.shared(name, wish.as_ref())?;
    let bytes = described.bytes;
    Ok(Where::Called {
        member: Arc::clone(member),
        number,
        bytes,
        object,
    })
}

fn not_had(mapped: &farpage_client::Shared, at: usize) -> Failure {
    let message = format!(
        "cannot use '{}' from byte {at} on: a page of it cannot be had; what its host kernel said on \
         standard error says why",
        mapped.name()
    );
    Failure::new(FP_KERNEL, message)
}

/// # Safety
/// As for [`text`], or NULL.
unsafe fn optional(from: *const c_char, what: &str) -> Result<Option<String>, Failure> {
    match from.is_null() {
        true => Ok(None),
        // SAFETY: forwarded.
        false => Ok(Some(unsafe { text(from, what) }?.to_owned())),
    }
}

/// # Safety
/// `from` is NULL or valid, with all it points to.
unsafe fn wanted(
    from: *const FpSharedOptions,
) -> Result<Option<(Wanted, Option<PathBuf>)>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    let none = FpSharedOptions {
        size: size_of::<FpSharedOptions>(),
        dtype: std::ptr::null(),
        shape: std::ptr::null(),
        dimensions: 0,
        page_bytes: 0,
        scheduler: FP_DISTRIBUTED,
        replicas: 0,
        stays: 0,
        heap: 0,
        file: std::ptr::null(),
        consistency: FP_STRICT,
    };
    // SAFETY: forwarded.
    let options = unsafe { copy_known(from, none, "wanted") }?;
    // SAFETY: forwarded.
    let file = unsafe { optional(options.file, "wanted: file") }?;
    // SAFETY: forwarded.
    let dtype = unsafe { optional(options.dtype, "wanted: dtype") }?;
    let dtype = descr(dtype.as_deref().unwrap_or("u1"))?;
    let each = element_bytes(&dtype).ok_or_else(|| {
        Failure::argument(format!(
            "wanted: dtype: {dtype} is none; give such as f8, i4, u1, or a descr of NumPy as JSON"
        ))
    })?;
    let shape = match (options.dimensions, options.shape.is_null()) {
        (0, _) | (_, true) => &[],
        // SAFETY: the header asks for so many.
        (count, false) => unsafe { std::slice::from_raw_parts(options.shape, count) },
    };
    let all = shape
        .iter()
        .try_fold(each, |all, size| all.checked_mul(*size));
    let bytes = all.filter(|bytes| *bytes > 0 && !shape.is_empty());
    let bytes = bytes.ok_or_else(|| {
        Failure::argument("wanted: shape: it has no bytes, or too many; give sizes above 0")
    })?;
    let unit_bytes = if options.page_bytes == 0 {
        PAGE
    } else {
        options.page_bytes
    };
    if !unit_bytes.is_power_of_two() || !(PAGE..=2 << 20).contains(&unit_bytes) {
        return Err(Failure::argument(format!(
            "wanted: page_bytes: {unit_bytes} cannot be; give a power of two from 4096 to 2 MiB"
        )));
    }
    let mut note = json!({ "shape": shape, "dtype": dtype });
    if options.heap != 0 {
        if !each.is_power_of_two() || each > 16 || dtype.is_array() {
            return Err(Failure::argument(format!(
                "wanted: dtype: {dtype} cannot be what blocks of a heap are made of; give one of 1, 2, 4, 8 \
                 or 16 bytes, such as f8 or u1"
            )));
        }
        let head = farpage_client::heap::head_bytes(bytes);
        let head = head.ok_or(farpage_client::heap::OpenError::TooSmall { bytes })?;
        note["head"] = head.into();
    }
    let wanted = Wanted {
        bytes,
        unit_bytes,
        scheduler: match options.scheduler {
            FP_DISTRIBUTED => Scheduler::Distributed,
            FP_SIMPLE => Scheduler::Simple,
            other => {
                return Err(Failure::argument(format!(
                    "wanted: scheduler: {other} is none; give FP_DISTRIBUTED or FP_SIMPLE"
                )));
            }
        },
        replicas: match options.replicas {
            0 => 1,
            some => u8::try_from(some).unwrap_or(u8::MAX),
        },
        hold_us: None,
        stale_us: None,
        consistency: match options.consistency {
            FP_STRICT => Consistency::Strict,
            FP_RELEASE => Consistency::Release,
            other => {
                return Err(Failure::argument(format!(
                    "wanted: consistency: {other} is none; give FP_STRICT or FP_RELEASE"
                )));
            }
        },
        stays: options.stays != 0,
        note: note.to_string(),
    };
    Ok(Some((wanted, file.map(PathBuf::from))))
}

/// What NumPy writes for a type: a name without an order is one of each host's own.
fn descr(dtype: &str) -> Result<Value, Failure> {
    if dtype.starts_with('[') {
        return serde_json::from_str(dtype).map_err(|why| {
            Failure::argument(format!("wanted: dtype: {dtype} is no JSON ({why})"))
        });
    }
    let has_order = dtype.starts_with(['<', '>', '|', '=']);
    let is_of_bytes = matches!(dtype, "u1" | "i1" | "b1") || dtype.starts_with(['S', 'V']);
    Ok(Value::String(match (has_order, is_of_bytes) {
        (true, _) => dtype.replace('=', "<"),
        (false, true) => format!("|{dtype}"),
        (false, false) => format!("<{dtype}"),
    }))
}
