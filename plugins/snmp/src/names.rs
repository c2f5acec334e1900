//! Names of objects and ready-made groups, from the MIBs of these names. Other objects are given by number.

use wholegrain_model::Kind::{self, Counter, Gauge};

use crate::ber::Oid;

/// An object with a name.
#[derive(Debug, Clone, Copy)]
pub struct NamedObject {
    /// The name as in the MIB: `MODULE::object`.
    pub name: &'static str,
    oid: &'static str,
    pub unit: &'static str,
    pub scale: f64,
    pub kind: Kind,
    pub description: &'static str,
}

const fn object(
    name: &'static str,
    oid: &'static str,
    kind: Kind,
    unit: &'static str,
    scale: f64,
    description: &'static str,
) -> NamedObject {
    NamedObject { name, oid, unit, scale, kind, description }
}

impl NamedObject {
    /// The object with this name, with or without its module.
    pub fn find(name: &str) -> Option<&'static Self> {
        NAMES.iter().find(|object| object.name == name || object.short() == name)
    }

    /// The object with this number; a scalar also with its `.0`.
    pub fn of_oid(oid: &Oid) -> Option<&'static Self> {
        let text = oid.to_string();
        NAMES.iter().find(|object| object.oid == text)
    }

    /// The name without the module.
    pub fn short(&self) -> &'static str {
        self.name.split_once("::").map_or(self.name, |(_, short)| short)
    }

    /// The number. That of a scalar ends with `.0`, that of a column has no index.
    pub fn oid(&self) -> Oid {
        Oid::parse(self.oid).unwrap_or_default()
    }

    /// Whether the object has one value and no index.
    pub fn is_scalar(&self) -> bool {
        self.oid.ends_with(".0")
    }
}

/// 360 kJ: a tenth of a kilowatt-hour.
const TENTH_KWH: f64 = 360_000.0;

