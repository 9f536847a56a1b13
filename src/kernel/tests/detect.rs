//! What was found of the processor, against std.

#[cfg(all(target_arch = "aarch64", not(amla_tiles = "small")))]
#[test]
fn agrees_with_std() {
    use super::std::arch::is_aarch64_feature_detected as has;
    use crate::kernel::detect::has_bf16;

    assert!(has!("neon"));
    assert_eq!(has_bf16(), has!("bf16"));
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[test]
fn agrees_with_std() {
    use super::std::is_x86_feature_detected as has;
    use crate::kernel::detect::x86;

    let on_ymm = has!("avx2") && has!("fma") && has!("f16c");
    let on_zmm =
        on_ymm && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
    assert_eq!(x86::has_avx2(), on_ymm);
    assert_eq!(x86::has_avx512(), on_zmm);
    assert_eq!(x86::has_avx512_bf16(), on_zmm && has!("avx512bf16"));
}
