//! The known units, each defined by others. Names and values are those of the UCUM; `docs/units.md` lists the differences.

use std::sync::LazyLock;

use super::dimension::Dimension;
use super::error::UnitError;
use super::magnitude::Magnitude;
use super::measure::Measure;
use super::parse::parse;
use super::symbol::{Atom, Atoms};

const BASE: [(&str, Dimension); 9] = [
    ("m", Dimension::LENGTH),
    ("g", Dimension::MASS),
    ("s", Dimension::TIME),
    ("A", Dimension::CURRENT),
    ("K", Dimension::TEMPERATURE),
    ("mol", Dimension::AMOUNT),
    ("cd", Dimension::LUMINOUS_INTENSITY),
    ("rad", Dimension::ANGLE),
    ("bit", Dimension::INFORMATION),
];

/// Units with a zero point of their own: name, metric, the size of one (number and unit), its zero point (number and unit).
const OFFSET: [(&str, bool, &str, &str, &str, &str); 3] = [
    ("Cel", true, "1", "K", "273.15", "K"),
    ("[degF]", false, "5", "K/9", "2298.35", "K/9"),
    ("[degRe]", false, "1.25", "K", "273.15", "K"),
];

/// Metric units: name, value, unit of the value.
const METRIC: &[(&str, &str, &str)] = &[
    ("sr", "1", "rad2"),
    ("Hz", "1", "s-1"),
    ("N", "1", "kg.m/s2"),
    ("Pa", "1", "N/m2"),
    ("J", "1", "N.m"),
    ("W", "1", "J/s"),
    ("C", "1", "A.s"),
    ("V", "1", "J/C"),
    ("F", "1", "C/V"),
    ("Ohm", "1", "V/A"),
    ("S", "1", "Ohm-1"),
    ("mho", "1", "S"),
    ("Wb", "1", "V.s"),
    ("T", "1", "Wb/m2"),
    ("H", "1", "Wb/A"),
    ("lm", "1", "cd.sr"),
    ("lx", "1", "lm/m2"),
    ("Bq", "1", "s-1"),
    ("Gy", "1", "J/kg"),
    ("Sv", "1", "J/kg"),
    ("kat", "1", "mol/s"),
    ("By", "8", "bit"),
    ("Bd", "1", "s-1"),
    ("gon", "0.9", "deg"),
    ("l", "1", "dm3"),
    ("L", "1", "l"),
    ("ar", "100", "m2"),
    ("t", "1000", "kg"),
    ("bar", "100000", "Pa"),
    ("u", "1.66053906660e-24", "g"),
    ("eV", "1.602176634e-19", "J"),
    ("pc", "3.085678e16", "m"),
    ("[c]", "299792458", "m/s"),
    ("[h]", "6.62607015e-34", "J.s"),
    ("[k]", "1.380649e-23", "J/K"),
    ("[eps_0]", "8.854187817e-12", "F/m"),
    ("[mu_0]", "4", "[pi].10*-7.N/A2"),
    ("[e]", "1.602176634e-19", "C"),
    ("[m_e]", "9.1093837139e-31", "kg"),
    ("[m_p]", "1.67262192595e-27", "kg"),
    ("[G]", "6.67430e-11", "m3.kg-1.s-2"),
    ("[g]", "9.80665", "m/s2"),
    ("[ly]", "1", "[c].a_j"),
    ("gf", "1", "g.[g]"),
    ("Ky", "1", "cm-1"),
    ("Gal", "1", "cm/s2"),
    ("dyn", "1", "g.cm/s2"),
    ("erg", "1", "dyn.cm"),
    ("P", "1", "dyn.s/cm2"),
    ("Bi", "10", "A"),
    ("St", "1", "cm2/s"),
    ("Mx", "1e-8", "Wb"),
    ("G", "1e-4", "T"),
    ("Oe", "250", "/[pi].A/m"),
    ("Gb", "1", "Oe.cm"),
    ("sb", "1", "cd/cm2"),
    ("Lmb", "1", "cd/cm2/[pi]"),
    ("ph", "1e-4", "lx"),
    ("Ci", "3.7e10", "Bq"),
    ("R", "2.58e-4", "C/kg"),
    ("RAD", "100", "erg/g"),
    ("REM", "1", "RAD"),
    ("cal_[15]", "4.18580", "J"),
    ("cal_[20]", "4.18190", "J"),
    ("cal_m", "4.19002", "J"),
    ("cal_IT", "4.1868", "J"),
    ("cal_th", "4.184", "J"),
    ("cal", "1", "cal_th"),
    ("tex", "1", "g/km"),
    ("m[Hg]", "133.3220", "kPa"),
    ("m[H2O]", "9.80665", "kPa"),
    ("b", "100", "fm2"),
    ("st", "1", "m3"),
    ("g%", "1", "g/dl"),
    ("eq", "1", "mol"),
    ("osm", "1", "mol"),
];

