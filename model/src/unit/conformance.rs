//! Facts about units, written from the public specification and from the definitions of the units; and what must hold for any code at all.

use wholegrain_testkit::Random;

use super::error::DEPTH_MAX;
use super::*;

fn unit(code: &str) -> Unit {
    Unit::parse(code).unwrap_or_else(|error| panic!("{error}"))
}

fn convert(value: f64, from: &str, to: &str) -> f64 {
    unit(from).to(&unit(to)).unwrap_or_else(|error| panic!("{error}")).apply(value)
}

/// `value unit = value unit`, exactly to within the last digits of a float; `~` for what is given with fewer digits.
const FACTS: &str = "
1 Qm = 1e30 m; 1 Rm = 1e27 m; 1 Ym = 1e24 m; 1 Zm = 1e21 m; 1 Em = 1e18 m; 1 Pm = 1e15 m; 1 Tm = 1e12 m; 1 Gm = 1e9 m; 1 Mm = 1e6 m
1 km = 1000 m; 1 hm = 100 m; 1 dam = 10 m; 1 dm = 0.1 m; 1 cm = 0.01 m; 1 mm = 0.001 m; 1 um = 1e-6 m; 1 nm = 1e-9 m; 1 pm = 1e-12 m
1 fm = 1e-15 m; 1 am = 1e-18 m; 1 zm = 1e-21 m; 1 ym = 1e-24 m; 1 rm = 1e-27 m; 1 qm = 1e-30 m
1 KiBy = 1024 By; 1 MiBy = 1048576 By; 1 GiBy = 1073741824 By; 1 TiBy = 1099511627776 By; 1 PiBy = 1125899906842624 By
1 EiBy = 1152921504606846976 By; 1 ZiBy = 1180591620717411303424 By; 1 YiBy = 1208925819614629174706176 By
1 kBy = 1000 By; 1 By = 8 bit; 1 Kibit = 1024 bit; 1 Mbit = 125000 By; 1 Gbit/s = 125 MBy/s; 100 Gbit/s = 12.5 GBy/s; 1 MiBy = 1.048576 MBy
1 TBy = 1e12 By; 8 bit = 1 By; 1 GiBy/s = 1024 MiBy/s; 2 KiBy/ms = 2048000 By/s; 3 GBy/h = 50 MBy/min
1 kg = 1000 g; 1 t = 1000 kg; 1 mg = 1e-6 kg; 1 ug = 1e-9 kg; 1 g.m/s2 = 1e-3 N
1 N = 1 kg.m/s2; 1 N = 1 kg.m.s-2; 1 Pa = 1 N/m2; 1 J = 1 N.m; 1 W = 1 J/s; 1 V = 1 W/A; 1 C = 1 A.s; 1 F = 1 C/V; 1 Ohm = 1 V/A; 1 S = 1 A/V
1 mho = 1 S; 1 Wb = 1 V.s; 1 T = 1 Wb/m2; 1 H = 1 Wb/A; 1 lm = 1 cd.sr; 1 lx = 1 lm/m2; 1 Hz = 1 /s; 1 Hz = 1 s-1; 1 Bq = 1 s-1; 1 Gy = 1 J/kg
1 Sv = 1 m2/s2; 1 kat = 1 mol/s; 1 Bd = 1 /s; 1 sr = 1 rad2; 1 Ohm.S = 1 1; 1 V.A = 1 W; 1 kV.A{reactive} = 1000 W
1 W.s = 1 J; 1 W.h = 3600 J; 1 kW.h = 3.6 MJ; 1 MW.h = 3.6 GJ; 1 J/s = 1 W; 1 uJ = 1e-6 J; 1e6 uJ/s = 1 W; 1 mW = 0.001 W; 1 GW = 1e9 W
1 kW.h/d = 41.666666666666664 W; 1 W/Hz = 1 J; 1 J/{instruction} = 1 J; 1 A.h = 3600 C; 1 mA.h = 3.6 C
1 min = 60 s; 1 h = 60 min; 1 h = 3600 s; 1 d = 24 h; 1 d = 86400 s; 1 wk = 7 d; 1 wk = 604800 s; 1 a = 365.25 d; 1 a_j = 31557600 s
1 a_g = 365.2425 d; 1 a_t = 365.24219 d; 1 mo = 30.4375 d; 1 mo_j = 2629800 s; 1 mo_g = 30.436875 d; 1 mo_s = 29.53059 d; 12 mo = 1 a
1 ms = 1000 us; 1 us = 1000 ns; 1 ns = 1000 ps; 1 s = 1e9 ns; 60 /min = 1 Hz; 3600 /h = 1 Hz; 1 kHz = 1000 /s; 2.5 GHz = 2500 MHz; 1 /ms = 1 kHz
1 {rev}/min = 0.016666666666666666 Hz; 1200 {rev}/min = 20 {rev}/s; 1 ns/s = 1e-9 1; 500 ms/s = 50 %; 1 s/min = 1.6666666666666667 %
1 % = 0.01 1; 1 1 = 100 %; 50 % = 0.5 1; 1 [ppth] = 0.1 %; 1 [ppm] = 1e-6 1; 1 [ppb] = 1e-3 [ppm]; 1 [pptr] = 1e-12 1; 1 % = 10000 [ppm]
1 10* = 10 1; 1 10^ = 10 1; 1 10*3 = 1000 1; 1 10^6 = 1e6 1; 1 10*-2 = 1 %; 5 10*3/s = 5 kHz; 1 10*9.By = 1 GBy; 1 10.m = 10 m; 1 25.10*-1.m = 2.5 m
1 {cpu} = 1 1; 3 {core} = 3 {thread}; 7 {packet}/s = 7 Hz; 1 m{tall} = 100 cm{wide}; 1 {a}.{b} = 1 1; 4 1/{cpu} = 4 1; 1 %{idle} = 0.01 1
0 Cel = 273.15 K; 100 Cel = 373.15 K; -273.15 Cel = 0 K; 25 Cel = 298.15 K; 300 K = 26.85 Cel; 25.3 Cel = 298.45 K; -20.5 Cel = 252.65 K
32 [degF] = 0 Cel; 212 [degF] = 100 Cel; -40 [degF] = -40 Cel; 98.6 [degF] = 37 Cel; 0 Cel = 32 [degF]; 37 Cel = 98.6 [degF]; 20 Cel = 68 [degF]
0 K = -459.67 [degF]; 59 [degF] = 288.15 K; 1 mCel = 273.151 K; 25000 mCel = 25 Cel; 80 [degRe] = 100 Cel; 0 [degRe] = 32 [degF]
9 [degR] = 5 K; 491.67 [degR] = 0 Cel; 491.67 [degR] = 32 [degF]; 459.67 [degR] = 0 [degF]
1 Cel/s = 1 K/s; 1 K/min = 60 Cel/h; 9 [degF]/h = 5 Cel/h; 1 W/Cel = 1 W/K; 1 J/kg/K = 1 J/(kg.Cel); 1.8 [degF].s = 1 K.s; 4.2 kJ/(kg.K) = 4200 J/kg/Cel
1 bar = 100 kPa; 1 mbar = 1 hPa; 1 atm = 101325 Pa; 1 atm = 1.01325 bar; 1 att = 98066.5 Pa; 1 att = 1 kgf/cm2; 1 m[H2O] = 9806.65 Pa
760 mm[Hg] = 101324.72 Pa; 1 mm[Hg] = 133.322 Pa; 1 cm[H2O] = 98.0665 Pa; 1 [psi] ~ 6894.757293168 Pa; 14.695948775514 [psi] ~ 1 atm
1 [in_i'Hg] ~ 3386.3788 Pa; 1 [in_i'H2O] ~ 249.08891 Pa; 1 kPa = 1000 N/m2; 1 bar.m3 = 100 kJ
1 l = 1 L; 1 l = 1 dm3; 1000 l = 1 m3; 1 ml = 1 cm3; 1 hl = 0.1 m3; 60 l/min = 1 l/s; 1 m3/h = 16.666666666666668 l/min; 3.6 m3/h = 1 l/s
1 ar = 100 m2; 1 har = 10000 m2; 1 m2 = 10000 cm2; 1 m3 = 1e6 cm3; 1 km/h = 0.2777777777777778 m/s; 36 km/h = 10 m/s; 1 st = 1 m3
1 [in_i] = 2.54 cm; 1 [ft_i] = 30.48 cm; 1 [ft_i] = 12 [in_i]; 1 [yd_i] = 0.9144 m; 1 [mi_i] = 1609.344 m; 1 [nmi_i] = 1852 m; 1 [fth_i] = 6 [ft_i]
1 [kn_i] = 1.852 km/h; 1 [sin_i] = 6.4516 cm2; 1 [sft_i] = 144 [sin_i]; 1 [syd_i] = 9 [sft_i]; 1 [cin_i] = 16.387064 cm3; 1 [cft_i] = 1728 [cin_i]
1 [cyd_i] = 27 [cft_i]; 1 [mil_i] = 25.4 um; 1 [hd_i] = 4 [in_i]; 1 [bf_i] = 144 [cin_i]; 1 [cr_i] = 128 [cft_i]; 1 [smoot] = 67 [in_i]
3937 [ft_us] = 1200 m; 3 [ft_us] = 1 [yd_us]; 12 [in_us] = 1 [ft_us]; 1 [rd_us] = 16.5 [ft_us]; 1 [ch_us] = 66 [ft_us]; 1 [mi_us] = 5280 [ft_us]
1 [fur_us] = 660 [ft_us]; 1 [acr_us] = 43560 [ft_us]2; 1 [smi_us] = 640 [acr_us]; 100 [lk_us] = 1 [ch_us]; 1 [fth_us] = 6 [ft_us]; 1000 [mil_us] = 1 [in_us]
1 [ft_br] = 12 [in_br]; 1 [in_br] = 2.539998 cm; 1 [yd_br] = 3 [ft_br]; 1 [mi_br] = 5280 [ft_br]; 1 [nmi_br] = 6080 [ft_br]; 1 [acr_br] = 4840 [yd_br]2
1 [gal_us] = 231 [cin_i]; 1 [gal_us] = 3.785411784 l; 1 [gal_us] = 4 [qt_us]; 1 [qt_us] = 2 [pt_us]; 1 [pt_us] = 4 [gil_us]; 1 [gil_us] = 4 [foz_us]
1 [foz_us] = 8 [fdr_us]; 1 [foz_us] = 29.5735295625 ml; 1 [fdr_us] = 60 [min_us]; 1 [foz_us] = 2 [tbs_us]; 1 [tbs_us] = 3 [tsp_us]; 1 [cup_us] = 16 [tbs_us]
1 [bbl_us] = 42 [gal_us]; 1 [bu_us] = 2150.42 [cin_i]; 1 [bu_us] = 4 [pk_us]; 1 [pk_us] = 8 [dqt_us]; 1 [dqt_us] = 2 [dpt_us]; 8 [gal_wi] = 1 [bu_us]
1 [gal_us]/min = 3.785411784 l/min; 1 [gal_us]/min ~ 6.30901964e-5 m3/s; 1 [cft_i]/min ~ 4.719474432e-4 m3/s; 1 [crd_us] = 128 [cft_i]
1 [gal_br] = 4.54609 l; 1 [gal_br] = 8 [pt_br]; 1 [gal_br] = 4 [qt_br]; 1 [pt_br] = 20 [foz_br]; 1 [bu_br] = 8 [gal_br]; 1 [cup_m] = 240 ml; 1 [tsp_m] = 5 ml
1 [lb_av] = 0.45359237 kg; 1 [lb_av] = 16 [oz_av]; 1 [lb_av] = 7000 [gr]; 1 [oz_av] = 28.349523125 g; 1 [oz_av] = 16 [dr_av]; 1 [ston_av] = 2000 [lb_av]
1 [lton_av] = 2240 [lb_av]; 1 [stone_av] = 14 [lb_av]; 1 [scwt_av] = 100 [lb_av]; 1 [lcwt_av] = 112 [lb_av]; 1 [gr] = 64.79891 mg
1 [oz_tr] = 31.1034768 g; 1 [lb_tr] = 12 [oz_tr]; 1 [oz_tr] = 20 [pwt_tr]; 1 [car_m] = 200 mg; 1 [lbf_av] = 4.4482216152605 N; 1 kgf = 9.80665 N
1 cal = 4.184 J; 1 cal_th = 4.184 J; 1 cal_IT = 4.1868 J; 1 kcal = 4184 J; 1 [Cal] = 1 kcal_th; 1 cal_[15] = 4.1858 J; 1 cal_[20] = 4.1819 J; 1 cal_m = 4.19002 J
1 [Btu_IT] = 1055.05585262 J; 1 [Btu_th] = 1054.35 J; 1 [Btu] = 1 [Btu_th]; 1 [Btu_39] = 1059.67 J; 1 [Btu_59] = 1054.8 J; 1 [Btu_60] = 1054.68 J
1 [Btu_m] = 1055.87 J; 1 [Btu_IT]/h ~ 0.29307107 W; 12000 [Btu_IT]/h ~ 3516.8528 W; 1 [HP] ~ 745.69987158 W; 1 erg = 1e-7 J; 1 dyn = 1e-5 N
1 eV = 1.602176634e-19 J; 1 keV = 1000 eV; 1 [e] = 1.602176634e-19 C; 1 [c] = 299792458 m/s; 1 [k].K = 1.380649e-23 J; 1 [h] = 6.62607015e-34 J.s
1 [g] = 9.80665 m/s2; 1 u ~ 1.66053907e-27 kg; 1 [m_e] ~ 9.1093837e-31 kg; 1 [m_p] ~ 1.67262192e-27 kg; 1 [G] = 6.6743e-11 m3.kg-1.s-2
1 [eps_0] ~ 8.854187817e-12 F/m; 1 [mu_0] ~ 1.25663706e-6 N/A2; 1 [ly] = 9460730472580800 m; 1 AU = 149597870691 m; 1 pc = 3.085678e16 m
1 deg ~ 0.017453292519943295 rad; 180 deg ~ 3.141592653589793 rad; 360 deg = 1 circ; 1 deg = 60 '; 1 ' = 60 ''; 100 gon = 90 deg; 1 sph ~ 12.566370614359172 sr
1 [pi].rad = 180 deg; 1 circ/s ~ 6.283185307179586 rad/s; 2 [pi] = 2 [pi]; 60 circ/min = 1 circ/s
1 Ao = 0.1 nm; 1 b = 1e-28 m2; 1 St = 1e-4 m2/s; 1 P = 0.1 Pa.s; 1 cP = 1 mPa.s; 1 Bi = 10 A; 1 Mx = 1e-8 Wb; 1 G = 1e-4 T; 1 Oe ~ 79.577471545948 A/m
1 Gb ~ 0.79577471545948 A; 1 sb = 10000 cd/m2; 1 Lmb ~ 3183.09886183791 cd/m2; 1 ph = 1e-4 lx; 1 Ci = 37 GBq; 1 R = 2.58e-4 C/kg; 1 RAD = 0.01 Gy; 1 REM = 0.01 Sv
1 Ky = 100 /m; 1 Gal = 0.01 m/s2; 1 tex = 1 g/km; 9 [den] = 1 tex; 1 g% = 10 g/l; 1 eq = 1 mol; 1 osm = 1 mol; 1 mmol/l = 1 mol/m3
12 [lne] = 1 [in_i]; 6 [pnt] = 1 [lne]; 1 [pca] = 12 [pnt]; 1 [cml_i] ~ 506.70747909749e-12 m2
1 kg/(m.s2) = 1 Pa; 1 (m/s)/(s) = 1 m/s2; 1 m/s/s = 1 m/s2; 1 J/kg.K = 1 J.K/kg; 1 /(s) = 1 Hz; 1 ((m)) = 1 m; 1 m+2 = 1 m2; 1 m2.m-2 = 1 1; 1 m0 = 1 1
1 kW/m2 = 1 mW/mm2; 1 g/cm3 = 1000 kg/m3; 1 By/{packet} = 8 bit; 1 {instruction}/{cycle} = 1 1; 1 By/J = 8 bit/J; 1 MBy/W.s = 1e6 By.s2/J
";

