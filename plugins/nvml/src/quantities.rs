//! What is read of a device: for each function of the library its values, with names, units and scales.
//!
//! Source: NVIDIA's NVML API reference and the comments of its header `nvml.h`.

use nvml_wrapper_sys::bindings::{self as nvml, field_id};
use wholegrain_model::SensorDef;

use crate::library::{Handle, Library, NvmlCode, call};

/// The most values of one call.
pub const VALUES_MAX: usize = 16;
/// The most fans of a device that are read.
const FANS_MAX: u32 = 16;
/// The state of a GPU that does not know it (NVML_PSTATE_UNKNOWN).
const PSTATE_UNKNOWN: u32 = 32;

/// The values of one call; `None` for what this device does not have.
pub type Values = [Option<i64>; VALUES_MAX];
/// Calls a function of the library. The argument is a clock, a fan, a link or a location, by the library's numbers.
pub type ReadValues = fn(&Library, Handle, u32, &mut Values) -> Result<(), NvmlCode>;

/// One call and the sensors of its values, in order, with names below the device.
pub struct Probe {
    pub read: ReadValues,
    pub argument: u32,
    pub sensors: Vec<SensorDef>,
}

fn probe(read: ReadValues, argument: u32, sensors: impl Into<Vec<SensorDef>>) -> Probe {
    Probe { read, argument, sensors: sensors.into() }
}

fn gauge(name: impl Into<String>, unit: &str, description: &str) -> SensorDef {
    SensorDef::gauge(name, unit, description)
}

fn counter(name: impl Into<String>, unit: &str, description: &str) -> SensorDef {
    SensorDef::counter(name, unit, description)
}

/// The bits of nvmlClocksEventReasons, from the lowest on.
const REASONS: [(&str, &str); 9] = [
    ("gpu_idle", "Clocks are low as nothing runs."),
    ("applications_clocks", "Clocks are limited by the setting of applications clocks."),
    ("sw_power_cap", "Clocks are limited by the power limit."),
    ("hw_slowdown", "Clocks are halved or worse by the hardware: temperature, power brake or power draw."),
    ("sync_boost", "Clocks are limited by another GPU of the same sync boost group."),
    ("sw_thermal", "Clocks are limited by the driver as the temperature is too high."),
    ("hw_thermal", "Clocks are halved or worse by the hardware as the temperature is too high."),
    ("hw_power_brake", "Clocks are halved or worse as the power supply demands it."),
    ("display_clocks", "Clocks are limited by the setting of display clocks."),
];

/// What changes from second to second.
pub fn of_gpu(pcie_throughput: bool) -> Vec<Probe> {
    let mut all = vec![
        probe(
            utilization,
            0,
            [
                gauge("utilization/gpu", "%", "Part of the driver's last sampling period in which a kernel ran."),
                gauge("utilization/memory", "%", "Part of that period in which memory was read or written."),
            ],
        ),
        probe(
            |library, device, _, values| one(values, |out| utilization_of_encoder(library, device, out)),
            0,
            [gauge("utilization/encoder", "%", "Utilization of the video encoder.")],
        ),
        probe(
            |library, device, _, values| one(values, |out| utilization_of_decoder(library, device, out)),
            0,
            [gauge("utilization/decoder", "%", "Utilization of the video decoder.")],
        ),
        memory_probe(),
        bar1_probe(),
    ];
    all.extend(clocks());
    all.push(probe(reasons, 0, REASONS.map(|(name, text)| gauge(format!("clocks/reason/{name}"), "1", text)).to_vec()));
    all.extend(power_and_heat());
    all.extend(pcie(pcie_throughput));
    all
}

/// What a MIG instance has of its own.
pub fn of_instance() -> Vec<Probe> {
    let multiprocessors = gauge("multiprocessors", "1", "Streaming multiprocessors of the instance.");
    vec![memory_probe(), bar1_probe(), probe(attributes, 0, [multiprocessors])]
}

fn memory_probe() -> Probe {
    let sensors = [
        gauge("memory/total", "By", "Memory of the device."),
        gauge("memory/free", "By", "Memory that is not allocated."),
        gauge("memory/used", "By", "Memory that is allocated."),
        gauge("memory/reserved", "By", "Memory that driver and firmware keep for themselves."),
    ];
    probe(memory, 0, sensors)
}