/// Units that take no prefixes: name, value, unit of the value.
const PLAIN: &[(&str, &str, &str)] = &[
    ("10*", "10", "1"),
    ("10^", "10", "1"),
    ("%", "1e-2", "1"),
    ("[ppth]", "1e-3", "1"),
    ("[ppm]", "1e-6", "1"),
    ("[ppb]", "1e-9", "1"),
    ("[pptr]", "1e-12", "1"),
    ("deg", "2", "[pi].rad/360"),
    ("'", "1", "deg/60"),
    ("''", "1", "'/60"),
    ("circ", "2", "[pi].rad"),
    ("sph", "4", "[pi].sr"),
    ("min", "60", "s"),
    ("h", "60", "min"),
    ("d", "24", "h"),
    ("wk", "7", "d"),
    ("a_t", "365.24219", "d"),
    ("a_j", "365.25", "d"),
    ("a_g", "365.2425", "d"),
    ("a", "1", "a_j"),
    ("mo_s", "29.53059", "d"),
    ("mo_j", "1", "a_j/12"),
    ("mo_g", "1", "a_g/12"),
    ("mo", "1", "mo_j"),
    ("atm", "101325", "Pa"),
    ("AU", "149597.870691", "Mm"),
    ("att", "1", "kgf/cm2"),
    ("[degR]", "5", "K/9"),
    ("Ao", "0.1", "nm"),
    // International and British lengths, areas and volumes.
    ("[in_i]", "2.54", "cm"),
    ("[ft_i]", "12", "[in_i]"),
    ("[yd_i]", "3", "[ft_i]"),
    ("[mi_i]", "5280", "[ft_i]"),
    ("[fth_i]", "6", "[ft_i]"),
    ("[nmi_i]", "1852", "m"),
    ("[kn_i]", "1", "[nmi_i]/h"),
    ("[sin_i]", "1", "[in_i]2"),
    ("[sft_i]", "1", "[ft_i]2"),
    ("[syd_i]", "1", "[yd_i]2"),
    ("[cin_i]", "1", "[in_i]3"),
    ("[cft_i]", "1", "[ft_i]3"),
    ("[cyd_i]", "1", "[yd_i]3"),
    ("[bf_i]", "144", "[in_i]3"),
    ("[cr_i]", "128", "[ft_i]3"),
    ("[mil_i]", "1e-3", "[in_i]"),
    ("[cml_i]", "1", "[pi]/4.[mil_i]2"),
    ("[hd_i]", "4", "[in_i]"),
    ("[ft_us]", "1200", "m/3937"),
    ("[yd_us]", "3", "[ft_us]"),
    ("[in_us]", "1", "[ft_us]/12"),
    ("[rd_us]", "16.5", "[ft_us]"),
    ("[ch_us]", "4", "[rd_us]"),
    ("[lk_us]", "1", "[ch_us]/100"),
    ("[fth_us]", "6", "[ft_us]"),
    ("[fur_us]", "40", "[rd_us]"),
    ("[mi_us]", "8", "[fur_us]"),
    ("[acr_us]", "160", "[rd_us]2"),
    ("[srd_us]", "1", "[rd_us]2"),
    ("[smi_us]", "1", "[mi_us]2"),
    ("[mil_us]", "1e-3", "[in_us]"),
    ("[in_br]", "2.539998", "cm"),
    ("[ft_br]", "12", "[in_br]"),
    ("[yd_br]", "3", "[ft_br]"),
    ("[mi_br]", "5280", "[ft_br]"),
    ("[nmi_br]", "6080", "[ft_br]"),
    ("[kn_br]", "1", "[nmi_br]/h"),
    ("[acr_br]", "4840", "[yd_br]2"),
    ("[gal_us]", "231", "[in_i]3"),
    ("[bbl_us]", "42", "[gal_us]"),
    ("[qt_us]", "1", "[gal_us]/4"),
    ("[pt_us]", "1", "[qt_us]/2"),
    ("[gil_us]", "1", "[pt_us]/4"),
    ("[foz_us]", "1", "[gil_us]/4"),
    ("[fdr_us]", "1", "[foz_us]/8"),
    ("[min_us]", "1", "[fdr_us]/60"),
    ("[crd_us]", "128", "[ft_i]3"),
    ("[bu_us]", "2150.42", "[in_i]3"),
    ("[gal_wi]", "1", "[bu_us]/8"),
    ("[pk_us]", "1", "[bu_us]/4"),
    ("[dqt_us]", "1", "[pk_us]/8"),
    ("[dpt_us]", "1", "[dqt_us]/2"),
    ("[tbs_us]", "1", "[foz_us]/2"),
    ("[tsp_us]", "1", "[tbs_us]/3"),
    ("[cup_us]", "16", "[tbs_us]"),
    ("[foz_m]", "30", "ml"),
    ("[cup_m]", "240", "ml"),
    ("[tsp_m]", "5", "ml"),
    ("[tbs_m]", "15", "ml"),
    ("[gal_br]", "4.54609", "l"),
    ("[qt_br]", "1", "[gal_br]/4"),
    ("[pt_br]", "1", "[qt_br]/2"),
    ("[gil_br]", "1", "[pt_br]/4"),
    ("[foz_br]", "1", "[gil_br]/5"),
    ("[pk_br]", "2", "[gal_br]"),
    ("[bu_br]", "4", "[pk_br]"),
    // Weights.
    ("[gr]", "64.79891", "mg"),
    ("[lb_av]", "7000", "[gr]"),
    ("[oz_av]", "1", "[lb_av]/16"),
    ("[dr_av]", "1", "[oz_av]/16"),
    ("[scwt_av]", "100", "[lb_av]"),
    ("[lcwt_av]", "112", "[lb_av]"),
    ("[ston_av]", "20", "[scwt_av]"),
    ("[lton_av]", "20", "[lcwt_av]"),
    ("[stone_av]", "14", "[lb_av]"),
    ("[pwt_tr]", "24", "[gr]"),
    ("[oz_tr]", "20", "[pwt_tr]"),
    ("[lb_tr]", "12", "[oz_tr]"),
    ("[car_m]", "0.2", "g"),
    ("[lbf_av]", "1", "[lb_av].[g]"),
    // Heat, power, pressure.
    ("[Cal]", "1", "kcal_th"),
    ("[Btu_39]", "1.05967", "kJ"),
    ("[Btu_59]", "1.05480", "kJ"),
    ("[Btu_60]", "1.05468", "kJ"),
    ("[Btu_m]", "1.05587", "kJ"),
    ("[Btu_IT]", "1.05505585262", "kJ"),
    ("[Btu_th]", "1.054350", "kJ"),
    ("[Btu]", "1", "[Btu_th]"),
    ("[HP]", "550", "[ft_i].[lbf_av]/s"),
    ("[psi]", "1", "[lbf_av]/[in_i]2"),
    ("[in_i'Hg]", "1", "m[Hg].[in_i]/m"),
    ("[in_i'H2O]", "1", "m[H2O].[in_i]/m"),
    ("[den]", "1", "g/9/km"),
    ("[lne]", "1", "[in_i]/12"),
    ("[pnt]", "1", "[lne]/6"),
    ("[pca]", "12", "[pnt]"),
    ("[smoot]", "67", "[in_i]"),
];

