#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scalerpc_fuzz::core::observe::entry(data));