fn bar1_probe() -> Probe {
    let sensors = [
        gauge("bar1/total", "By", "Window through which other devices and the host reach the memory."),
        gauge("bar1/free", "By", "Part of the window that is not mapped."),
        gauge("bar1/used", "By", "Part of the window that is mapped."),
    ];
    probe(bar1, 0, sensors)
}

fn clocks() -> Vec<Probe> {
    let domains = [
        (nvml::nvmlClockType_enum_NVML_CLOCK_GRAPHICS, "graphics"),
        (nvml::nvmlClockType_enum_NVML_CLOCK_SM, "sm"),
        (nvml::nvmlClockType_enum_NVML_CLOCK_MEM, "memory"),
        (nvml::nvmlClockType_enum_NVML_CLOCK_VIDEO, "video"),
    ];
    let mut all = Vec::new();
    for (domain, name) in domains {
        let now = gauge(format!("clocks/{name}"), "Hz", "Present clock frequency.").scaled(1e6);
        let most = gauge(format!("clocks/{name}_max"), "Hz", "Highest clock frequency.").scaled(1e6);
        all.push(probe(clock, domain, [now]));
        all.push(probe(clock_max, domain, [most]));
    }
    all
}

fn power_and_heat() -> Vec<Probe> {
    let mut all = vec![
        probe(
            power,
            0,
            [gauge("power", "W", "Power of the whole board; an average where the GPU has one.").scaled(1e-3)],
        ),
        probe(power_limit, 0, [gauge("power_limit", "W", "The limit that the driver enforces.").scaled(1e-3)]),
        probe(energy, 0, [counter("energy", "J", "Energy used since the driver was loaded.").scaled(1e-3)]),
        probe(temperature, 0, [gauge("temperature/gpu", "Cel", "Temperature of the GPU's die.")]),
        probe(
            |library, device, _, values| {
                let ids = [field_id::NVML_FI_DEV_MEMORY_TEMP, field_id::NVML_FI_DEV_POWER_INSTANT];
                fields(library, device, 0, &ids, values)
            },
            0,
            [
                gauge("temperature/memory", "Cel", "Temperature of the memory."),
                gauge("power_instant", "W", "Power of the whole board, not averaged.").scaled(1e-3),
            ],
        ),
        probe(performance_state, 0, [gauge("performance_state", "1", "P-state: 0 is the fastest, 15 the slowest.")]),
    ];
    all.extend((0..FANS_MAX).map(|fan| {
        probe(fan_speed, fan, [gauge(format!("fan/{fan}/speed"), "%", "Speed that the driver requests of the fan.")])
    }));
    all
}

fn pcie(throughput: bool) -> Vec<Probe> {
    let mut all = vec![
        probe(pcie_replays, 0, [counter("pcie/replays", "1", "Packets sent again over PCIe.")]),
        probe(
            pcie_link,
            0,
            [
                gauge("pcie/link_generation", "1", "Present generation of the PCIe link."),
                gauge("pcie/link_width", "1", "Present lanes of the PCIe link."),
            ],
        ),
        probe(
            |library, device, _, values| {
                let ids = [field_id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, field_id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES];
                fields(library, device, 0, &ids, values)
            },
            0,
            [counter("pcie/tx", "By", "Bytes sent over PCIe."), counter("pcie/rx", "By", "Bytes received over PCIe.")],
        ),
    ];
    if throughput {
        let sensors = [
            gauge("pcie/tx_rate", "By/s", "Rate of sending over PCIe, measured over 20 ms.").scaled(1e3),
            gauge("pcie/rx_rate", "By/s", "Rate of receiving over PCIe, measured over 20 ms.").scaled(1e3),
        ];
        all.push(probe(pcie_rates, 0, sensors));
    }
    all
}

