//! A circuit of warm water that takes the heat of the racks away.
//!
//! Power goes in as electricity and comes out as heat: most of it into the water, after the time that the metal takes to warm up, the rest into the
//! room, the more the warmer the water is. The pump follows the heat, so that the water warms up by about [`RISE_K`]; the inlet's temperature is
//! what the cooling towers can do (warmer by day), and every few hours somebody changes its set point.

/// Water at about 40 °C: kg/L, J/(kg K).
pub const WATER: (f64, f64) = (0.992, 4178.0);
/// What the pump control aims at between inlet and outlet, K.
pub const RISE_K: f64 = 6.0;
/// The share of the power that goes into the water when the water is as warm as the room.
pub const SHARE: f64 = 0.94;
/// What of that share is lost for each K that the inlet is warmer than the room.
pub const SHARE_LOST_PER_K: f64 = 0.0025;
/// The room, °C.
pub const ROOM: f64 = 24.0;
/// Inlet temperatures that are tried, °C.
pub const SET_POINTS: std::ops::Range<u64> = 27..46;
/// How long a set point is kept, s.
const SET_POINT_S: f64 = 3.0 * 3600.0;
/// Time constants, s: of the heat on its way to the water, of the pump, of the inlet.
const LAG_S: (f64, f64, f64) = (240.0, 60.0, 900.0);
/// The pump's power without flow and what the greatest flow adds, W, of a circuit for one rack.
const PUMP_W: (f64, f64) = (40.0, 160.0);

/// The circuit at one time.
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
    /// In balance with this power of the racks, W, made for a heat of at most `heat_max`, W: it does not begin as if it were being switched on.
    pub fn new(power: f64, heat_max: f64) -> Self {
        let inlet = SET_POINTS.start as f64 + 8.0;
        let heat = power * share(inlet);
        let flow_max = wanted_flow(heat_max);
        Self { set_point: inlet, set_point_left_s: SET_POINT_S, inlet, flow: wanted_flow(heat), heat, flow_max }
    }

    /// Goes on by `dt_s` to `time_s` with this power of the racks, W. When the set point has been kept long enough `set_point` gives the next.
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
        self.flow = towards(self.flow, wanted_flow(self.heat), LAG_S.1);
    }

    /// The water that comes in, °C.
    pub fn inlet(&self) -> f64 {
        self.inlet
    }

    /// The water that goes out, °C.
    pub fn outlet(&self) -> f64 {
        self.inlet + self.heat / (self.flow / 60.0 * WATER.0 * WATER.1)
    }

    /// L/min.
    pub fn flow(&self) -> f64 {
        self.flow
    }

    /// The pump's power, W: it goes with the cube of the flow.
    pub fn pump(&self) -> f64 {
        PUMP_W.0 + PUMP_W.1 * (self.flow / self.flow_max).powi(3)
    }
}

/// The share of the power that goes into the water.
pub fn share(inlet: f64) -> f64 {
    SHARE - SHARE_LOST_PER_K * (inlet - ROOM)
}

/// L/min that warm up by [`RISE_K`] with this heat.
fn wanted_flow(heat: f64) -> f64 {
    heat / (WATER.0 * WATER.1 * RISE_K) * 60.0
}