/// All names. UCUM units; the value of the device times the scale is the quantity.
#[rustfmt::skip]
pub const NAMES: &[NamedObject] = &[
    object("SNMPv2-MIB::sysUpTime", "1.3.6.1.2.1.1.3.0", Gauge, "s", 0.01, "Time since the agent started."),
    // RFC 2863
    object("IF-MIB::ifDescr", "1.3.6.1.2.1.2.2.1.2", Gauge, "1", 1.0, "Name of the interface as its driver gives it."),
    object("IF-MIB::ifSpeed", "1.3.6.1.2.1.2.2.1.5", Gauge, "bit/s", 1.0, "Speed of the interface."),
    object("IF-MIB::ifAdminStatus", "1.3.6.1.2.1.2.2.1.7", Gauge, "1", 1.0, "Requested state: 1 up, 2 down, 3 testing."),
    object("IF-MIB::ifOperStatus", "1.3.6.1.2.1.2.2.1.8", Gauge, "1", 1.0, "State: 1 up, 2 down, 3 testing, 4 unknown, 5 dormant, 6 not present, 7 lower layer down."),
    object("IF-MIB::ifInOctets", "1.3.6.1.2.1.2.2.1.10", Counter, "By", 1.0, "Bytes received (32 bits)."),
    object("IF-MIB::ifInUcastPkts", "1.3.6.1.2.1.2.2.1.11", Counter, "{packet}", 1.0, "Unicast packets received (32 bits)."),
    object("IF-MIB::ifInDiscards", "1.3.6.1.2.1.2.2.1.13", Counter, "{packet}", 1.0, "Received packets that were discarded."),
    object("IF-MIB::ifInErrors", "1.3.6.1.2.1.2.2.1.14", Counter, "{packet}", 1.0, "Received packets with errors."),
    object("IF-MIB::ifOutOctets", "1.3.6.1.2.1.2.2.1.16", Counter, "By", 1.0, "Bytes sent (32 bits)."),
    object("IF-MIB::ifOutUcastPkts", "1.3.6.1.2.1.2.2.1.17", Counter, "{packet}", 1.0, "Unicast packets sent (32 bits)."),
    object("IF-MIB::ifOutDiscards", "1.3.6.1.2.1.2.2.1.19", Counter, "{packet}", 1.0, "Packets to send that were discarded."),
    object("IF-MIB::ifOutErrors", "1.3.6.1.2.1.2.2.1.20", Counter, "{packet}", 1.0, "Packets that could not be sent because of errors."),
    object("IF-MIB::ifName", "1.3.6.1.2.1.31.1.1.1.1", Gauge, "1", 1.0, "Short name of the interface."),
    object("IF-MIB::ifHCInOctets", "1.3.6.1.2.1.31.1.1.1.6", Counter, "By", 1.0, "Bytes received."),
    object("IF-MIB::ifHCInUcastPkts", "1.3.6.1.2.1.31.1.1.1.7", Counter, "{packet}", 1.0, "Unicast packets received."),
    object("IF-MIB::ifHCInMulticastPkts", "1.3.6.1.2.1.31.1.1.1.8", Counter, "{packet}", 1.0, "Multicast packets received."),
    object("IF-MIB::ifHCInBroadcastPkts", "1.3.6.1.2.1.31.1.1.1.9", Counter, "{packet}", 1.0, "Broadcast packets received."),
    object("IF-MIB::ifHCOutOctets", "1.3.6.1.2.1.31.1.1.1.10", Counter, "By", 1.0, "Bytes sent."),
    object("IF-MIB::ifHCOutUcastPkts", "1.3.6.1.2.1.31.1.1.1.11", Counter, "{packet}", 1.0, "Unicast packets sent."),
    object("IF-MIB::ifHCOutMulticastPkts", "1.3.6.1.2.1.31.1.1.1.12", Counter, "{packet}", 1.0, "Multicast packets sent."),
    object("IF-MIB::ifHCOutBroadcastPkts", "1.3.6.1.2.1.31.1.1.1.13", Counter, "{packet}", 1.0, "Broadcast packets sent."),
    object("IF-MIB::ifHighSpeed", "1.3.6.1.2.1.31.1.1.1.15", Gauge, "bit/s", 1e6, "Speed of the interface."),
    object("IF-MIB::ifAlias", "1.3.6.1.2.1.31.1.1.1.18", Gauge, "1", 1.0, "Name of the interface that an administrator gave."),
    // RFC 2790
    object("HOST-RESOURCES-MIB::hrSystemUptime", "1.3.6.1.2.1.25.1.1.0", Gauge, "s", 0.01, "Time since the host started."),
    object("HOST-RESOURCES-MIB::hrSystemNumUsers", "1.3.6.1.2.1.25.1.5.0", Gauge, "{session}", 1.0, "Sessions of users."),
    object("HOST-RESOURCES-MIB::hrSystemProcesses", "1.3.6.1.2.1.25.1.6.0", Gauge, "{process}", 1.0, "Processes."),
    object("HOST-RESOURCES-MIB::hrMemorySize", "1.3.6.1.2.1.25.2.2.0", Gauge, "By", 1024.0, "Main memory."),
    object("HOST-RESOURCES-MIB::hrStorageDescr", "1.3.6.1.2.1.25.2.3.1.3", Gauge, "1", 1.0, "Name of the storage."),
    object("HOST-RESOURCES-MIB::hrStorageAllocationUnits", "1.3.6.1.2.1.25.2.3.1.4", Gauge, "By", 1.0, "Size of an allocation unit."),
    object("HOST-RESOURCES-MIB::hrStorageSize", "1.3.6.1.2.1.25.2.3.1.5", Gauge, "By", 1.0, "Size of the storage."),
    object("HOST-RESOURCES-MIB::hrStorageUsed", "1.3.6.1.2.1.25.2.3.1.6", Gauge, "By", 1.0, "Used part of the storage."),
    object("HOST-RESOURCES-MIB::hrProcessorLoad", "1.3.6.1.2.1.25.3.3.1.2", Gauge, "%", 1.0, "Use of the processor in the last minute."),
    // RFC 1628
    object("UPS-MIB::upsBatteryStatus", "1.3.6.1.2.1.33.1.2.1.0", Gauge, "1", 1.0, "State of the battery: 1 unknown, 2 normal, 3 low, 4 depleted."),
    object("UPS-MIB::upsSecondsOnBattery", "1.3.6.1.2.1.33.1.2.2.0", Gauge, "s", 1.0, "Time on battery; 0 on mains."),
    object("UPS-MIB::upsEstimatedMinutesRemaining", "1.3.6.1.2.1.33.1.2.3.0", Gauge, "s", 60.0, "Time until the battery is depleted at the present load."),
    object("UPS-MIB::upsEstimatedChargeRemaining", "1.3.6.1.2.1.33.1.2.4.0", Gauge, "%", 1.0, "Charge of the battery."),
    object("UPS-MIB::upsBatteryVoltage", "1.3.6.1.2.1.33.1.2.5.0", Gauge, "V", 0.1, "Voltage of the battery."),
    object("UPS-MIB::upsBatteryCurrent", "1.3.6.1.2.1.33.1.2.6.0", Gauge, "A", 0.1, "Current of the battery."),
    object("UPS-MIB::upsBatteryTemperature", "1.3.6.1.2.1.33.1.2.7.0", Gauge, "Cel", 1.0, "Temperature at the battery."),
    object("UPS-MIB::upsInputLineBads", "1.3.6.1.2.1.33.1.3.1.0", Counter, "{event}", 1.0, "Times that the input was out of tolerance."),
    object("UPS-MIB::upsInputFrequency", "1.3.6.1.2.1.33.1.3.3.1.2", Gauge, "Hz", 0.1, "Input frequency."),
    object("UPS-MIB::upsInputVoltage", "1.3.6.1.2.1.33.1.3.3.1.3", Gauge, "V", 1.0, "Input voltage."),
    object("UPS-MIB::upsInputCurrent", "1.3.6.1.2.1.33.1.3.3.1.4", Gauge, "A", 0.1, "Input current."),
    object("UPS-MIB::upsInputTruePower", "1.3.6.1.2.1.33.1.3.3.1.5", Gauge, "W", 1.0, "Input power."),
    object("UPS-MIB::upsOutputSource", "1.3.6.1.2.1.33.1.4.1.0", Gauge, "1", 1.0, "Source of the output: 1 other, 2 none, 3 mains, 4 bypass, 5 battery, 6 booster, 7 reducer."),
    object("UPS-MIB::upsOutputFrequency", "1.3.6.1.2.1.33.1.4.2.0", Gauge, "Hz", 0.1, "Output frequency."),
    object("UPS-MIB::upsOutputVoltage", "1.3.6.1.2.1.33.1.4.4.1.2", Gauge, "V", 1.0, "Output voltage."),
    object("UPS-MIB::upsOutputCurrent", "1.3.6.1.2.1.33.1.4.4.1.3", Gauge, "A", 0.1, "Output current."),
    object("UPS-MIB::upsOutputPower", "1.3.6.1.2.1.33.1.4.4.1.4", Gauge, "W", 1.0, "Output power."),
    object("UPS-MIB::upsOutputPercentLoad", "1.3.6.1.2.1.33.1.4.4.1.5", Gauge, "%", 1.0, "Used part of the power capacity."),
    // RFC 6933, RFC 3433
    object("ENTITY-MIB::entPhysicalDescr", "1.3.6.1.2.1.47.1.1.1.1.2", Gauge, "1", 1.0, "Description of the part."),
    object("ENTITY-MIB::entPhysicalName", "1.3.6.1.2.1.47.1.1.1.1.7", Gauge, "1", 1.0, "Name of the part."),
    object("ENTITY-SENSOR-MIB::entPhySensorValue", "1.3.6.1.2.1.99.1.1.1.4", Gauge, "1", 1.0, "Value of the sensor; its type, scale and precision are columns."),
    // UCD-SNMP-MIB
    object("UCD-SNMP-MIB::memTotalReal", "1.3.6.1.4.1.2021.4.5.0", Gauge, "By", 1024.0, "Main memory."),
    object("UCD-SNMP-MIB::memAvailReal", "1.3.6.1.4.1.2021.4.6.0", Gauge, "By", 1024.0, "Unused main memory."),
    object("UCD-SNMP-MIB::memBuffer", "1.3.6.1.4.1.2021.4.14.0", Gauge, "By", 1024.0, "Memory of buffers."),
    object("UCD-SNMP-MIB::memCached", "1.3.6.1.4.1.2021.4.15.0", Gauge, "By", 1024.0, "Memory of the page cache."),
    object("UCD-SNMP-MIB::laNames", "1.3.6.1.4.1.2021.10.1.2", Gauge, "1", 1.0, "Name of the load average."),
    object("UCD-SNMP-MIB::laLoadInt", "1.3.6.1.4.1.2021.10.1.5", Gauge, "1", 0.01, "Load average."),
    object("UCD-SNMP-MIB::laLoadFloat", "1.3.6.1.4.1.2021.10.1.6", Gauge, "1", 1.0, "Load average."),
    object("UCD-SNMP-MIB::ssCpuRawUser", "1.3.6.1.4.1.2021.11.50.0", Counter, "s", 0.01, "Time of the processors in programs."),
    object("UCD-SNMP-MIB::ssCpuRawNice", "1.3.6.1.4.1.2021.11.51.0", Counter, "s", 0.01, "Time of the processors in programs of low priority."),
    object("UCD-SNMP-MIB::ssCpuRawSystem", "1.3.6.1.4.1.2021.11.52.0", Counter, "s", 0.01, "Time of the processors in the kernel."),
    object("UCD-SNMP-MIB::ssCpuRawIdle", "1.3.6.1.4.1.2021.11.53.0", Counter, "s", 0.01, "Time of the processors without work."),
    object("UCD-SNMP-MIB::ssCpuRawWait", "1.3.6.1.4.1.2021.11.54.0", Counter, "s", 0.01, "Time of the processors without work while a disk was awaited."),
    object("UCD-SNMP-MIB::ssRawInterrupts", "1.3.6.1.4.1.2021.11.59.0", Counter, "{interrupt}", 1.0, "Interrupts."),
    object("UCD-SNMP-MIB::ssRawContexts", "1.3.6.1.4.1.2021.11.60.0", Counter, "{switch}", 1.0, "Context switches."),
    // LM-SENSORS-MIB
    object("LM-SENSORS-MIB::lmTempSensorsDevice", "1.3.6.1.4.1.2021.13.16.2.1.2", Gauge, "1", 1.0, "Name of the temperature sensor."),
    object("LM-SENSORS-MIB::lmTempSensorsValue", "1.3.6.1.4.1.2021.13.16.2.1.3", Gauge, "Cel", 1e-3, "Temperature."),
    object("LM-SENSORS-MIB::lmFanSensorsDevice", "1.3.6.1.4.1.2021.13.16.3.1.2", Gauge, "1", 1.0, "Name of the fan."),
    object("LM-SENSORS-MIB::lmFanSensorsValue", "1.3.6.1.4.1.2021.13.16.3.1.3", Gauge, "/min", 1.0, "Revolutions of the fan."),
    object("LM-SENSORS-MIB::lmVoltSensorsDevice", "1.3.6.1.4.1.2021.13.16.4.1.2", Gauge, "1", 1.0, "Name of the voltage sensor."),
    object("LM-SENSORS-MIB::lmVoltSensorsValue", "1.3.6.1.4.1.2021.13.16.4.1.3", Gauge, "V", 1e-3, "Voltage."),
    // PowerNet-MIB (APC), tables of rPDU2
    object("PowerNet-MIB::rPDULoadStatusLoad", "1.3.6.1.4.1.318.1.1.12.2.3.1.1.2", Gauge, "A", 0.1, "Current of a phase or bank."),
    object("PowerNet-MIB::rPDU2DeviceStatusName", "1.3.6.1.4.1.318.1.1.26.4.3.1.3", Gauge, "1", 1.0, "Name of the unit."),
    object("PowerNet-MIB::rPDU2DeviceStatusPower", "1.3.6.1.4.1.318.1.1.26.4.3.1.5", Gauge, "W", 10.0, "Power of the unit."),
    object("PowerNet-MIB::rPDU2DeviceStatusEnergy", "1.3.6.1.4.1.318.1.1.26.4.3.1.9", Counter, "J", TENTH_KWH, "Energy of the unit."),
    object("PowerNet-MIB::rPDU2PhaseStatusCurrent", "1.3.6.1.4.1.318.1.1.26.6.3.1.5", Gauge, "A", 0.1, "Current of the phase."),
    object("PowerNet-MIB::rPDU2PhaseStatusVoltage", "1.3.6.1.4.1.318.1.1.26.6.3.1.6", Gauge, "V", 1.0, "Voltage of the phase."),
    object("PowerNet-MIB::rPDU2PhaseStatusPower", "1.3.6.1.4.1.318.1.1.26.6.3.1.7", Gauge, "W", 10.0, "Power of the phase."),
    object("PowerNet-MIB::rPDU2OutletMeteredStatusName", "1.3.6.1.4.1.318.1.1.26.9.4.3.1.3", Gauge, "1", 1.0, "Name of the outlet."),
    object("PowerNet-MIB::rPDU2OutletMeteredStatusCurrent", "1.3.6.1.4.1.318.1.1.26.9.4.3.1.6", Gauge, "A", 0.1, "Current of the outlet."),
    object("PowerNet-MIB::rPDU2OutletMeteredStatusPower", "1.3.6.1.4.1.318.1.1.26.9.4.3.1.7", Gauge, "W", 1.0, "Power of the outlet."),
    object("PowerNet-MIB::rPDU2OutletMeteredStatusEnergy", "1.3.6.1.4.1.318.1.1.26.9.4.3.1.11", Counter, "J", TENTH_KWH, "Energy of the outlet."),
];