/// Errors, which are rare.
pub fn of_health() -> Vec<Probe> {
    let of_location = |location: &str, prefix: &str| {
        [
            counter(
                format!("{prefix}corrected_volatile"),
                "1",
                &format!("Errors{location} corrected since the driver was loaded."),
            ),
            counter(
                format!("{prefix}uncorrected_volatile"),
                "1",
                &format!("Errors{location} not corrected since the driver was loaded."),
            ),
            counter(
                format!("{prefix}corrected_aggregate"),
                "1",
                &format!("Errors{location} corrected in the GPU's life."),
            ),
            counter(
                format!("{prefix}uncorrected_aggregate"),
                "1",
                &format!("Errors{location} not corrected in the GPU's life."),
            ),
        ]
    };
    let mut all = vec![probe(ecc_total, 0, of_location(" of memories", "ecc/"))];
    let locations = [
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L1_CACHE, "l1"),
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L2_CACHE, "l2"),
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY, "device_memory"),
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_REGISTER_FILE, "register_file"),
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_TEXTURE_MEMORY, "texture_memory"),
        (nvml::nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM, "sram"),
    ];
    for (location, name) in locations {
        all.push(probe(ecc_of_location, location, of_location("", &format!("ecc/{name}/"))));
    }
    all.push(probe(
        |library, device, _, values| {
            let ids = [
                field_id::NVML_FI_DEV_RETIRED_SBE,
                field_id::NVML_FI_DEV_RETIRED_DBE,
                field_id::NVML_FI_DEV_RETIRED_PENDING,
            ];
            fields(library, device, 0, &ids, values)
        },
        0,
        [
            counter("retired_pages/single_bit", "1", "Pages retired after several errors of one bit."),
            counter("retired_pages/double_bit", "1", "Pages retired after an error of two bits."),
            gauge("retired_pages/pending", "1", "1: pages are retired at the next restart of the driver."),
        ],
    ));
    all.push(probe(
        remapped_rows,
        0,
        [
            counter("remapped_rows/corrected", "1", "Rows of memory replaced after corrected errors."),
            counter("remapped_rows/uncorrected", "1", "Rows of memory replaced after errors that were not corrected."),
            gauge("remapped_rows/pending", "1", "1: rows are replaced at the next reset of the GPU."),
            gauge("remapped_rows/failure", "1", "1: a row could not be replaced; the GPU should be exchanged."),
        ],
    ));
    all
}

/// The links to other GPUs and switches.
pub fn of_nvlink() -> Vec<Probe> {
    let mut all = Vec::new();
    for link in 0..nvml::NVML_NVLINK_MAX_LINKS {
        let name = |quantity: &str| format!("nvlink/{link}/{quantity}");
        all.push(probe(nvlink_state, link, [gauge(name("state"), "1", "1: the link is active.")]));
        all.push(probe(
            |library, device, link, values| {
                let ids = [
                    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
                    field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
                    field_id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
                    field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
                ];
                fields(library, device, link, &ids, values)
            },
            link,
            [
                counter(name("data_tx"), "By", "Data sent over the link.").scaled(1024.0),
                counter(name("data_rx"), "By", "Data received over the link.").scaled(1024.0),
                counter(name("total_tx"), "By", "Bytes sent over the link, with headers."),
                counter(name("total_rx"), "By", "Bytes received over the link, with headers."),
            ],
        ));
        all.push(probe(
            nvlink_errors,
            link,
            [
                counter(name("replays"), "1", "Packets sent again after an error."),
                counter(name("recoveries"), "1", "Times that the link recovered from a loss."),
                counter(name("crc_flit_errors"), "1", "Flits with a wrong checksum."),
                counter(name("crc_data_errors"), "1", "Data with a wrong checksum."),
                counter(name("ecc_data_errors"), "1", "Data with memory errors."),
            ],
        ));
    }
    all
}

/// A function with one number as its answer.
fn one(values: &mut Values, read: impl FnOnce(&mut u32) -> Result<(), NvmlCode>) -> Result<(), NvmlCode> {
    let mut number = 0;
    read(&mut number)?;
    values[0] = Some(number.into());
    Ok(())
}

/// A number of 64 bits; one beyond the range of a reading is not a value (NVML_VALUE_NOT_AVAILABLE is all ones).
pub fn wide(number: u64) -> Option<i64> {
    i64::try_from(number).ok()
}

fn utilization(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let mut rates = nvml::nvmlUtilization_t { gpu: 0, memory: 0 };
    call!(library, nvmlDeviceGetUtilizationRates(device.0, &mut rates))?;
    (values[0], values[1]) = (Some(rates.gpu.into()), Some(rates.memory.into()));
    Ok(())
}

fn utilization_of_encoder(library: &Library, device: Handle, out: &mut u32) -> Result<(), NvmlCode> {
    let mut period_us = 0;
    call!(library, nvmlDeviceGetEncoderUtilization(device.0, out, &mut period_us))
}

fn utilization_of_decoder(library: &Library, device: Handle, out: &mut u32) -> Result<(), NvmlCode> {
    let mut period_us = 0;
    call!(library, nvmlDeviceGetDecoderUtilization(device.0, out, &mut period_us))
}

