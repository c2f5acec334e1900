//! The library and its devices, through losses of a GPU and restarts of the driver.
//!
//! Readers hold the number of a device and look its handle up at each read: a handle from before a restart of the library is never used.

use std::collections::{BTreeMap, HashMap, HashSet};

use nvml_wrapper_sys::bindings as nvml;
use wholegrain_model::name::sanitize_level;

use crate::config::DeviceNaming;
use crate::library::{Handle, Library, NvmlCode, call};

/// The most GPUs of a node.
const GPUS_MAX: u32 = 256;
/// The most MIG instances of a GPU; the largest has 7 today.
const INSTANCES_MAX: u32 = 64;

/// What a device is, for its names and its sensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    Gpu,
    /// A part of a GPU with memory and processors of its own, by its numbers within the GPU.
    Instance {
        instance: u32,
        compute: u32,
    },
}

/// A device that was found, now or earlier.
#[derive(Debug)]
pub struct Device {
    pub kind: DeviceKind,
    pub uuid: String,
    /// The first two levels of its sensors, such as `gpu/0` or `mig/0-gi1-ci0`.
    pub path: String,
    /// The path of the GPU that it is or is a part of.
    pub gpu: String,
    /// The product, for messages.
    pub product: String,
    /// `None` while it is lost.
    pub handle: Option<Handle>,
    /// The names of sensors that had a value once; a failed call does not remove them.
    pub known: HashSet<String>,
}

/// The devices of the library.
#[derive(Default)]
pub struct Session {
    pub library: Option<Library>,
    pub devices: BTreeMap<u32, Device>,
    /// The time of the last sample of processes of each GPU, us, by path.
    pub sampled: HashMap<String, u64>,
    next: u32,
    /// A device is lost: the next discovery restarts the library.
    must_restart: bool,
}

impl Session {
    /// The library and the handle of a device; `None` while it is lost.
    pub fn device(&self, id: u32) -> Option<(&Library, Handle)> {
        let library = self.library.as_ref().filter(|library| library.is_initialized())?;
        Some((library, self.devices.get(&id)?.handle?))
    }

    /// Records that the library has lost a device. Whether that is new, so that a discovery is due.
    pub fn lose(&mut self, id: u32) -> bool {
        self.must_restart = true;
        self.devices.get_mut(&id).is_some_and(|device| device.handle.take().is_some())
    }

    /// Finds all devices, with another initialization of the library after a loss. Lost GPUs stay in the list without a handle.
    pub fn find(&mut self, names: DeviceNaming, report: &mut dyn FnMut(String)) {
        let Some(library) = &mut self.library else { return };
        if self.must_restart || !library.is_initialized() {
            self.devices.values_mut().for_each(|device| device.handle = None);
            if let Err(code) = library.restart() {
                self.must_restart = true;
                report(format!("nvml: cannot connect to the NVIDIA driver: {}", code.text()));
                return;
            }
            self.must_restart = false;
        }
        let found = self.enumerate(names, report);
        self.replace(found, report);
    }

    fn enumerate(&self, names: DeviceNaming, report: &mut dyn FnMut(String)) -> Vec<Device> {
        let Some(library) = &self.library else { return Vec::new() };
        let mut count = 0;
        if let Err(code) = call!(library, nvmlDeviceGetCount_v2(&mut count)) {
            report(format!("nvml: cannot count the GPUs: {}", code.text()));
            return Vec::new();
        }
        if count > GPUS_MAX {
            report(format!("nvml: {count} GPUs; only the first {GPUS_MAX} are read"));
        }
        let mut found = Vec::new();
        for index in 0..count.min(GPUS_MAX) {
            let mut device = std::ptr::null_mut();
            let result = call!(library, nvmlDeviceGetHandleByIndex_v2(index, &mut device));
            let gpu = result.and_then(|()| identify(library, Handle(device), names));
            match gpu {
                Ok(gpu) => {
                    let instances = instances(library, Handle(device), &gpu, names);
                    found.push(gpu);
                    found.extend(instances);
                }
                Err(code) => report(format!("nvml: GPU {index} is left out: {}", code.text())),
            }
        }
        found
    }