#[test]
fn conversions_are_those_of_the_specification() {
    let facts: Vec<&str> =
        FACTS.lines().flat_map(|line| line.split(';')).map(str::trim).filter(|fact| !fact.is_empty()).collect();
    assert!(facts.len() > 300, "{}", facts.len());
    for fact in facts {
        let words: Vec<&str> = fact.split_whitespace().collect();
        let [value, from, sign, expected, to] = words[..] else { panic!("{fact}") };
        let (value, expected): (f64, f64) = (value.parse().unwrap(), expected.parse().unwrap());
        let near = |got: f64, wanted: f64, digits: f64| (got - wanted).abs() <= digits * wanted.abs().max(1e-300);
        let digits = if sign == "~" { 2e-7 } else { 4e-16 };
        let got = convert(value, from, to);
        assert!(near(got, expected, digits) || (expected == 0.0 && got.abs() < 1e-12), "{fact}: {got}");
        // And back, from what came out: that is a float, so that a last digit may be lost, of the greater of value and zero point.
        let back = convert(got, to, from);
        let room = 1e-15 * value.abs().max(convert(0.0, to, from).abs());
        assert!((back - value).abs() <= room.max(1e-300), "{fact}, and back: {back}");
    }
}

#[test]
fn the_document_tells_the_truth() {
    let text = include_str!("../../../docs/units.md");
    let facts: Vec<&str> = text.lines().filter(|line| line.starts_with("- `") && line.contains("` = `")).collect();
    assert!(facts.len() >= 14, "{}", facts.len());
    for fact in facts {
        let parts: Vec<&str> = fact.split('`').collect();
        let (Some((value, from)), Some((expected, to))) = (parts[1].split_once(' '), parts[3].split_once(' ')) else {
            panic!("{fact}")
        };
        let (got, expected) = (convert(value.parse().unwrap(), from, to), expected.parse::<f64>().unwrap());
        assert!((got - expected).abs() <= 1e-15 * expected.abs(), "{fact}: {got}");
    }
    let suggestions = text.split("what may").nth(1).unwrap().split("\n\n").next().unwrap();
    let words: Vec<&str> = suggestions.split('`').skip(1).step_by(2).collect();
    assert!(words.len() >= 12);
    for pair in words.chunks(2) {
        let error = Unit::parse(pair[0]).unwrap_err();
        assert!(error.to_string().ends_with(&format!("did you mean `{}`?", pair[1])), "{error}");
    }
    // The codes of the tables; forms that stand for many, and prefixes, have no backquotes of their own there.
    let tables = text.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 3);
    let codes: Vec<&str> = tables.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert!(codes.len() > 60, "{}", codes.len());
    codes.iter().for_each(|code| drop(unit(code)));
    let prefixes = text.split("**Prefixes**").nth(1).unwrap().lines().next().unwrap();
    let prefixes: Vec<&str> = prefixes.split('`').skip(1).step_by(2).flat_map(str::split_whitespace).collect();
    assert_eq!(prefixes.len(), symbol::DECIMAL.len() + symbol::BINARY.len());
    prefixes.iter().for_each(|prefix| drop(unit(&format!("{prefix}By"))));
}