/// The second version has the reserved memory apart, which the first one counts as used.
fn memory(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    // nvmlMemory_v2: NVML_STRUCT_VERSION is the structure's size and the version in the highest byte.
    let version = size_of::<nvml::nvmlMemory_v2_t>() as u32 | 2 << 24;
    let mut second = nvml::nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
    match call!(library, nvmlDeviceGetMemoryInfo_v2(device.0, &mut second)) {
        Ok(()) => {
            let all = [second.total, second.free, second.used, second.reserved];
            all.into_iter().enumerate().for_each(|(index, bytes)| values[index] = wide(bytes));
            return Ok(());
        }
        Err(code) if !code.is_unsupported() => return Err(code),
        Err(_) => {}
    }
    let mut first = nvml::nvmlMemory_t { total: 0, free: 0, used: 0 };
    call!(library, nvmlDeviceGetMemoryInfo(device.0, &mut first))?;
    let all = [first.total, first.free, first.used];
    all.into_iter().enumerate().for_each(|(index, bytes)| values[index] = wide(bytes));
    Ok(())
}

fn bar1(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let mut memory = nvml::nvmlBAR1Memory_t { bar1Total: 0, bar1Free: 0, bar1Used: 0 };
    call!(library, nvmlDeviceGetBAR1MemoryInfo(device.0, &mut memory))?;
    let all = [memory.bar1Total, memory.bar1Free, memory.bar1Used];
    all.into_iter().enumerate().for_each(|(index, bytes)| values[index] = wide(bytes));
    Ok(())
}

fn attributes(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut attributes: nvml::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    call!(library, nvmlDeviceGetAttributes_v2(device.0, &mut attributes))?;
    values[0] = Some(attributes.multiprocessorCount.into());
    Ok(())
}

fn clock(library: &Library, device: Handle, domain: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetClockInfo(device.0, domain, out)))
}

fn clock_max(library: &Library, device: Handle, domain: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetMaxClockInfo(device.0, domain, out)))
}

/// The function has another name in drivers before 535.
fn reasons(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let mut bits = 0;
    match call!(library, nvmlDeviceGetCurrentClocksEventReasons(device.0, &mut bits)) {
        Err(NvmlCode::FUNCTION_NOT_FOUND) => {
            call!(library, nvmlDeviceGetCurrentClocksThrottleReasons(device.0, &mut bits))?;
        }
        result => result?,
    }
    (0..REASONS.len()).for_each(|bit| values[bit] = Some((bits >> bit & 1) as i64));
    Ok(())
}

fn power(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetPowerUsage(device.0, out)))
}

fn power_limit(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetEnforcedPowerLimit(device.0, out)))
}

fn energy(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let mut millijoules = 0;
    call!(library, nvmlDeviceGetTotalEnergyConsumption(device.0, &mut millijoules))?;
    values[0] = wide(millijoules);
    Ok(())
}

fn temperature(library: &Library, device: Handle, sensor: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetTemperature(device.0, sensor, out)))
}

fn performance_state(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetPerformanceState(device.0, out)))?;
    values[0] = values[0].filter(|state| *state != i64::from(PSTATE_UNKNOWN));
    Ok(())
}

fn fan_speed(library: &Library, device: Handle, fan: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetFanSpeed_v2(device.0, fan, out)))
}

fn pcie_replays(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetPcieReplayCounter(device.0, out)))
}

fn pcie_link(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let (mut generation, mut width) = (0, 0);
    call!(library, nvmlDeviceGetCurrPcieLinkGeneration(device.0, &mut generation))?;
    call!(library, nvmlDeviceGetCurrPcieLinkWidth(device.0, &mut width))?;
    (values[0], values[1]) = (Some(generation.into()), Some(width.into()));
    Ok(())
}

fn pcie_rates(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let (mut tx, mut rx) = (0, 0);
    let (sent, received) = (
        nvml::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES,
        nvml::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES,
    );
    call!(library, nvmlDeviceGetPcieThroughput(device.0, sent, &mut tx))?;
    call!(library, nvmlDeviceGetPcieThroughput(device.0, received, &mut rx))?;
    (values[0], values[1]) = (Some(tx.into()), Some(rx.into()));
    Ok(())
}

