//! Explores the protocol with bounds from the command line.
//!
//! `cargo run -p wholegrain-protocol --example explore -- quorum batches=3 cuts=1 crashes=1 fences=1 snapshots=1 runs=2`

#[path = "../tests/explore/mod.rs"]
mod explore;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match explore::Setup::parse(&arguments) {
        Ok(setup) => {
            let result = explore::explore(&setup, explore::threads());
            print!("{}", explore::describe(&setup, &result));
        }
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(2);
        }
    }
}