/// All known units. A test checks that every definition is valid.
pub(super) static ATOMS: LazyLock<Atoms> = LazyLock::new(|| collect().0);

fn collect() -> (Atoms, Vec<&'static str>) {
    let mut atoms = Atoms::with_capacity(BASE.len() + METRIC.len() + PLAIN.len() + 8);
    for (name, dimension) in BASE {
        // The coherent unit of mass is kg.
        let gram = Magnitude::decimal(1.0, -3).filter(|_| name == "g");
        let measure = Measure { magnitude: gram.unwrap_or(Magnitude::ONE), dimension, offset: None };
        atoms.insert(name, Atom { measure, metric: true });
    }
    let pi = Measure { magnitude: Magnitude::PI, ..Measure::ONE };
    atoms.insert("[pi]", Atom { measure: pi, metric: false });
    let mut wrong = Vec::new();
    // Metric units refer to plain ones and the reverse: a definition that refers to a unit without a value yet is tried again.
    let mut waiting: Vec<_> = PLAIN.iter().map(|of| (of, false)).chain(METRIC.iter().map(|of| (of, true))).collect();
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|((name, value, unit), metric)| match defined(value, unit, &atoms) {
            Ok(measure) => {
                atoms.insert(name, Atom { measure, metric: *metric });
                false
            }
            Err(_) => true,
        });
        if waiting.len() == before {
            wrong.extend(waiting.drain(..).map(|((name, _, _), _)| *name));
        }
    }
    for (name, metric, value, unit, zero, zero_unit) in OFFSET {
        match (defined(value, unit, &atoms), defined(zero, zero_unit, &atoms)) {
            (Ok(one), Ok(zero)) => {
                let measure = Measure { offset: Some(zero.magnitude), ..one };
                atoms.insert(name, Atom { measure, metric });
            }
            _ => wrong.push(name),
        }
    }
    (atoms, wrong)
}

fn defined(value: &str, unit: &str, atoms: &Atoms) -> Result<Measure, UnitError> {
    let (of, _) = parse(unit, atoms)?;
    let beyond = UnitError::Beyond { code: unit.to_owned(), reason: "its value is not a number" };
    let magnitude = Magnitude::read(value).and_then(|value| value.times(of.magnitude)).ok_or(beyond)?;
    Ok(Measure { magnitude, ..of })
}

#[cfg(test)]
mod tests {
    use super::super::symbol::LOGARITHMIC;
    use super::*;

    #[test]
    fn every_definition_is_valid_and_every_name_is_unique() {
        let (atoms, wrong) = collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(atoms.len(), BASE.len() + METRIC.len() + PLAIN.len() + OFFSET.len() + 1);
        assert!(LOGARITHMIC.iter().all(|name| !atoms.contains_key(name)));
    }
}
