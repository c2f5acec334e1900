//! From the names in a file to sensors: prefix, map, units and kinds.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use sha2::{Digest, Sha256};
use wholegrain_model::{Kind, Pattern, SensorPath, name::sanitize_level};

use crate::csv::Fields;
use crate::failure::Failure;

/// A sensor that receives readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSensor {
    pub path: String,
    pub unit: String,
    pub kind: Kind,
}

/// The entry of the map for a name.
#[derive(Debug, Clone, Default)]
struct Mapped {
    path: String,
    unit: String,
    kind: Option<Kind>,
}

/// A unit for a name or a pattern of paths.
#[derive(Debug, Clone)]
struct UnitFor {
    whole: String,
    of: Option<(String, Option<Pattern>)>,
    unit: String,
}

/// The rules that make sensors from names.
#[derive(Debug, Clone)]
pub struct Names {
    prefix: SensorPath,
    /// Whether absolute names get the prefix too.
    always: bool,
    map: HashMap<String, Mapped>,
    units: Vec<UnitFor>,
    counters: Vec<Pattern>,
}

impl Names {
    /// With this prefix, else with one from the name of the file.
    pub fn new(prefix: Option<&str>, file: &Path, units: &[String], counters: &[Pattern]) -> Result<Self, Failure> {
        let stem = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let stem = stem.split('.').find(|part| !part.is_empty()).unwrap_or("file");
        let default = format!("/import/{}", sanitize_level(stem));
        let path = SensorPath::new(prefix.unwrap_or(&default))
            .map_err(|error| Failure::Usage(format!("--prefix: {error}")))?;
        let units = units.iter().map(|text| UnitFor::parse(text)).collect();
        Ok(Self { prefix: path, always: prefix.is_some(), map: HashMap::new(), units, counters: counters.to_vec() })
    }

    pub fn rename(&mut self, text: &str) -> Result<(), Failure> {
        let Some((name, path)) = text.rsplit_once('=') else {
            return Err(Failure::Usage(format!("--rename {text}: write NAME=PATH")));
        };
        self.map.insert(name.to_owned(), Mapped { path: path.to_owned(), ..Mapped::default() });
        Ok(())
    }

    /// Reads a file with a line `name,path[,unit[,kind]]` for each name.
    pub fn read_map(&mut self, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(Failure::reading(path))?;
        let mut fields = Fields::new(b',');
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| {
                Failure::Usage(format!("{shown}:{number}: {why}; write name,path[,unit[,gauge or counter]]"))
            };
            fields.split(line.as_bytes()).map_err(wrong)?;
            let field = |at| String::from_utf8_lossy(fields.get(line.as_bytes(), at)).trim().to_owned();
            let kind = match field(3).as_str() {
                "" => None,
                name => Some(name.parse().map_err(|error| wrong(&format!("kind: {error}")))?),
            };
            if !(2..=4).contains(&fields.len()) || field(0).is_empty() || field(1).is_empty() {
                return Err(wrong("not two to four fields"));
            }
            self.map.insert(field(0), Mapped { path: field(1), unit: field(2), kind });
        }
        Ok(())
    }

    /// The sensor of a name, which may end with its unit: `power [W]`. `below` are levels between the prefix and the name.
    pub fn target(&self, name: &str, below: &[&str], unit: &str) -> Result<TargetSensor, String> {
        let name = name.trim();
        let (plain, in_name) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
            Some((plain, unit)) => (plain.trim(), unit.trim()),
            None => (name, ""),
        };
        let mapped = self.map.get(name).or_else(|| self.map.get(plain));
        let path = mapped.map_or(plain, |mapped| mapped.path.as_str());
        let absolute = path.starts_with('/') && (mapped.is_some() || !self.always);
        let mut text = if absolute { String::new() } else { self.prefix.as_str().to_owned() };
        let levels = path.split('/').filter(|level| !level.is_empty());
        let below = below.iter().copied().filter(|_| !absolute);
        for level in below.chain(levels) {
            text.push('/');
            text.push_str(&sanitize_level(level));
        }
        if absolute && path.trim_matches('/').is_empty() {
            return Err("an empty name".to_owned());
        }
        let path = SensorPath::new(text).map_err(|error| error.to_string())?;
        let path = path.as_str();
        let of_option = self.units.iter().rev().find(|unit| unit.is_for(plain, path)).map(|unit| unit.unit.as_str());
        let mapped_unit = mapped.map_or("", |mapped| mapped.unit.as_str());
        let found = [of_option.unwrap_or(""), mapped_unit, unit, in_name].into_iter().find(|unit| !unit.is_empty());
        let counts = self.counters.iter().any(|pattern| pattern.matches(path));
        let kind = mapped.and_then(|mapped| mapped.kind).unwrap_or(if counts { Kind::Counter } else { Kind::Gauge });
        Ok(TargetSensor { path: path.to_owned(), unit: found.unwrap_or_default().to_owned(), kind })
    }

    /// Adds all rules to the hash.
    pub fn hash(&self, hash: &mut Sha256) {
        let map: BTreeMap<&String, &Mapped> = self.map.iter().collect();
        let units: Vec<&str> = self.units.iter().map(|unit| unit.whole.as_str()).collect();
        let counters: Vec<&str> = self.counters.iter().map(Pattern::as_str).collect();
        hash.update(format!("{:?} {} {map:?} {units:?} {counters:?}", self.prefix.as_str(), self.always));
    }

    /// The path above sensors with relative names.
    pub fn prefix(&self) -> &str {
        self.prefix.as_str()
    }
}

