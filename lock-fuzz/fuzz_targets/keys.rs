#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lock_macros::robustness::keys(data);
});