/// A table of a ready-made group.
pub struct PresetTable {
    /// The level of its rows in the path.
    pub name: &'static str,
    /// The column whose text names the rows; empty for the index.
    pub index: &'static str,
    pub columns: &'static [&'static str],
}

/// A group of sensors that a template can name.
pub struct PresetGroup {
    pub name: &'static str,
    pub objects: &'static [&'static str],
    pub tables: &'static [PresetTable],
}

/// The ready-made groups, for the key `presets`.
pub const PRESETS: &[PresetGroup] = &[
    PresetGroup {
        name: "ports",
        objects: &[],
        tables: &[PresetTable {
            name: "port",
            index: "ifName",
            columns: &[
                "ifHCInOctets",
                "ifHCOutOctets",
                "ifHCInUcastPkts",
                "ifHCOutUcastPkts",
                "ifInErrors",
                "ifOutErrors",
                "ifInDiscards",
                "ifOutDiscards",
                "ifOperStatus",
            ],
        }],
    },
    // For agents of version 1 or without 64-bit counters.
    PresetGroup {
        name: "ports32",
        objects: &[],
        tables: &[PresetTable {
            name: "port32",
            index: "ifDescr",
            columns: &["ifInOctets", "ifOutOctets", "ifInErrors", "ifOutErrors", "ifOperStatus"],
        }],
    },
    PresetGroup {
        name: "host",
        objects: &["hrSystemUptime", "hrSystemProcesses", "hrSystemNumUsers", "hrMemorySize"],
        tables: &[
            PresetTable { name: "processor", index: "", columns: &["hrProcessorLoad"] },
            PresetTable { name: "storage", index: "hrStorageDescr", columns: &["hrStorageSize", "hrStorageUsed"] },
        ],
    },
    PresetGroup {
        name: "ups",
        objects: &[
            "upsBatteryStatus",
            "upsSecondsOnBattery",
            "upsEstimatedMinutesRemaining",
            "upsEstimatedChargeRemaining",
            "upsBatteryVoltage",
            "upsBatteryCurrent",
            "upsBatteryTemperature",
            "upsInputLineBads",
            "upsOutputSource",
            "upsOutputFrequency",
        ],
        tables: &[
            PresetTable {
                name: "input",
                index: "",
                columns: &["upsInputFrequency", "upsInputVoltage", "upsInputCurrent", "upsInputTruePower"],
            },
            PresetTable {
                name: "output",
                index: "",
                columns: &["upsOutputVoltage", "upsOutputCurrent", "upsOutputPower", "upsOutputPercentLoad"],
            },
        ],
    },
    PresetGroup {
        name: "sensors",
        objects: &[],
        tables: &[PresetTable { name: "sensor", index: "entPhysicalName", columns: &["entPhySensorValue"] }],
    },
    PresetGroup {
        name: "system",
        objects: &[
            "memTotalReal",
            "memAvailReal",
            "memBuffer",
            "memCached",
            "ssCpuRawUser",
            "ssCpuRawNice",
            "ssCpuRawSystem",
            "ssCpuRawIdle",
            "ssCpuRawWait",
            "ssRawInterrupts",
            "ssRawContexts",
        ],
        tables: &[PresetTable { name: "load", index: "laNames", columns: &["laLoadFloat"] }],
    },
    PresetGroup {
        name: "lmsensors",
        objects: &[],
        tables: &[
            PresetTable { name: "temperature", index: "lmTempSensorsDevice", columns: &["lmTempSensorsValue"] },
            PresetTable { name: "fan", index: "lmFanSensorsDevice", columns: &["lmFanSensorsValue"] },
            PresetTable { name: "voltage", index: "lmVoltSensorsDevice", columns: &["lmVoltSensorsValue"] },
        ],
    },
    PresetGroup {
        name: "pdu",
        objects: &[],
        tables: &[
            PresetTable { name: "unit", index: "", columns: &["rPDU2DeviceStatusPower", "rPDU2DeviceStatusEnergy"] },
            PresetTable {
                name: "phase",
                index: "",
                columns: &["rPDU2PhaseStatusCurrent", "rPDU2PhaseStatusVoltage", "rPDU2PhaseStatusPower"],
            },
            PresetTable {
                name: "outlet",
                index: "rPDU2OutletMeteredStatusName",
                columns: &[
                    "rPDU2OutletMeteredStatusCurrent",
                    "rPDU2OutletMeteredStatusPower",
                    "rPDU2OutletMeteredStatusEnergy",
                ],
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_preset_is_complete() {
        for object in NAMES {
            assert!(Oid::parse(object.oid).is_some(), "{}", object.name);
            assert_eq!(NAMES.iter().filter(|other| other.short() == object.short()).count(), 1, "{}", object.name);
            assert_eq!(NAMES.iter().filter(|other| other.oid == object.oid).count(), 1, "{}", object.name);
            assert!(object.description.ends_with('.'), "{}", object.name);
            assert!(wholegrain_model::unit::Unit::parse(object.unit).is_ok(), "{}: {}", object.name, object.unit);
        }
        for preset in PRESETS {
            assert!(preset.objects.iter().all(|name| NamedObject::find(name).unwrap().is_scalar()), "{}", preset.name);
            for table in preset.tables {
                let columns = table.columns.iter().chain([&table.index].into_iter().filter(|index| !index.is_empty()));
                assert!(columns.map(|name| NamedObject::find(name).unwrap()).all(|column| !column.is_scalar()));
            }
        }
    }
}
