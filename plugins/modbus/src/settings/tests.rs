use wholegrain_model::config::Document;

use super::*;

fn read_text(text: &str) -> Result<ModbusPlan, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("modbus");
    read(&section, &ConfigureContext::default())
}

fn device(keys: &str) -> String {
    format!("[[plugins.modbus.device]]\nhosts = [\"meter[1-2].hall\"]\n{keys}\n")
}

const REGISTER: &str = "register = [{ name = \"power\", address = 1 }]";

#[track_caller]
fn check_refused(keys: &str, part: &str) {
    let error = read_text(&device(keys)).expect_err(keys).to_string();
    assert!(error.starts_with("agent.toml:") && error.contains(part), "{error}");
}

#[test]
fn each_host_is_a_line_with_one_unit() {
    let plan = read_text(&device(REGISTER)).unwrap();
    assert_eq!((plan.devices.len(), plan.lines.len()), (2, 2));
    assert_eq!(plan.lines[1].place.to_string(), "meter2.hall:502");
    assert_eq!(plan.lines[1].devices, [1]);
    assert_eq!((plan.devices[0].unit.unit, plan.devices[0].unit.registers_max), (1, REGISTERS_MAX));
    assert_eq!(plan.devices[0].sensors[0].name, "meter1.hall/power");
    assert_eq!((plan.lines[0].settings.framing, plan.lines[0].settings.retries), (Framing::Tcp, 0));
}

#[test]
fn devices_share_the_line_that_they_connect_to() {
    let keys = format!("connect = \"gateway:1502\"\nunit = \"{{1}}\"\npath = \"hall/m{{1}}\"\n{REGISTER}");
    let plan = read_text(&device(&keys)).unwrap();
    assert_eq!((plan.lines.len(), plan.lines[0].devices.as_slice()), (1, &[0, 1][..]));
    assert_eq!(plan.devices.iter().map(|device| device.unit.unit).collect::<Vec<_>>(), [1, 2]);
    let keys = format!(
        "serial = \"/dev/ttyUSB0\"\nunit = \"{{1}}\"\nbaud = 9600\nparity = \"none\"\nstop_bits = 2\n{REGISTER}"
    );
    let plan = read_text(&device(&keys)).unwrap();
    assert_eq!((plan.lines.len(), plan.lines[0].settings.framing), (1, Framing::Serial));
    assert_eq!(plan.devices[1].host, "meter2.hall, /dev/ttyUSB0", "messages name the file");
    assert!(plan.lines[0].settings.pause > Duration::from_millis(4) && plan.lines[0].settings.retries > 0);
}

#[test]
fn a_list_replaces_registers_of_its_template_by_name() {
    let text = "
        [plugins.modbus.template.base]
        order = \"word-swap\"
        [[plugins.modbus.template.base.register]]
        name = \"power\"
        address = 1
        type = \"u32\"
        [[plugins.modbus.template.base.register]]
        name = \"energy\"
        address = 9
        [[plugins.modbus.device]]
        hosts = [\"a\"]
        template = \"base\"
        register = [{ name = \"power\", address = 7, type = \"f32\" }]
    ";
    let plan = read_text(text).unwrap();
    let unit = &plan.devices[0].unit;
    let power = plan.devices[0].sensors.iter().position(|sensor| sensor.name == "a/power").unwrap();
    assert_eq!((unit.points.len(), unit.points[power].address), (2, 7));
    assert_eq!(unit.points[power].decoder.order, ByteOrder::WordSwap);
}

#[test]
fn the_packaged_example_is_valid() {
    let plan = read_text(include_str!("../../../../packaging/plugins/modbus.toml")).unwrap();
    assert_eq!(plan.devices.len(), 40 + 8 + 4);
    assert_eq!(plan.lines.len(), 40 + 1 + 1);
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    check_refused("", "has 0 registers");
    check_refused(&format!("unit = 256\n{REGISTER}"), "unit of meter1.hall is not a number");
    check_refused(&format!("unit = \"x\"\n{REGISTER}"), "unit of meter1.hall is not a number");
    check_refused(&format!("serial = \"/dev/ttyS0\"\nunit = 0\n{REGISTER}"), "units from 1 to 247");
    check_refused(&format!("serial = \"/dev/ttyS0\"\nbaud = 9601\n{REGISTER}"), "baud is 9601");
    check_refused(&format!("serial = \"/dev/ttyS0\"\nstop_bits = 3\n{REGISTER}"), "stop_bits is 3");
    check_refused(&format!("serial = \"/dev/ttyS0\"\nconnect = \"a\"\n{REGISTER}"), "neither connect");
    check_refused(&format!("baud = 9600\n{REGISTER}"), "baud is for serial lines");
    check_refused(&format!("pipeline = 0\n{REGISTER}"), "pipeline is 0");
    check_refused(&format!("pause = \"1min\"\n{REGISTER}"), "pause is 1min");
    check_refused(&format!("registers_max = 126\n{REGISTER}"), "registers_max is 126");
    check_refused(&format!("gap = 126\n{REGISTER}"), "gap is 126");
    check_refused(&format!("connect = \"a:b\"\n{REGISTER}"), "a:b");
    check_refused("registers = []", "did you mean `register`?");
    for (keys, part) in [
        ("address = 1, order = \"ABCD\"", "has not the 2 bytes"),
        ("address = 1, order = \"AAAA\", type = \"u32\"", "no order of bytes"),
        ("address = 65535, type = \"u32\"", "too near to the last"),
        ("address = 1, type = \"bit\"", "needs bit = 0 to 15"),
        ("address = 1, type = \"bit\", bit = 16", "bits 0 to 15"),
        ("address = 1, bit = 1", "bit is for type"),
        ("address = 1, table = \"coil\", type = \"u16\"", "is one bit"),
        ("address = 1, scale = 0.0", "not 0"),
        ("address = 1, offset = inf", "offset must be finite"),
        ("address = 1, wraps = true", "wraps is for counters"),
        ("address = 1, wraps = true, kind = \"counter\", type = \"u64\"", "wraps is for counters"),
        ("address = 1, unit = \"watts\"", "unit \"watts\""),
        ("address = 1, type = \"u15\"", "did you mean `u16`?"),
        ("address = 70000", "70000"),
    ] {
        check_refused(&format!("register = [{{ name = \"a\", {keys} }}]"), part);
    }
    check_refused("register = [{ name = \"../a\", address = 1 }]", "..");
    check_refused(
        "path = \"d{1}\"\nregister = [{ name = \"a\", address = 1 }, { name = \"a\", address = 2 }]",
        "have the name",
    );
    let two = format!("{}{}", device(REGISTER), device(&format!("path = \"x{{1}}\"\npipeline = 2\n{REGISTER}")));
    let error = read_text(&two).unwrap_err().to_string();
    assert!(error.contains("x1 and meter1.hall are both on meter1.hall:502"), "{error}");
}