impl UnitFor {
    /// `UNIT`, or `NAME=UNIT` or `PATTERN=UNIT`.
    fn parse(text: &str) -> Self {
        let (of, unit) = match text.rsplit_once('=') {
            Some((of, unit)) => (Some((of.to_owned(), Pattern::new(of).ok())), unit),
            None => (None, text),
        };
        Self { whole: text.to_owned(), of, unit: unit.to_owned() }
    }

    fn is_for(&self, name: &str, path: &str) -> bool {
        self.of.as_ref().is_none_or(|(of, pattern)| of == name || pattern.as_ref().is_some_and(|p| p.matches(path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &Names, name: &str, path: &str, unit: &str) {
        let target = names.target(name, &[], "").unwrap();
        assert_eq!((target.path.as_str(), target.unit.as_str()), (path, unit), "{name}");
    }

    #[test]
    fn names_become_paths() {
        let pattern = [Pattern::new("energy").unwrap()];
        let units = ["Cel".to_owned(), "rack/power=W".to_owned(), "/x/**=kW".to_owned()];
        let names = Names::new(None, Path::new("a/hall 1.csv.gz"), &units, &pattern).unwrap();
        check(&names, "temp", "/import/hall_1/temp", "Cel");
        check(&names, "rack/power", "/import/hall_1/rack/power", "W");
        check(&names, " Temp (in) [K] ", "/import/hall_1/Temp__in", "Cel");
        check(&names, "/x/y", "/x/y", "kW");
        assert_eq!(names.target("energy", &[], "J").unwrap().kind, Kind::Counter);
        let mut names = Names::new(Some("/lab/import"), Path::new("a.csv"), &[], &[]).unwrap();
        check(&names, "temp [Cel]", "/lab/import/temp", "Cel");
        check(&names, "/x/y", "/lab/import/x/y", "");
        names.rename("temp=/hall/t").unwrap();
        check(&names, "temp [Cel]", "/hall/t", "Cel");
        assert_eq!(names.target("m", &["n1"], "By").unwrap().path, "/lab/import/n1/m");
        assert!(Names::new(Some("lab"), Path::new("a"), &[], &[]).is_err());
    }

    #[test]
    fn maps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        std::fs::write(&path, "# names\n\"a,b\",/hall/ab,W,counter\nc,below\n").unwrap();
        let mut names = Names::new(Some("/p"), Path::new("a"), &[], &[]).unwrap();
        names.read_map(&path).unwrap();
        let target = names.target("a,b", &[], "").unwrap();
        assert_eq!((target.path.as_str(), target.unit.as_str(), target.kind), ("/hall/ab", "W", Kind::Counter));
        check(&names, "c", "/p/below", "");
        for (text, part) in [("a", "two to four"), ("a,/b,W,sum", "kind"), ("a,,W", "two to four"), ("\"a", "closed")] {
            std::fs::write(&path, text).unwrap();
            let error = names.read_map(&path).unwrap_err();
            let text = error.report().1.unwrap().to_owned();
            assert!(text.contains(part) && text.contains(":1:"), "{text}");
        }
    }
}
