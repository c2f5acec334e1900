//! The library, loaded at run time: each function may be missing, and each answer may be an error.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nvml_wrapper_sys::bindings as nvml;

/// The name under which the driver installs the library.
const SONAME: &str = "libnvidia-ml.so.1";
/// The longest text of the library that is read, in bytes (NVML_DEVICE_UUID_V2_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE).
const TEXT_BYTES_MAX: usize = 96;

/// An error of the library (nvmlReturn_t), which is never NVML_SUCCESS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NvmlCode(pub u32);

impl NvmlCode {
    pub const NOT_SUPPORTED: Self = Self(nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    pub const NOT_FOUND: Self = Self(nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    pub const FUNCTION_NOT_FOUND: Self = Self(nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND);

    /// The device or the driver is gone: only another initialization of the library can bring it back.
    pub fn is_lost(self) -> bool {
        matches!(
            self.0,
            nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
                | nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
                | nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED
                | nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED
        )
    }

    /// This device, driver or user cannot have the value at all.
    pub fn is_unsupported(self) -> bool {
        matches!(
            self.0,
            nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
                | nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
                | nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
                | nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
                | nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
                | nvml::nvmlReturn_enum_NVML_ERROR_DEPRECATED
                | nvml::nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED
        )
    }

    /// The system's error that is nearest in meaning.
    pub fn errno(self) -> i32 {
        match self.0 {
            nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT => libc::ETIMEDOUT,
            nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => libc::EACCES,
            nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => libc::EOPNOTSUPP,
            _ if self.is_lost() => libc::ENODEV,
            _ => libc::EIO,
        }
    }

    /// The error in words, as NVIDIA's documentation explains it.
    pub fn text(self) -> String {
        let known = match self.0 {
            nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION => "no permission",
            nvml::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED => "the driver is not loaded",
            nvml::nvmlReturn_enum_NVML_ERROR_TIMEOUT => "the driver did not answer in time",
            nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST => "the GPU has fallen off the bus",
            nvml::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED => "the GPU requires a reset",
            nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH => {
                "library and driver have different versions; load the driver again or restart the node"
            }
            nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => "the driver is too old for this function",
            _ => return format!("error {} of NVML", self.0),
        };
        known.to_owned()
    }
}

/// A device of the library. It stays valid until the library is shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub nvml::nvmlDevice_t);

// SAFETY: a handle is a name that the library gave out, and the library may be called from any thread (NVML API reference, "Thread safety").
unsafe impl Send for Handle {}

/// The library while it is loaded, connected to the driver or not.
pub struct Library {
    pub functions: nvml::NvmlLib,
    initialized: bool,
    /// Keeps the name `/proc/self/fd/<n>`, under which the library is known to the loader, from being used for another file.
    _file: Option<File>,
}

/// Calls a function of the library; one that this driver lacks gives [`NvmlCode::FUNCTION_NOT_FOUND`].
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),*)) => {
        match &$library.functions.$name {
            // SAFETY: the function has the type that NVIDIA's header declares for its name, and each pointer is to a writable value of that type.
            Ok(function) => $crate::library::checked(unsafe { function($($argument),*) }),
            Err(_) => Err($crate::library::NvmlCode::FUNCTION_NOT_FOUND),
        }
    };
}
pub(crate) use call;

/// The result of a call.
pub fn checked(code: nvml::nvmlReturn_t) -> Result<(), NvmlCode> {
    if code == nvml::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(NvmlCode(code)) }
}

impl Library {
    /// Loads the driver's library, or the one at `path`.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            // SAFETY: the driver's library has no requirements on the thread or the time of its loading.
            let loaded = unsafe { nvml::NvmlLib::new(SONAME) };
            let functions = loaded.map_err(|error| format!("no NVIDIA driver on this node ({error})"))?;
            return Ok(Self { functions, initialized: false, _file: None });
        };
        let explain = |reason: String| format!("{} is not loaded: {reason}", path.display());
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| explain(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| explain(error.to_string()))?;
        if !metadata.is_file() || !wholegrain_job_records::is_trusted(&metadata) {
            return Err(explain(
                "only a file of root or of the agent's user that no other user can write is loaded".into(),
            ));
        }
        // The file that was checked, whatever has its name by now.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the administrator named the file as NVML, and no other user can write to it.
        let functions = unsafe { nvml::NvmlLib::new(name) }.map_err(|error| explain(error.to_string()))?;
        Ok(Self { functions, initialized: false, _file: Some(file) })
    }

    /// Connects to the driver; after a loss again, so that all handles must be looked up again.
    pub fn restart(&mut self) -> Result<(), NvmlCode> {
        self.shut_down();
        call!(self, nvmlInit_v2())?;
        self.initialized = true;
        Ok(())
    }

    fn shut_down(&mut self) {
        if std::mem::take(&mut self.initialized) {
            let _ = call!(self, nvmlShutdown());
        }
    }

    pub fn is_initialized(&self) -> bool {
        self.initialized
    }

    /// A text that a function writes into a buffer of a given length.
    pub fn text(&self, fill: impl FnOnce(&mut [std::ffi::c_char]) -> Result<(), NvmlCode>) -> Option<String> {
        let mut buffer = [0; TEXT_BYTES_MAX];
        fill(&mut buffer).ok()?;
        let bytes = buffer.map(|byte| byte.to_ne_bytes()[0]);
        CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok().filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.shut_down();
    }
}