    /// Takes the devices of an enumeration. A GPU that is missing is lost; an instance that is missing was removed.
    fn replace(&mut self, found: Vec<Device>, report: &mut dyn FnMut(String)) {
        let uuids: HashSet<String> = found.iter().map(|device| device.uuid.clone()).collect();
        let paths: HashSet<String> = found.iter().map(|device| device.path.clone()).collect();
        self.devices.retain(|_, device| {
            let is_found = uuids.contains(&device.uuid);
            // An exchanged GPU has the name of its predecessor.
            is_found || (device.kind == DeviceKind::Gpu && !paths.contains(&device.path))
        });
        for device in self.devices.values_mut().filter(|device| !uuids.contains(&device.uuid)) {
            device.handle = None;
            self.must_restart = true;
            report(format!(
                "nvml: {} ({}, {}) is lost; its sensors have gaps",
                device.path, device.product, device.uuid
            ));
        }
        for device in found {
            if let Some(known) = self.devices.values_mut().find(|known| known.uuid == device.uuid) {
                *known = Device { known: std::mem::take(&mut known.known), ..device };
            } else if self.devices.values().any(|known| known.path == device.path) {
                report(format!("nvml: {} is left out: another device is {} too", device.uuid, device.path));
            } else {
                self.devices.insert(self.next, device);
                self.next += 1;
            }
        }
    }
}

fn identify(library: &Library, handle: Handle, names: DeviceNaming) -> Result<Device, NvmlCode> {
    let uuid = uuid(library, handle)?;
    let mut minor = 0;
    let minor = call!(library, nvmlDeviceGetMinorNumber(handle.0, &mut minor)).map(|()| minor);
    let level = match (names, minor) {
        (DeviceNaming::Minor, Ok(minor)) => minor.to_string(),
        (DeviceNaming::Pci, _) => pci_address(library, handle)?,
        _ => uuid.clone(),
    };
    let product =
        library.text(|buffer| call!(library, nvmlDeviceGetName(handle.0, buffer.as_mut_ptr(), buffer.len() as u32)));
    let path = format!("gpu/{}", sanitize_level(&level));
    Ok(Device {
        kind: DeviceKind::Gpu,
        gpu: path.clone(),
        path,
        uuid,
        product: product.unwrap_or_else(|| "unnamed product".to_owned()),
        handle: Some(handle),
        known: HashSet::new(),
    })
}

fn uuid(library: &Library, handle: Handle) -> Result<String, NvmlCode> {
    let mut result = Ok(());
    let text = library.text(|buffer| {
        result = call!(library, nvmlDeviceGetUUID(handle.0, buffer.as_mut_ptr(), buffer.len() as u32));
        result
    });
    result.and_then(|()| text.ok_or(NvmlCode::NOT_FOUND))
}

/// The address as the kernel writes it: a domain of four digits, and small letters.
fn pci_address(library: &Library, handle: Handle) -> Result<String, NvmlCode> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut pci: nvml::nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    call!(library, nvmlDeviceGetPciInfo_v3(handle.0, &mut pci))?;
    Ok(format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
}

/// The MIG instances of a GPU; none without MIG.
fn instances(library: &Library, gpu: Handle, of: &Device, names: DeviceNaming) -> Vec<Device> {
    let (mut current, mut pending) = (0, 0);
    let is_enabled = call!(library, nvmlDeviceGetMigMode(gpu.0, &mut current, &mut pending)).is_ok() && current == 1;
    let mut count = 0;
    if !is_enabled || call!(library, nvmlDeviceGetMaxMigDeviceCount(gpu.0, &mut count)).is_err() {
        return Vec::new();
    }
    (0..count.min(INSTANCES_MAX)).filter_map(|index| instance(library, gpu, index, of, names)).collect()
}

/// One instance; `None` for a place without an instance.
fn instance(library: &Library, gpu: Handle, index: u32, of: &Device, names: DeviceNaming) -> Option<Device> {
    let mut handle = std::ptr::null_mut();
    call!(library, nvmlDeviceGetMigDeviceHandleByIndex(gpu.0, index, &mut handle)).ok()?;
    let uuid = uuid(library, Handle(handle)).ok()?;
    let (mut instance, mut compute) = (0, 0);
    call!(library, nvmlDeviceGetGpuInstanceId(handle, &mut instance)).ok()?;
    call!(library, nvmlDeviceGetComputeInstanceId(handle, &mut compute)).ok()?;
    let parent = of.path.trim_start_matches("gpu/");
    let level = match names {
        DeviceNaming::Uuid => sanitize_level(&uuid),
        _ => format!("{parent}-gi{instance}-ci{compute}"),
    };
    Some(Device {
        kind: DeviceKind::Instance { instance, compute },
        gpu: of.path.clone(),
        path: format!("mig/{level}"),
        uuid,
        product: of.product.clone(),
        handle: Some(Handle(handle)),
        known: HashSet::new(),
    })
}
