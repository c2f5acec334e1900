//! A warm-water circuit that cools the racks.
//!
//! Most of the electrical power becomes heat in the water, with the delay of the metal's heat capacity. The rest heats the room; its fraction rises with
//! the temperature of the water. The pump follows the heat, so that the water warms up by about [`RISE_K`]. The inlet temperature follows a set
//! point, which changes every few hours, and is higher by day.

/// Water at about 40 °C: kg/L, J/(kg K).
pub const WATER: (f64, f64) = (0.992, 4178.0);
/// Temperature rise between inlet and outlet that the pump control aims at, K.
pub const RISE_K: f64 = 6.0;
/// Fraction of the power that heats the water when the water is as warm as the room.
pub const SHARE: f64 = 0.94;
/// Decrease of that fraction for each K of the inlet above the room.
pub const SHARE_LOST_PER_K: f64 = 0.0025;
/// Temperature of the room, °C.
pub const ROOM: f64 = 24.0;
/// Range of the set points of the inlet, °C.
pub const SET_POINTS: std::ops::Range<u64> = 27..46;
/// Duration of a set point, s.
const SET_POINT_S: f64 = 3.0 * 3600.0;
/// Time constants of the heat, the pump and the inlet, s.
const LAG_S: (f64, f64, f64) = (240.0, 60.0, 900.0);
/// Power of the pump without flow, and what the largest flow adds, W.
const PUMP_W: (f64, f64) = (40.0, 160.0);

/// The state of the circuit at one time.
#[derive(Debug, Clone)]
pub struct Circuit {
    set_point: f64,
    set_point_left_s: f64,
    inlet: f64,
    flow: f64,
    /// Heat that reaches the water now, W.
    heat: f64,
    flow_max: f64,
}

impl Circuit {
    /// A circuit in balance with `power` of the racks, W, designed for a heat of at most `heat_max`, W.
    pub fn new(power: f64, heat_max: f64) -> Self {
        let inlet = SET_POINTS.start as f64 + 8.0;
        let heat = power * share(inlet);
        let flow_max = required_flow(heat_max);
        Self { set_point: inlet, set_point_left_s: SET_POINT_S, inlet, flow: required_flow(heat), heat, flow_max }
    }

    /// Advances by `dt_s` to `time_s` with `power` of the racks, W. `set_point` gives the next set point when one is due.
    pub fn step(&mut self, dt_s: f64, time_s: i64, power: f64, set_point: impl FnOnce() -> f64) {
        self.set_point_left_s -= dt_s;
        if self.set_point_left_s <= 0.0 {
            self.set_point = set_point();
            self.set_point_left_s = SET_POINT_S;
        }
        let day = (time_s.rem_euclid(86_400) as f64 / 86_400.0 - 0.25) * std::f64::consts::TAU;
        let towards = |now: f64, goal: f64, lag_s: f64| now + (goal - now) * (1.0 - (-dt_s / lag_s).exp());
        self.inlet = towards(self.inlet, self.set_point + day.sin(), LAG_S.2);
        self.heat = towards(self.heat, power * share(self.inlet), LAG_S.0);
        self.flow = towards(self.flow, required_flow(self.heat), LAG_S.1);
    }

    /// Temperature at the inlet, °C.
    pub fn inlet(&self) -> f64 {
        self.inlet
    }

    /// Temperature at the outlet, °C.
    pub fn outlet(&self) -> f64 {
        self.inlet + self.heat / (self.flow / 60.0 * WATER.0 * WATER.1)
    }

    /// Flow of the water, L/min.
    pub fn flow(&self) -> f64 {
        self.flow
    }

    /// Power of the pump, W. It rises with the cube of the flow.
    pub fn pump(&self) -> f64 {
        PUMP_W.0 + PUMP_W.1 * (self.flow / self.flow_max).powi(3)
    }
}

/// Fraction of the power that heats the water at an inlet temperature.
pub fn share(inlet: f64) -> f64 {
    SHARE - SHARE_LOST_PER_K * (inlet - ROOM)
}

/// The flow that warms up by [`RISE_K`] with this heat, L/min.
fn required_flow(heat: f64) -> f64 {
    heat / (WATER.0 * WATER.1 * RISE_K) * 60.0
}
