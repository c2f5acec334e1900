//! Sources as plug-ins: the C interface of `wholegrain_source.h`, from both sides.
//!
//! - In: for a plug-in, the [`SourceType`](wholegrain_sources::SourceType) of a source; for the agent, the descriptor that a shared object exports.
//! - Out: [`export!`] makes the symbol of a shared object; [`HostedSource`] calls one and checks all that it gives.
//! - Never: a panic that crosses the interface, memory that one side allocates and the other frees, trust in a name, a unit or a count.
//!
//! A plug-in in Rust is a crate of the types `cdylib` and `rlib` with one line beside its source:
//!
//! ```ignore
//! wholegrain_plugin::export!(SOURCE);
//! ```
//!
//! `docs/plugins.md` has the steps.

pub mod abi;
mod checks;
pub mod export;
mod host;

pub use checks::{GROUPS_MAX, NOTE_BYTES_MAX, NOTES_MAX, PluginLimitError, SensorChecks};
pub use host::{HostError, HostSettings, HostedDiscovery, HostedGroup, HostedReader, HostedReading, HostedSource};

/// Exports a [`SourceType`](wholegrain_sources::SourceType) constant as the symbol of this shared object. Once in a crate.
#[macro_export]
macro_rules! export {
    ($source:path) => {
        const _: () = {
            unsafe extern "C" fn configure(
                settings: *const $crate::abi::PluginSettings,
                source: *mut *mut ::core::ffi::c_void,
            ) -> i32 {
                // SAFETY: the agent gives valid pointers, as the interface demands.
                unsafe { $crate::export::configure(&$source, settings, source) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn wholegrain_source_v1() -> *const $crate::abi::PluginDescriptor {
                static DESCRIPTOR: $crate::abi::PluginDescriptor =
                    $crate::export::descriptor(&$source, env!("CARGO_PKG_VERSION"), configure);
                &DESCRIPTOR
            }
        };
    };
}
