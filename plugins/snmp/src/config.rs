//! The keys of an agent in a template or a list of devices, checked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_devices::{Credentials, DeviceConfig};
use wholegrain_model::config::{ConfigError, Section, unknown};
use wholegrain_model::name::check_relative;
use wholegrain_model::schema::UNIT_BYTES_MAX;
use wholegrain_model::unit::Unit;
use wholegrain_model::{Interval, Kind, ValueType};

use crate::ber::Oid;
use crate::names::{NAMES, NamedObject, PRESETS, PresetGroup};
use crate::session::SnmpIdentity;
use crate::spec::{GroupSpec, ObjectSpec, TableSpec, TableStyle};
use crate::usm::{AuthKind, PASSWORD_BYTES_MIN, PrivacyKind, UsmUser};

/// The most objects and columns of a device.
const OBJECTS_MAX: usize = 2000;
/// The keys of a file of credentials.
const CREDENTIALS: [&str; 7] = ["community", "user", "auth", "auth_password", "privacy", "privacy_password", "context"];

/// The keys of an SNMP agent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnmpKeys {
    /// `1`, `2c` or `3`. Without it, 3 for credentials with a user, else 2c.
    pub version: Option<String>,
    /// How many rows a GETBULK asks for at most.
    pub max_repetitions: Option<u32>,
    /// Names of ready-made groups.
    pub presets: Vec<String>,
    pub group: Vec<GroupKeys>,
}

/// A group of a device.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupKeys {
    pub name: String,
    pub interval: Option<Interval>,
    pub offset: Option<Interval>,
    /// Objects by name or number.
    pub get: Vec<String>,
    /// Objects with a description of their own.
    pub object: Vec<ObjectKeys>,
    pub table: Vec<TableKeys>,
}

/// An object or a column.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectKeys {
    pub oid: String,
    pub name: Option<String>,
    pub unit: Option<String>,
    pub scale: Option<f64>,
    pub kind: Option<Kind>,
    #[serde(rename = "type")]
    pub value_type: Option<ValueType>,
    pub description: Option<String>,
    pub gap: Option<i64>,
    pub scale_by: Option<String>,
}

/// A table of a group.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableKeys {
    pub name: String,
    /// The column whose text names the rows.
    pub index: Option<String>,
    /// Columns of the table, by their names.
    pub columns: Vec<String>,
    /// Columns with a description of their own.
    pub column: Vec<ObjectKeys>,
}

/// The groups of these keys. An error has the key and the message.
pub fn groups(keys: &SnmpKeys) -> Result<Vec<GroupSpec>, (&'static str, String)> {
    let mut groups = Vec::new();
    for name in &keys.presets {
        let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
            let known: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            return Err(("presets", unknown("preset", name, &known)));
        };
        groups.push(preset_group(preset));
    }
    for group in &keys.group {
        groups.push(group_spec(group).map_err(|message| ("group", format!("group {:?}: {message}", group.name)))?);
    }
    if groups.is_empty() {
        return Err(("hosts", "nothing is read of these devices: give presets, or groups".to_owned()));
    }
    let mut names = HashSet::new();
    if let Some(twice) = groups.iter().find(|group| !names.insert(&group.name)) {
        return Err(("group", format!("two groups have the name {:?}", twice.name)));
    }
    let columns = |group: &GroupSpec| group.tables.iter().map(|table| table.columns.len()).sum::<usize>();
    let count: usize = groups.iter().map(|group| group.objects.len() + columns(group)).sum();
    if count > OBJECTS_MAX {
        return Err(("group", format!("{count} objects and columns of a device; at most {OBJECTS_MAX} are allowed")));
    }
    Ok(groups)
}

fn preset_group(preset: &PresetGroup) -> GroupSpec {
    let named = |name: &&str| NamedObject::find(name).map(named_spec);
    let tables = preset.tables.iter().map(|table| TableSpec {
        name: table.name.to_owned(),
        index: NamedObject::find(table.index).map(NamedObject::oid),
        columns: table.columns.iter().filter_map(named).collect(),
        style: if preset.name == "sensors" { TableStyle::EntitySensor } else { TableStyle::Plain },
    });
    GroupSpec {
        name: preset.name.to_owned(),
        interval: None,
        offset: None,
        objects: preset.objects.iter().filter_map(named).collect(),
        tables: tables.collect(),
        is_preset: true,
    }
}

