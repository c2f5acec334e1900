use wholegrain_model::config::Document;

use super::*;

fn read_text(text: &str) -> Result<BacnetPlan, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("bacnet");
    read(&section, &ConfigureContext::default())
}

fn device(keys: &str) -> String {
    format!("[[plugins.bacnet.device]]\nhosts = [\"ahu[1-2]\"]\n{keys}\n")
}

#[test]
fn the_packaged_example_is_valid() {
    let (config, settings) = read_text(include_str!("../../../packaging/plugins/bacnet.toml")).unwrap();
    assert_eq!((config.devices.len(), settings.len()), (13, 13));
    assert_eq!(config.devices[0].path, "cooling/ahu01");
    assert_eq!(settings[0].cov, Some(CovSettings { is_confirmed: false, lifetime_s: 600 }));
    assert_eq!((settings[12].instance, settings[12].lists.len()), (Some(1201), OBJECT_TYPES.len()));
}

#[test]
fn instances_can_come_from_the_name_of_the_host() {
    let (_, settings) = read_text(&device("instance = \"10{1}\"\nobjects = [\"analog-input\"]")).unwrap();
    assert_eq!(settings.iter().map(|one| one.instance).collect::<Vec<_>>(), [Some(101), Some(102)]);
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    for (keys, part) in [
        ("", "has no objects"),
        ("objects = [\"analog-inputs\"]", "did you mean `analog-input`?"),
        ("objects = [\"all\"]\ninstance = 4194303", "not a number from 0 to 4194302"),
        ("objects = [\"all\"]\ninstance = \"x\"", "not a number from 0 to 4194302"),
        ("objects = [\"all\"]\ncov = \"on\"", "unknown value `on`"),
        ("objects = [\"all\"]\ncov_lifetime = \"1s\"", "cov_lifetime is 1s"),
        ("object = [{ type = \"analog\", instance = 1 }]", "unknown type `analog`"),
        ("object = [{ type = \"analog-input\", instance = 4194303 }]", "is above 4194302"),
        ("object = [{ type = \"analog-input\", instance = 1, unit = \"watts\" }]", "unit \"watts\""),
        ("object = [{ type = \"analog-input\", instance = 1, scale = 0.0 }]", "not 0"),
        ("object = [{ type = \"analog-input\", instance = 1, name = \"../a\" }]", ".."),
        ("objekts = []", "did you mean `objects`?"),
    ] {
        let error = read_text(&device(keys)).expect_err(keys).to_string();
        assert!(error.starts_with("agent.toml:") && error.contains(part), "{error}");
    }
}
