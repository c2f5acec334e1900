//! Engineering units (clause 21, BACnetEngineeringUnits) as UCUM codes.

/// The number of `no-units`.
const NO_UNITS: u32 = 95;

/// The number, the UCUM code, and the factor from the value to the code.
const UNITS: &[(u32, &str, f64)] = &[
    (0, "m2", 1.0),
    (1, "[sft_i]", 1.0),
    (2, "mA", 1.0),
    (3, "A", 1.0),
    (4, "Ohm", 1.0),
    (5, "V", 1.0),
    (6, "kV", 1.0),
    (7, "MV", 1.0),
    (8, "V.A", 1.0),
    (9, "kV.A", 1.0),
    (10, "MV.A", 1.0),
    (11, "V.A", 1.0),
    (12, "kV.A", 1.0),
    (13, "MV.A", 1.0),
    (14, "deg", 1.0),
    (15, "1", 1.0),
    (16, "J", 1.0),
    (17, "kJ", 1.0),
    (18, "W.h", 1.0),
    (19, "kW.h", 1.0),
    (20, "[Btu_IT]", 1.0),
    (25, "/h", 1.0),
    (26, "/min", 1.0),
    (27, "Hz", 1.0),
    (28, "g/kg", 1.0),
    (29, "%", 1.0),
    (30, "mm", 1.0),
    (31, "m", 1.0),
    (32, "[in_i]", 1.0),
    (33, "[ft_i]", 1.0),
    (34, "W/[sft_i]", 1.0),
    (35, "W/m2", 1.0),
    (36, "lm", 1.0),
    (37, "lx", 1.0),
    (39, "kg", 1.0),
    (40, "[lb_av]", 1.0),
    (41, "t", 1.0),
    (42, "kg/s", 1.0),
    (43, "kg/min", 1.0),
    (44, "kg/h", 1.0),
    (45, "[lb_av]/min", 1.0),
    (46, "[lb_av]/h", 1.0),
    (47, "W", 1.0),
    (48, "kW", 1.0),
    (49, "MW", 1.0),
    (50, "[Btu_IT]/h", 1.0),
    (51, "[HP]", 1.0),
    // A ton of refrigeration is 12000 Btu/h.
    (52, "[Btu_IT]/h", 12_000.0),
    (53, "Pa", 1.0),
    (54, "kPa", 1.0),
    (55, "bar", 1.0),
    (56, "[psi]", 1.0),
    (57, "cm[H2O]", 1.0),
    (58, "[in_i'H2O]", 1.0),
    (59, "mm[Hg]", 1.0),
    (60, "cm[Hg]", 1.0),
    (61, "[in_i'Hg]", 1.0),
    (62, "Cel", 1.0),
    (63, "K", 1.0),
    (64, "[degF]", 1.0),
    (67, "a", 1.0),
    (68, "mo", 1.0),
    (69, "wk", 1.0),
    (70, "d", 1.0),
    (71, "h", 1.0),
    (72, "min", 1.0),
    (73, "s", 1.0),
    (74, "m/s", 1.0),
    (75, "km/h", 1.0),
    (76, "[ft_i]/s", 1.0),
    (77, "[ft_i]/min", 1.0),
    (78, "[mi_i]/h", 1.0),
    (79, "[cft_i]", 1.0),
    (80, "m3", 1.0),
    (82, "L", 1.0),
    (83, "[gal_us]", 1.0),
    (84, "[cft_i]/min", 1.0),
    (85, "m3/s", 1.0),
    (87, "L/s", 1.0),
    (88, "L/min", 1.0),
    (89, "[gal_us]/min", 1.0),
    (90, "deg", 1.0),
    (91, "K/h", 1.0),
    (92, "K/min", 1.0),
    (96, "[ppm]", 1.0),
    (97, "[ppb]", 1.0),
    (98, "%", 1.0),
    (99, "%/s", 1.0),
    (100, "/min", 1.0),
    (101, "/s", 1.0),
    (103, "rad", 1.0),
    (104, "{rev}/min", 1.0),
    (115, "[sin_i]", 1.0),
    (116, "cm2", 1.0),
    (118, "cm", 1.0),
    (121, "K", 1.0),
    (122, "kOhm", 1.0),
    (123, "MOhm", 1.0),
    (124, "mV", 1.0),
    (125, "kJ/kg", 1.0),
    (126, "MJ", 1.0),
    (127, "J/K", 1.0),
    (129, "kHz", 1.0),
    (130, "MHz", 1.0),
    (131, "/h", 1.0),
    (132, "mW", 1.0),
    (133, "hPa", 1.0),
    (134, "mbar", 1.0),
    (135, "m3/h", 1.0),
    (136, "L/h", 1.0),
    (145, "mOhm", 1.0),
    (146, "MW.h", 1.0),
    (147, "[Btu_IT]", 1000.0),
    (148, "[Btu_IT]", 1_000_000.0),
    (153, "N", 1.0),
    (154, "g/s", 1.0),
    (155, "g/min", 1.0),
    (156, "t/h", 1.0),
    (157, "[Btu_IT]/h", 1000.0),
    (158, "s", 0.01),
    (159, "ms", 1.0),
    (160, "N.m", 1.0),
    (161, "mm/s", 1.0),
    (162, "mm/min", 1.0),
    (163, "m/min", 1.0),
    (164, "m/h", 1.0),
    (165, "m3/min", 1.0),
    (166, "m/s2", 1.0),
    (170, "F", 1.0),
    (171, "H", 1.0),
    (173, "S", 1.0),
    (174, "S/m", 1.0),
    (175, "T", 1.0),
    (178, "Wb", 1.0),
    (179, "cd", 1.0),
    (181, "K/h", 1.0),
    (182, "K/min", 1.0),
    (186, "kg/m3", 1.0),
    (190, "uS", 1.0),
    (191, "[cft_i]/h", 1.0),
    (192, "[gal_us]/h", 1.0),
    (193, "km", 1.0),
    (194, "um", 1.0),
    (195, "g", 1.0),
    (196, "mg", 1.0),
    (197, "mL", 1.0),
    (198, "mL/s", 1.0),
    (202, "mS", 1.0),
    (203, "W.h", 1.0),
    (204, "kW.h", 1.0),
    (205, "MW.h", 1.0),
    (207, "1", 0.001),
    (217, "g/m3", 1.0),
    (218, "mg/m3", 1.0),
    (219, "ug/m3", 1.0),
    (239, "V.A.h", 1.0),
    (240, "kV.A.h", 1.0),
    (241, "MV.A.h", 1.0),
    (242, "V.A.h", 1.0),
    (243, "kV.A.h", 1.0),
    (244, "MV.A.h", 1.0),
    (249, "m3/d", 1.0),
];

