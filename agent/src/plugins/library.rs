//! Loads a shared object from an open file.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

use wholegrain_plugin::abi::{PluginDescriptor, SYMBOL};
use wholegrain_plugin::{HostError, HostSettings, HostedSource};

use crate::sync::lock;

/// The most different files that a process loads. They stay in memory, and their descriptors open.
const LIBRARIES_MAX: usize = 256;

type EntryFunction = unsafe extern "C" fn() -> *const PluginDescriptor;
/// Device, inode and times of a file.
type FileIdentity = (u64, u64, i64, i64, i64, i64);

/// A file that is loaded is loaded for ever: threads and destructors of a plug-in may still run.
static LOADED: Mutex<Option<HashMap<FileIdentity, EntryFunction>>> = Mutex::new(None);

fn loader_error() -> String {
    // SAFETY: the text of the last error of this thread, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason is known".to_owned();
    }
    // SAFETY: not null, and valid until the next call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Loads the file by its descriptor, which nobody can exchange, and finds the symbol.
fn load(file: &File) -> Result<EntryFunction, String> {
    // The descriptor stays open: the loader knows an object by its name, and a later file must not get the same one.
    let fd = file.try_clone().map_err(|error| error.to_string())?.into_raw_fd();
    let name = CString::new(format!("/proc/self/fd/{fd}")).map_err(|error| error.to_string())?;
    // SAFETY: a string with an end. Constructors of the object run; the file was checked.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("it cannot be loaded: {}", loader_error()));
    }
    // SAFETY: an open object and a string with an end.
    let symbol = unsafe { libc::dlsym(handle, SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return Err(format!("it is no plug-in: it does not export {}", SYMBOL.to_string_lossy()));
    }
    // SAFETY: the interface says that the symbol is this function.
    Ok(unsafe { std::mem::transmute::<*mut libc::c_void, EntryFunction>(symbol) })
}

fn entry(file: &File) -> Result<EntryFunction, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let times = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
    let identity = (metadata.dev(), metadata.ino(), times.0, times.1, times.2, times.3);
    let mut loaded = lock(&LOADED);
    let loaded = loaded.get_or_insert_default();
    if let Some(entry) = loaded.get(&identity) {
        return Ok(*entry);
    }
    if loaded.len() == LIBRARIES_MAX {
        return Err(format!("{LIBRARIES_MAX} different files were loaded already; restart the agent"));
    }
    let entry = load(file)?;
    loaded.insert(identity, entry);
    Ok(entry)
}

/// Loads a plug-in and configures its source.
pub(super) fn configure(file: &File, settings: &HostSettings) -> Result<HostedSource, HostError> {
    let entry = entry(file).map_err(HostError::Interface)?;
    // SAFETY: the function of a loaded plug-in, which has no arguments; what it returns stays valid.
    unsafe { HostedSource::configure(entry(), settings) }
}