/// Every two units of the same dimension.
#[test]
fn there_and_back_again_for_all_units() {
    let mut codes: Vec<&str> = atoms::ATOMS.keys().copied().collect();
    codes.extend(["kW", "MiBy", "mCel", "kW.h", "km/h", "Mbit/s", "m3/h", "[gal_us]/min", "/min", "mm[Hg]", "%{idle}"]);
    codes.sort_unstable();
    let units: std::collections::HashMap<&str, Unit> = codes.iter().map(|code| (*code, unit(code))).collect();
    let mut pairs = 0;
    for from in &codes {
        for to in codes.iter().filter(|to| units[*to].dimension() == units[from].dimension()) {
            let (out, home) = (units[from].to(&units[to]).unwrap(), units[to].to(&units[from]).unwrap());
            for value in [0.0, 1.0, -273.0, 1234.5678, 1e-9, 6.02e23] {
                let there = out.apply(value);
                let back = home.apply(there);
                let zero = home.apply(0.0).abs();
                assert!(
                    (back - value).abs() <= 1e-14 * value.abs().max(zero),
                    "{value} {from} = {there} {to} = {back}"
                );
            }
            pairs += 1;
        }
    }
    assert!(pairs > 2000, "{pairs}");
}

#[test]
fn codes_that_are_wrong_are_refused_where_they_are_and_with_what_may_be_meant() {
    for (code, at, part, suggestion) in [
        ("celsius", 0, "not a known", Some("Cel")),
        ("Celsius", 0, "not a known", Some("Cel")),
        ("°C", 0, "not a known", Some("Cel")),
        ("°F", 0, "not a known", Some("[degF]")),
        ("kw", 0, "not a known", Some("kW")),
        ("KW", 0, "not a known", Some("kW")),
        ("mhz", 0, "not a known", Some("mHz")),
        ("MHZ", 0, "not a known", Some("MHz")),
        ("ohm", 0, "not a known", Some("Ohm")),
        ("kOHM", 0, "not a known", Some("kOhm")),
        ("B", 0, "logarithmic", Some("By")),
        ("MB", 0, "logarithmic", Some("MBy")),
        ("KB", 0, "not a known", Some("KiBy")),
        ("GiB", 0, "logarithmic", Some("GiBy")),
        ("MB/s", 0, "logarithmic", Some("MBy/s")),
        ("1/B", 2, "logarithmic", Some("1/By")),
        ("bytes", 0, "not a known", Some("By")),
        ("bytes/sec", 0, "not a known", Some("By/sec")),
        ("By/sec", 3, "not a known", Some("By/s")),
        ("dB", 0, "logarithmic", None),
        ("Np", 0, "logarithmic", None),
        ("[pH]", 0, "logarithmic", None),
        ("watts", 0, "not a known", Some("W")),
        ("kWh", 0, "not a known", Some("kW.h")),
        ("VA", 0, "not a known", Some("V.A")),
        ("percent", 0, "not a known", Some("%")),
        ("psi", 0, "not a known", Some("[psi]")),
        ("ppm", 0, "not a known", Some("[ppm]")),
        ("rpm", 0, "not a known", Some("{rev}/min")),
        ("µs", 0, "not a known", Some("us")),
        ("kΩ", 0, "not a known", Some("kOhm")),
        ("m³/h", 0, "not a known", Some("m3/h")),
        ("m^2", 1, "is not allowed here", None),
        ("sec", 0, "not a known", Some("s")),
        ("hours", 0, "not a known", Some("h")),
        ("mmin", 0, "prefix", Some("min")),
        ("k%", 0, "prefix", None),
        ("xyzzy", 0, "not a known", None),
        ("W.", 2, "a unit is missing", None),
        ("W..s", 2, "a unit is missing", None),
        ("W//s", 2, "a unit is missing", None),
        ("/", 1, "a unit is missing", None),
        ("()", 1, "a unit is missing", None),
        ("(W", 2, "`)` is missing", None),
        ("W)", 1, "no `(`", None),
        ("(m/s)2", 5, "parentheses take no exponent", None),
        ("W s", 0, "not a known", None),
        ("10m", 0, "after a factor", None),
        ("2.5.m", 0, "`.` multiplies", None),
        ("0.m", 0, "factor of 0", None),
        ("0", 0, "factor of 0", None),
        ("1234567890123456789", 0, "at most 18 digits", None),
        ("m100", 1, "at most 99", None),
        ("m-100", 1, "at most 99", None),
        ("m99999999999999999999", 1, "at most 99", None),
        ("m-", 1, "exponent is missing", None),
        ("{cpu", 0, "no `}`", None),
        ("{a b}", 2, "visible ASCII", None),
        ("{ä}", 1, "visible ASCII", None),
        ("{a{b}}", 2, "without braces", None),
        ("-1", 0, "not a known", None),
        ("*", 0, "not a known", None),
        ("Ym99", 0, "too large or too small", None),
        ("m99.m2", 3, "too large or too small", None),
        ("W/", 2, "a unit is missing", None),
    ] {
        let error = Unit::parse(code).unwrap_err();
        let UnitError::Code { reason, suggestion: meant, .. } = &error else { panic!("{code}: {error}") };
        assert!(reason.contains(part), "{code}: {error}");
        assert_eq!((error.at(), meant.as_deref()), (Some(at), suggestion), "{code}: {error}");
        assert!(
            suggestion.is_none_or(|suggestion| error.to_string().ends_with(&format!("did you mean `{suggestion}`?")))
        );
    }
    let long = Unit::parse(&"m.".repeat(200)).unwrap_err();
    assert!(matches!(long, UnitError::Beyond { .. }) && long.to_string().contains("256 bytes"), "{long}");
    let deep = |depth: usize| Unit::parse(&format!("{}m{}", "(".repeat(depth), ")".repeat(depth)));
    assert!(deep(DEPTH_MAX).is_ok() && deep(DEPTH_MAX + 1).unwrap_err().to_string().contains("16 deep"));
}

