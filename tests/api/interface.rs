//! The interface's small promises: names, conversions, traits.

use amla::{
    Argument, Backend, BackendId, Error, Options, Plan, Precision, Problem, Rescale, Workspace,
};

use crate::refusals::assert_refused;

#[test]
fn workspace_of_bytes() {
    let (size, align) = (size_of::<Workspace>(), align_of::<Workspace>());
    assert!(size <= 2 << 20, "{size}");
    let mut bytes = vec![0x5a_u8; size + 2 * align];
    let start = bytes.as_ptr().align_offset(align);
    assert!(Workspace::from_bytes(&mut bytes[start..start + size]).is_ok());
    assert!(Workspace::from_bytes(&mut bytes[start..]).is_ok());
    for len in [0, 1, align, size - 1] {
        let result = Workspace::from_bytes(&mut bytes[start..start + len]).map(drop);
        let want = Error::TooShort {
            argument: Argument::Workspace,
            len,
            needed: size,
        };
        // In bytes, whatever the words are.
        let text = want.to_string();
        assert!(text.starts_with("workspace holds "), "{text}");
        assert!(text.contains(&len.to_string()) && text.contains(&size.to_string()));
        assert_refused(result, &(want, text), "from_bytes");
    }
    for offset in [1, 2, 4, 8, 16, 32, 63] {
        let bytes = &mut bytes[start + offset..start + offset + size];
        let result = Workspace::from_bytes(bytes).map(drop);
        let want = Error::Misaligned {
            argument: Argument::Workspace,
            align,
        };
        let text = format!("workspace is not aligned to {align} bytes");
        assert_refused(result, &(want, text), "from_bytes");
    }
    assert!(bytes.iter().all(|&byte| byte == 0x5a));
}

#[test]
fn backends_are_requested_by_name() {
    // Before the requests, so that no other test's permission comes between.
    let amx = Backend::permit_amx();
    assert_eq!(Backend::request(BackendId::Amx).is_ok(), amx);
    assert!(!amx || Backend::detect().id() == BackendId::Amx);
    assert!(Backend::request(Backend::detect().id()).is_ok());
    assert_eq!(Backend::default(), Backend::detect());
    assert_eq!(Options::default().backend, Backend::detect());
    assert_eq!(BackendId::from_name("none"), None);
    for id in BackendId::ALL {
        assert_eq!(BackendId::from_name(id.name()), Some(id));
        match Backend::request(id) {
            Ok(backend) => assert_eq!(backend.id(), id),
            Err(error) => assert_eq!(error, Error::BackendUnavailable { backend: id.name() }),
        }
        let error = Error::BackendUnavailable { backend: id.name() };
        let permit = if id == BackendId::Amx {
            ", or this process may not use it"
        } else {
            ""
        };
        let text = format!("backend {} can't run on this processor{permit}", id.name());
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn errors_are_errors_and_types_cross_threads() {
    fn error<T: std::error::Error + Send + Sync + Copy + 'static>() {}
    fn shared<T: Send + Sync>() {}
    error::<Error>();
    shared::<Plan>();
    shared::<Problem<'_>>();
    shared::<Options>();
    shared::<Workspace>();
}

#[test]
fn arguments_have_the_names_of_the_interface() {
    for (argument, name) in [
        (Argument::B, "b"),
        (Argument::SQ, "s_q"),
        (Argument::SK, "s_k"),
        (Argument::HQ, "h_q"),
        (Argument::DQk, "d_qk"),
        (Argument::DV, "d_v"),
        (Argument::Q, "q"),
        (Argument::Kv, "kv"),
        (Argument::V, "v"),
        (Argument::CacheSeqlens, "cache_seqlens"),
        (Argument::SoftmaxScale, "softmax_scale"),
        (Argument::O, "o"),
        (Argument::Lse, "lse"),
        (Argument::Task, "task"),
        (Argument::Partials, "partials"),
        (Argument::Workspace, "workspace"),
        (Argument::BlockN, "block_n"),
    ] {
        assert_eq!(argument.name(), name);
    }
    assert_eq!(Rescale::default(), Rescale::Exact);
    assert_eq!(Precision::default(), Precision::Bf16);
}
