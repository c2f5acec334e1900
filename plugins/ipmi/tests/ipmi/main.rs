//! The source against ipmi_sim of OpenIPMI with ipmitool beside it, and against controllers that do everything wrong.

mod event_log;
mod hosted;
mod hostile;
mod sampled;
mod sessions;
mod settings;
mod simulator;
mod stand_in;