#[test]
fn a_conversion_across_dimensions_names_both() {
    for (from, to, text) in [
        ("W", "J", "W (power) cannot be converted to J (energy)"),
        ("By", "1", "By (information) cannot be converted to 1 (number)"),
        ("rad", "1", "rad (angle) cannot be converted to 1 (number)"),
        ("mol", "1", "mol (amount) cannot be converted to 1 (number)"),
        ("Cel", "Cel/s", "Cel (temperature) cannot be converted to Cel/s (temperature/time)"),
        ("By/s", "Hz", "By/s (data rate) cannot be converted to Hz (frequency)"),
    ] {
        assert_eq!(unit(from).to(&unit(to)).unwrap_err().to_string(), text);
    }
}

#[test]
fn products_quotients_and_powers_have_codes_that_are_read_again() {
    let check = |result: Result<Unit, UnitError>, code: &str| {
        let result = result.unwrap();
        assert_eq!(result.code(), code);
        assert_eq!(Unit::parse(code).unwrap().measure, result.measure, "{code}");
    };
    check(unit("By").divide(&unit("s")), "By/s");
    check(unit("By/s").multiply(&unit("s")), "By");
    check(unit("W").multiply(&unit("h")), "W.h");
    check(unit("W").divide(&unit("W")), "1");
    check(unit("W").divide(&unit("kW")), "W/kW");
    check(Unit::ONE.divide(&unit("s")), "1/s");
    check(unit("/s").multiply(&Unit::ONE), "1/s");
    check(unit("m/s").multiply(&unit("m/s")), "m2/s2");
    check(Unit::ONE.divide(&unit("m/s")), "s/m");
    check(unit("J/(kg.K)").multiply(&unit("kg")), "J/K");
    check(unit("10.m").multiply(&unit("10.m")), "(10).10.m2");
    check(unit("10*6").divide(&unit("s")), "10*6/s");
    check(Unit::ONE.divide(&unit("10*12")), "1/10*12");
    check(unit("{a}").multiply(&unit("{a}")), "{a}.{a}");
    check(unit("m{a}").multiply(&unit("m{a}/s{b}")), "m2{a}/s{b}");
    check(unit("Cel").divide(&unit("s")), "Cel/s");
    assert!(unit("Cel").has_offset() && !unit("Cel/s").has_offset() && !unit("Cel").interval().has_offset());
    let is_one = |code: &str| unit(code).to_base().is_identity();
    assert!(is_one("{cpu}") && !is_one("%") && is_one("") && unit("").code() == "1");
    assert!(unit("m99").multiply(&unit("m")).is_err());
    let long = format!("m{{{}}}", "x".repeat(200));
    assert!(unit(&long).multiply(&unit(&long.replace('x', "y"))).unwrap_err().to_string().contains("too long"));
    assert_eq!((unit("km").to_base().apply(2.0), unit("Cel").to_base().offset()), (2000.0, 273.15));
    assert_eq!(
        (unit("g").to_base().factor(), unit("By").to_base().factor(), unit("kW.h").to_base().factor()),
        (0.001, 8.0, 3.6e6)
    );
}