fn named_spec(object: &'static NamedObject) -> ObjectSpec {
    let is_storage = ["hrStorageSize", "hrStorageUsed"].contains(&object.short());
    ObjectSpec {
        oid: object.oid(),
        name: object.short().to_owned(),
        unit: object.unit.to_owned(),
        scale: object.scale,
        kind: Some(object.kind),
        value_type: None,
        description: object.description.to_owned(),
        // RFC 1628 and PowerNet-MIB answer -1 for what a model does not have.
        gap: (object.name.starts_with("UPS-MIB") || object.name.starts_with("PowerNet")).then_some(-1),
        scale_by: is_storage.then(|| NamedObject::find("hrStorageAllocationUnits").map(NamedObject::oid)).flatten(),
    }
}

fn group_spec(keys: &GroupKeys) -> Result<GroupSpec, String> {
    check_relative(&keys.name).map_err(|error| format!("name: {error}"))?;
    let mut objects = Vec::new();
    for name in &keys.get {
        objects.push(object_spec(&ObjectKeys { oid: name.clone(), ..ObjectKeys::default() }, true)?);
    }
    for object in &keys.object {
        objects.push(object_spec(object, true)?);
    }
    let tables = keys.table.iter().map(table_spec).collect::<Result<Vec<_>, _>>()?;
    if objects.is_empty() && tables.is_empty() {
        return Err("is empty; give get, object or table".to_owned());
    }
    let mut names = HashSet::new();
    let all = objects.iter().map(|object| &object.name).chain(tables.iter().map(|table| &table.name));
    if let Some(twice) = all.into_iter().find(|name| !names.insert(*name)) {
        return Err(format!("two objects or tables have the name {twice:?}"));
    }
    Ok(GroupSpec {
        name: keys.name.clone(),
        interval: keys.interval,
        offset: keys.offset,
        objects,
        tables,
        is_preset: false,
    })
}

fn table_spec(keys: &TableKeys) -> Result<TableSpec, String> {
    let in_table = |message: String| format!("table {:?}: {message}", keys.name);
    check_relative(&keys.name).map_err(|error| in_table(format!("name: {error}")))?;
    let mut columns = Vec::new();
    for name in &keys.columns {
        columns.push(object_spec(&ObjectKeys { oid: name.clone(), ..ObjectKeys::default() }, false).map_err(in_table)?);
    }
    for column in &keys.column {
        columns.push(object_spec(column, false).map_err(in_table)?);
    }
    let mut names = HashSet::new();
    if let Some(twice) = columns.iter().find(|column| !names.insert(&column.name)) {
        return Err(in_table(format!("two columns have the name {:?}", twice.name)));
    }
    if columns.is_empty() {
        return Err(in_table("has no columns".to_owned()));
    }
    let index = keys.index.as_deref().map(|name| oid_of(name).map(|(oid, _)| oid)).transpose().map_err(in_table)?;
    let entity = NamedObject::find("entPhySensorValue").map(NamedObject::oid);
    let is_entity = columns.len() == 1 && Some(&columns[0].oid) == entity.as_ref();
    let style = if is_entity { TableStyle::EntitySensor } else { TableStyle::Plain };
    Ok(TableSpec { name: keys.name.clone(), index, columns, style })
}

/// The number of a name or a number, with its known properties.
fn oid_of(text: &str) -> Result<(Oid, Option<&'static NamedObject>), String> {
    if let Some(oid) = Oid::parse(text) {
        let named = NamedObject::of_oid(&oid);
        return Ok((oid, named));
    }
    match NamedObject::find(text) {
        Some(named) => Ok((named.oid(), Some(named))),
        None => {
            let known: Vec<&str> = NAMES.iter().flat_map(|object| [object.name, object.short()]).collect();
            let nearest = unknown("object", text, &known);
            let nearest = nearest.split("; expected").next().unwrap_or_default();
            Err(format!("{nearest} (objects without a name here are given by number, such as 1.3.6.1.4.1.318.1)"))
        }
    }
}