/// The UCUM code and the scale of an engineering unit. A unit that the table does not have is the number 1 in braces: `{bacnet-unit-190}`.
pub fn ucum(unit: u32) -> (String, f64) {
    if unit == NO_UNITS {
        return ("1".to_owned(), 1.0);
    }
    match UNITS.binary_search_by_key(&unit, |(number, ..)| *number) {
        Ok(at) => (UNITS[at].1.to_owned(), UNITS[at].2),
        Err(_) => (format!("{{bacnet-unit-{unit}}}"), 1.0),
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::unit::Unit;

    use super::*;

    #[test]
    fn every_code_is_ucum_and_every_number_is_there_once() {
        for pair in UNITS.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} and {}", pair[0].0, pair[1].0);
        }
        for (number, code, scale) in UNITS {
            assert!(Unit::parse(code).is_ok() && *scale > 0.0, "{number}: {code}: {:?}", Unit::parse(code).err());
        }
        assert!(Unit::parse(&ucum(65_000).0).is_ok());
    }

    #[test]
    fn common_units() {
        for (number, code) in [(62, "Cel"), (48, "kW"), (19, "kW.h"), (87, "L/s"), (98, "%"), (95, "1"), (53, "Pa")] {
            assert_eq!(ucum(number), (code.to_owned(), 1.0));
        }
        assert_eq!(ucum(52), ("[Btu_IT]/h".to_owned(), 12_000.0));
        assert_eq!(ucum(60_000).0, "{bacnet-unit-60000}");
    }
}