/// What is thrown at the parser is an error that points into the code, or a unit whose code says the same again.
#[test]
fn nothing_makes_the_parser_panic() {
    let mut random = Random::seeded_or(20_260);
    let pieces = [
        "W",
        "k",
        "Cel",
        "[degF]",
        "(",
        ")",
        ".",
        "/",
        "{",
        "}",
        "{x}",
        "10*",
        "10^",
        "2",
        "-",
        "+",
        "99",
        "m2",
        "s-1",
        "[",
        "]",
        "'",
        "%",
        " ",
        "µ",
        "°",
        "\u{0}",
        "By",
        "Ki",
        "Yi",
        "Q",
        "1",
        "0",
        "B[SPL]",
        "B",
        "é",
        "m0",
        "[in_i'Hg]",
        "\u{1F600}",
        "1/s",
    ];
    let mut good = 0;
    for round in 0..20_000 {
        let code: String = if round % 3 == 0 {
            let bytes: Vec<u8> = (0..random.index(24)).map(|_| random.draw() as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        } else {
            (0..1 + random.index(9)).map(|_| random.pick(&pieces)).collect()
        };
        match Unit::parse(&code) {
            Ok(unit) => {
                good += 1;
                assert_eq!(Unit::parse(unit.code()).as_ref(), Ok(&unit), "{code}");
                let squared = unit.multiply(&unit);
                if let Ok(squared) = squared {
                    let again = Unit::parse(squared.code()).unwrap_or_else(|error| panic!("{code} squared: {error}"));
                    assert_eq!(again.dimension(), squared.dimension(), "{code}");
                    let ratio = again.to(&squared).unwrap().factor();
                    assert!((ratio - 1.0).abs() < 1e-12, "{code}: {} {ratio}", squared.code());
                }
            }
            Err(error) => {
                assert!(error.at().is_none_or(|at| code.is_char_boundary(at)), "{code:?}: {error}");
                if let UnitError::Code { suggestion: Some(suggestion), at, .. } = &error
                    && let Err(next) = Unit::parse(suggestion)
                {
                    assert!(next.at().is_some_and(|next| next > *at), "{code:?}: {error}: {next}");
                }
            }
        }
    }
    assert!(good > 1000, "{good}");
}

/// Random units of one dimension: a value comes back, and the way over a third unit is the same way.
#[test]
fn conversions_fit_together() {
    let mut random = Random::seeded_or(20_260);
    let of = |random: &mut Random, depth: usize| -> (String, String, String) {
        let kinds: [&[&str]; 6] = [
            &["W", "kW", "mW", "J/s", "[HP]", "[Btu_IT]/h", "V.A", "kcal/min"],
            &["m", "km", "[mi_i]", "[in_i]", "nm", "[ft_us]", "[ly]"],
            &["s", "h", "a", "wk", "ms", "mo"],
            &["By", "bit", "KiBy", "GBy", "Tibit"],
            &["K", "Cel", "[degF]", "[degR]", "mK"],
            &["Pa", "bar", "[psi]", "mm[Hg]", "atm"],
        ];
        let mut codes = [String::new(), String::new(), String::new()];
        for at in 0..=depth {
            let kind = kinds[random.index(kinds.len())];
            let exponent = 1 + random.index(3);
            let before = if at == 0 { "" } else { random.pick(&[".", "/"]) };
            for code in &mut codes {
                let factor = random.pick(kind);
                code.push_str(before);
                let inside = vec![factor; exponent].join(".");
                code.push_str(&if exponent > 1 || factor.contains('/') || factor.contains('.') {
                    format!("({inside})")
                } else {
                    inside
                });
            }
        }
        let [a, b, c] = codes;
        (a, b, c)
    };
    for _ in 0..5_000 {
        let depth = random.index(3);
        let (a, b, c) = of(&mut random, depth);
        let value = random.index(2_000_001) as f64 / 1000.0 - 1000.0;
        let there = convert(value, &a, &b);
        let room = |of: f64| 1e-12 * of.abs().max(convert(0.0, &b, &a).abs()).max(1e-290);
        assert!((convert(there, &b, &a) - value).abs() <= room(value), "{value} {a} -> {b}");
        let over = convert(convert(value, &a, &c), &c, &b);
        let zeros =
            [convert(0.0, &a, &b), convert(0.0, &c, &b)].into_iter().fold(0f64, |most, zero| most.max(zero.abs()));
        assert!(
            (over - there).abs() <= 1e-12 * there.abs().max(zeros).max(1e-290),
            "{value} {a} -> {c} -> {b}: {over} {there}"
        );
    }
}
