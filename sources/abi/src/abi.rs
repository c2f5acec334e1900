//! The structures of `wholegrain_source.h`, field by field. `tests/header.rs` compares both.

use std::ffi::c_void;

/// The version of the interface, `WHOLEGRAIN_SOURCE_ABI`.
pub const ABI_VERSION: u32 = 1;
/// The name of the one symbol that a plug-in exports.
pub const SYMBOL: &std::ffi::CStr = c"wholegrain_source_v1";
/// Flag of a descriptor: reads may run while discover runs.
pub const CONCURRENT: u32 = 1;
/// Flag of a sample: there are no values since the last read.
pub const UNCHANGED: u64 = 1;
/// Flag of a sample: the agent has to run discovery again.
pub const LAYOUT_CHANGED: u64 = 2;
/// The value of `taken_at` for the time of the read.
pub const NOW: i64 = i64::MIN;

/// UTF-8 with its length, without a zero byte at its end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PluginText {
    pub data: *const u8,
    pub length: u64,
}

impl PluginText {
    /// No text: a null pointer and the length 0.
    pub const EMPTY: Self = Self { data: std::ptr::null(), length: 0 };

    /// A text that is valid as long as `text` is.
    pub const fn new(text: &str) -> Self {
        Self { data: text.as_ptr(), length: text.len() as u64 }
    }

    /// The bytes, at most `bytes_max` of them; `None` if there are more.
    ///
    /// # Safety
    /// `data` must point to `length` bytes that stay as they are for `'a`, unless `length` is 0.
    pub unsafe fn bytes<'a>(self, bytes_max: usize) -> Option<&'a [u8]> {
        if self.length == 0 {
            return Some(&[]);
        }
        if self.data.is_null() || self.length > bytes_max as u64 {
            return None;
        }
        // SAFETY: the caller says that there are so many bytes.
        Some(unsafe { std::slice::from_raw_parts(self.data, self.length as usize) })
    }
}

/// Reports an error of the settings: line of the table, key, message.
pub type FailFunction = unsafe extern "C" fn(*const PluginSettings, u64, PluginText, PluginText);
/// Creates a source from its settings.
pub type ConfigureFunction = unsafe extern "C" fn(*const PluginSettings, *mut *mut c_void) -> i32;
/// Names the groups of a source.
pub type DiscoverFunction = unsafe extern "C" fn(*mut c_void, *mut PluginDiscovery) -> i32;
/// Fills one sample of a group.
pub type ReadFunction = unsafe extern "C" fn(*mut c_void, *mut PluginSample) -> i32;
/// Frees a reader or a source.
pub type FreeFunction = unsafe extern "C" fn(*mut c_void);

/// What `configure` is given: `wholegrain_settings`.
#[repr(C)]
pub struct PluginSettings {
    pub size: u64,
    pub host: *mut c_void,
    pub table: PluginText,
    pub file: PluginText,
    pub config_dir: PluginText,
    pub proc: PluginText,
    pub sys: PluginText,
    pub cgroup: PluginText,
    pub fail: Option<FailFunction>,
}

/// One sensor of a group: `wholegrain_sensor`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginSensor {
    pub size: u64,
    pub name: PluginText,
    pub unit: PluginText,
    pub description: PluginText,
    pub kind: u32,
    pub value_type: u32,
    pub scale: f64,
    pub wraps_at: u64,
}

/// One group of a source: `wholegrain_group`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginGroup {
    pub size: u64,
    pub name: PluginText,
    pub reader: *mut c_void,
    pub interval_ns: u64,
    pub offset_ns: u64,
    pub free_running: u32,
    pub blocking: u32,
}

/// What `discover` fills: `wholegrain_discovery`.
#[repr(C)]
pub struct PluginDiscovery {
    pub size: u64,
    pub host: *mut c_void,
    pub add_group: Option<unsafe extern "C" fn(*mut PluginDiscovery, *const PluginGroup) -> i32>,
    pub add_sensor: Option<unsafe extern "C" fn(*mut PluginDiscovery, *const PluginSensor) -> i32>,
    pub report: Option<unsafe extern "C" fn(*mut PluginDiscovery, PluginText)>,
    pub keep: Option<unsafe extern "C" fn(*mut PluginDiscovery, PluginText)>,
}

/// One sample while `read` fills it: `wholegrain_sample`.
#[repr(C)]
pub struct PluginSample {
    pub size: u64,
    pub host: *mut c_void,
    pub values: *mut u64,
    pub gaps: *mut u64,
    pub sensors: u64,
    pub taken_at: i64,
    pub flags: u64,
    pub problem: Option<unsafe extern "C" fn(*mut PluginSample, PluginText)>,
}

/// The description of a source: `wholegrain_source`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginDescriptor {
    pub size: u64,
    pub abi: u32,
    pub flags: u32,
    pub name: PluginText,
    pub summary: PluginText,
    pub version: PluginText,
    pub configure: Option<ConfigureFunction>,
    pub discover: Option<DiscoverFunction>,
    pub read: Option<ReadFunction>,
    pub free_reader: Option<FreeFunction>,
    pub free_source: Option<FreeFunction>,
}

// SAFETY: the texts of a descriptor are constants, which any thread may read.
unsafe impl Sync for PluginDescriptor {}

/// Copies a structure that begins with its size: fields behind the size that its maker knows are 0. `None` if it is null or shorter
/// than `size_min`.
///
/// # Safety
/// `from` must be null or point to as many readable bytes as its first word says, up to the size of `T`. Zero must be valid for `T`.
pub unsafe fn sized<T: Copy>(from: *const T, size_min: usize) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: every structure begins with its size.
    let size = unsafe { from.cast::<u64>().read_unaligned() };
    if size < size_min as u64 {
        return None;
    }
    let mut copy = std::mem::MaybeUninit::<T>::zeroed();
    let length = (size as usize).min(size_of::<T>());
    // SAFETY: the maker says that there are `size` bytes, and `length` is not more; zero is valid for the rest.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), length);
        Some(copy.assume_init())
    }
}
