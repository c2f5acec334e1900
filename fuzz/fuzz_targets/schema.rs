//! Any bytes as a schema: what is taken is written as the same bytes, for they are hashed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wholegrain_model::Schema;

fuzz_target!(|data: &[u8]| {
    if let Ok(schema) = Schema::decode(data) {
        assert_eq!(schema.encode(), data);
    }
});