/// Corrected and uncorrected, first since the driver was loaded, then in the GPU's life.
const ECC: [(u32, u32); 4] = {
    let corrected = nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
    let uncorrected = nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
    let (volatile, aggregate) =
        (nvml::nvmlEccCounterType_enum_NVML_VOLATILE_ECC, nvml::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC);
    [(corrected, volatile), (uncorrected, volatile), (corrected, aggregate), (uncorrected, aggregate)]
};

fn ecc_total(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    each_of_ecc(values, |error, counter, out| {
        call!(library, nvmlDeviceGetTotalEccErrors(device.0, error, counter, out))
    })
}

fn ecc_of_location(library: &Library, device: Handle, location: u32, values: &mut Values) -> Result<(), NvmlCode> {
    each_of_ecc(values, |error, counter, out| {
        call!(library, nvmlDeviceGetMemoryErrorCounter(device.0, error, counter, location, out))
    })
}

/// A device may have some of the counters. The error is the last one if it has none.
fn each_of_ecc(values: &mut Values, read: impl Fn(u32, u32, &mut u64) -> Result<(), NvmlCode>) -> Result<(), NvmlCode> {
    let mut result = Err(NvmlCode::NOT_SUPPORTED);
    for (index, (error, counter)) in ECC.into_iter().enumerate() {
        let mut count = 0;
        match read(error, counter, &mut count) {
            Ok(()) => (values[index], result) = (wide(count), Ok(())),
            Err(code) if code.is_unsupported() => {}
            Err(code) => return Err(code),
        }
    }
    result
}

fn remapped_rows(library: &Library, device: Handle, _: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let [mut corrected, mut uncorrected, mut pending, mut failure] = [0; 4];
    call!(library, nvmlDeviceGetRemappedRows(device.0, &mut corrected, &mut uncorrected, &mut pending, &mut failure))?;
    let all = [corrected, uncorrected, pending, failure];
    all.into_iter().enumerate().for_each(|(index, count)| values[index] = Some(count.into()));
    Ok(())
}

fn nvlink_state(library: &Library, device: Handle, link: u32, values: &mut Values) -> Result<(), NvmlCode> {
    one(values, |out| call!(library, nvmlDeviceGetNvLinkState(device.0, link, out)))
}

fn nvlink_errors(library: &Library, device: Handle, link: u32, values: &mut Values) -> Result<(), NvmlCode> {
    let mut result = Err(NvmlCode::NOT_SUPPORTED);
    for counter in 0..nvml::nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_COUNT {
        let mut count = 0;
        match call!(library, nvmlDeviceGetNvLinkErrorCounter(device.0, link, counter, &mut count)) {
            Ok(()) => (values[counter as usize], result) = (wide(count), Ok(())),
            Err(code) if code.is_unsupported() => {}
            Err(code) => return Err(code),
        }
    }
    result
}

/// Values by number (NVML_FI_…); `scope` is a link for those of links. A counter of 32 bits is left out: it would wrap between two reads.
fn fields(library: &Library, device: Handle, scope: u32, ids: &[u32], values: &mut Values) -> Result<(), NvmlCode> {
    let empty = nvml::nvmlFieldValue_t {
        fieldId: 0,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        value: nvml::nvmlValue_t { ullVal: 0 },
    };
    let mut asked = [empty; VALUES_MAX];
    let asked = &mut asked[..ids.len().min(VALUES_MAX)];
    asked.iter_mut().zip(ids).for_each(|(field, id)| field.fieldId = *id);
    call!(library, nvmlDeviceGetFieldValues(device.0, asked.len() as i32, asked.as_mut_ptr()))?;
    let mut lost = None;
    for (value, field) in values.iter_mut().zip(asked.iter()) {
        match crate::library::checked(field.nvmlReturn) {
            Ok(()) => *value = number(field),
            Err(code) if code.is_lost() => lost = Some(code),
            Err(_) => {}
        }
    }
    lost.map_or(Ok(()), Err)
}

fn number(field: &nvml::nvmlFieldValue_t) -> Option<i64> {
    const BYTES: [u32; 6] = [
        field_id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        field_id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        field_id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
        field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    ];
    // SAFETY: `valueType` says which member the library wrote; all bits of each member are a value of its type.
    unsafe {
        match field.valueType {
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => wide(field.value.ullVal),
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => wide(field.value.ulVal),
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => Some(field.value.sllVal),
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT if !BYTES.contains(&field.fieldId) => {
                Some(field.value.uiVal.into())
            }
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => Some(field.value.siVal.into()),
            nvml::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => Some(field.value.usVal.into()),
            _ => None,
        }
    }
}