fn object_spec(keys: &ObjectKeys, is_scalar: bool) -> Result<ObjectSpec, String> {
    let (oid, named) = oid_of(&keys.oid)?;
    if let Some(named) = named.filter(|named| named.is_scalar() != is_scalar) {
        let place = if is_scalar { "a column: give it in a table" } else { "no column: give it in `get`" };
        return Err(format!("{} is {place}", named.name));
    }
    let base = named.map(named_spec);
    let name = match (&keys.name, &base) {
        (Some(name), _) => name.clone(),
        (None, Some(base)) => base.name.clone(),
        (None, None) => return Err(format!("{oid} needs a name")),
    };
    check_relative(&name).map_err(|error| error.to_string())?;
    let scale = keys.scale.or(base.as_ref().map(|base| base.scale)).unwrap_or(1.0);
    if !scale.is_finite() || scale == 0.0 {
        return Err(format!("{name}: the scale is {scale}; it must be finite and not 0"));
    }
    let unit = keys.unit.clone().or(base.as_ref().map(|base| base.unit.clone())).unwrap_or_else(|| "1".to_owned());
    if unit.len() > UNIT_BYTES_MAX {
        return Err(format!("{name}: the unit is longer than {UNIT_BYTES_MAX} bytes"));
    }
    Unit::parse(&unit).map_err(|error| format!("{name}: {error}"))?;
    let scale_by = match &keys.scale_by {
        Some(text) => Some(oid_of(text)?.0),
        None => base.as_ref().and_then(|base| base.scale_by.clone()),
    };
    Ok(ObjectSpec {
        name,
        unit,
        scale,
        kind: keys.kind.or(base.as_ref().and_then(|base| base.kind)),
        value_type: keys.value_type,
        description: keys
            .description
            .clone()
            .or(base.as_ref().map(|base| base.description.clone()))
            .unwrap_or_default(),
        gap: keys.gap.or(base.and_then(|base| base.gap)),
        scale_by,
        oid,
    })
}

/// The identities of the files of credentials, each made once: the keys of a user take a million bytes of hashing.
#[derive(Default)]
pub struct Identities(HashMap<(String, String), SnmpIdentity>);

impl Identities {
    /// The identity for a device.
    pub fn of(&mut self, device: &DeviceConfig<SnmpKeys>) -> Result<SnmpIdentity, ConfigError> {
        let version = device.protocol.version.clone().unwrap_or_default();
        let name = device.credentials.as_ref().map(|credentials| credentials.name().to_owned()).unwrap_or_default();
        if let Some(identity) = self.0.get(&(version.clone(), name.clone())) {
            return Ok(identity.clone());
        }
        let identity = identity(&device.section, &version, device.credentials.as_deref())?;
        self.0.insert((version, name), identity.clone());
        Ok(identity)
    }
}

fn identity(section: &Section, version: &str, credentials: Option<&Credentials>) -> Result<SnmpIdentity, ConfigError> {
    let refuse = |message: String| section.error("credentials", message);
    if let Some(credentials) = credentials {
        credentials.check_keys(&CREDENTIALS).map_err(refuse)?;
    }
    let has_user = credentials.is_some_and(|credentials| credentials.get("user").is_some());
    let number = match version {
        "1" => 0,
        "2c" => 1,
        "3" => 3,
        "" => {
            if has_user {
                3
            } else {
                1
            }
        }
        other => return Err(section.error("version", unknown("value", other, &["1", "2c", "3"]))),
    };
    if number == 3 {
        let Some(credentials) = credentials else {
            return Err(section.error("version", "version 3 needs credentials with a user"));
        };
        return user(credentials).map_err(refuse);
    }
    let community = match credentials {
        Some(credentials) => credentials.require("community").map_err(refuse)?.clone(),
        None => wholegrain_devices::SecretText::new("public"),
    };
    Ok(SnmpIdentity::Community { version: number, community })
}

fn user(credentials: &Credentials) -> Result<SnmpIdentity, String> {
    let file = credentials.name();
    let text = |key| credentials.get(key).map(|secret| secret.expose());
    let password = |key| {
        let password = credentials.require(key)?.expose();
        if password.len() < PASSWORD_BYTES_MIN {
            return Err(format!("credentials {file:?}: `{key}` has less than {PASSWORD_BYTES_MIN} bytes"));
        }
        Ok(password)
    };
    let auth = match text("auth") {
        Some(name) => Some((named(&AuthKind::NAMES, "auth", name, file)?, password("auth_password")?)),
        None => None,
    };
    let privacy = match text("privacy") {
        Some(name) => Some((named(&PrivacyKind::NAMES, "privacy", name, file)?, password("privacy_password")?)),
        None => None,
    };
    if privacy.is_some() && auth.is_none() {
        return Err(format!("credentials {file:?}: `privacy` needs `auth`"));
    }
    let name = credentials.require("user")?.expose();
    Ok(SnmpIdentity::User(Arc::new(UsmUser::new(name, text("context").unwrap_or_default(), auth, privacy))))
}

/// The algorithm of a name. The name is not shown, as somebody may have written a password there.
fn named<T: Copy>(known: &[(&str, T)], key: &str, name: &str, file: &str) -> Result<T, String> {
    let found = known.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("credentials {file:?}: `{key}` is unknown; expected one of {}", names.join(", "))
    })
}
