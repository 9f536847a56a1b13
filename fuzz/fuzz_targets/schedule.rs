#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| amla_fuzz::schedule::run(data));
