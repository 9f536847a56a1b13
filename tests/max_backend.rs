//! The cap on backends. It is a process's, so that each case runs in one of its own: this test as a child.

use std::env;
use std::process::Command;

use amla::{Backend, BackendId, Error, Options};

const CASE: &str = "AMLA_TEST_MAX_BACKEND_CASE";
const CAP: &str = "AMLA_MAX_BACKEND";

/// A case, the environment variable that it starts with, and what it checks.
type Case = (&'static str, Option<&'static str>, fn());

const CASES: &[Case] = &[
    ("no cap", None, no_cap),
    ("each backend", None, low),
    ("a second cap", None, second),
    ("a refused cap", None, foreign),
    ("too late, after detection", None, after_detection),
    ("too late, after a request", None, after_request),
    ("too late, after a refused request", None, after_refusal),
    ("AMX permitted before", None, amx_before),
    ("AMX permitted after", None, amx_after),
    ("threads", None, threads),
    ("environment", Some("portable"), environment),
    ("environment, overruled", Some("portable"), overruled),
    ("environment, of no backend", Some("avx1024"), no_cap),
    ("environment, empty", Some(""), no_cap),
    (
        "environment, of another architecture",
        Some(FOREIGN.name()),
        no_cap,
    ),
];

const FOREIGN: BackendId = if cfg!(target_arch = "aarch64") {
    BackendId::Avx2
} else {
    BackendId::NeonBf16
};
/// The slowest of the architecture's own.
const LOW: BackendId = if cfg!(target_arch = "aarch64") {
    BackendId::Neon
} else {
    BackendId::Avx2
};

#[test]
fn in_a_process_of_its_own() {
    if let Ok(case) = env::var(CASE) {
        let (.., check) = CASES.iter().find(|(name, ..)| *name == case).unwrap();
        check();
        return;
    }
    if cfg!(miri) {
        return; // It starts no processes.
    }
    // Elsewhere there is nothing to cap.
    let known = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    for (name, cap, _) in &CASES[..if known { CASES.len() } else { 1 }] {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "in_a_process_of_its_own"]);
        child.env(CASE, name).env_remove(CAP);
        if let Some(cap) = cap {
            child.env(CAP, cap);
        }
        let output = match child.output() {
            // ENOEXEC: an emulator of programs runs this one, and no other of its architecture.
            Err(error) if error.raw_os_error() == Some(8) => {
                eprintln!("max_backend NOT RUN: {error}");
                return;
            }
            output => output.unwrap(),
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {printed}");
        assert!(printed.contains("1 passed"), "{name}: {printed}");
    }
}

fn available() -> Vec<BackendId> {
    let can_run = |id: &BackendId| Backend::request(*id).is_ok();
    BackendId::ALL.into_iter().filter(can_run).collect()
}

fn above(backend: BackendId, max: BackendId) -> Result<Backend, Error> {
    Err(Error::BackendAboveMax {
        backend: backend.name(),
        max: max.name(),
    })
}

/// Whether it is another architecture's.
fn is_foreign(id: BackendId) -> bool {
    match id {
        BackendId::Portable => false,
        BackendId::Neon | BackendId::NeonBf16 => !cfg!(target_arch = "aarch64"),
        BackendId::Avx2 => !cfg!(target_arch = "x86_64"),
        _ => !cfg!(any(target_arch = "x86_64", amla_emulated)),
    }
}

fn assert_in_use() {
    for id in BackendId::ALL {
        let name = id.name();
        let error = if is_foreign(id) {
            Error::BackendUnavailable { backend: name }
        } else {
            Error::BackendInUse { max: name }
        };
        assert_eq!(Backend::set_max(id), Err(error));
    }
}

fn no_cap() {
    assert!(available().contains(&BackendId::Portable));
    for id in BackendId::ALL {
        let refused = Backend::request(id).err();
        let backend = id.name();
        let unavailable = Error::BackendUnavailable { backend };
        assert!(refused.is_none_or(|error| error == unavailable));
    }
    assert_in_use();
}

fn low() {
    assert_eq!(Backend::set_max(LOW), Ok(()));
    assert!(
        available()
            .iter()
            .all(|id| [BackendId::Portable, LOW].contains(id))
    );
    assert!(available().contains(&Backend::detect().id()));
    assert_eq!(Options::default().backend, Backend::detect());
    for id in BackendId::ALL {
        if ![BackendId::Portable, LOW].contains(&id) {
            assert_eq!(Backend::request(id), above(id, LOW));
        }
    }
    let text = above(FOREIGN, LOW).unwrap_err().to_string();
    let [foreign, low] = [FOREIGN, LOW].map(BackendId::name);
    let want = format!("backend {foreign} is above {low}, this process's cap");
    assert_eq!(text, want);
    assert_in_use();
}

/// Until it is used, the last one counts.
fn second() {
    assert_eq!(Backend::set_max(LOW), Ok(()));
    assert_eq!(Backend::set_max(BackendId::Portable), Ok(()));
    assert_eq!(available(), [BackendId::Portable]);
    assert_eq!(Backend::detect().id(), BackendId::Portable);
    assert_eq!(Backend::request(LOW), above(LOW, BackendId::Portable));
    let error = Backend::set_max(LOW).unwrap_err();
    let want = "can't be made the cap: this process has used a backend already";
    assert_eq!(error.to_string(), format!("{} {want}", LOW.name()));
}

/// Another architecture's backend caps nothing, nor does the refusal use one.
fn foreign() {
    let backend = FOREIGN.name();
    let unavailable = Error::BackendUnavailable { backend };
    assert_eq!(Backend::set_max(FOREIGN), Err(unavailable));
    assert_eq!(Backend::set_max(BackendId::Portable), Ok(()));
    assert_eq!(available(), [BackendId::Portable]);
}

fn after_detection() {
    let before = Backend::detect();
    assert_in_use();
    assert_eq!(Backend::detect(), before);
}

fn after_request() {
    assert!(Backend::request(BackendId::Portable).is_ok());
    assert_in_use();
}

fn after_refusal() {
    assert!(Backend::request(FOREIGN).is_err());
    assert_in_use();
}

/// Permission is the operating system's: it uses no backend.
fn amx_before() {
    Backend::permit_amx();
    assert_eq!(Backend::set_max(LOW), Ok(()));
    assert_eq!(Backend::request(BackendId::Amx), above(BackendId::Amx, LOW));
    assert!(!Backend::permit_amx());
}

fn amx_after() {
    assert_eq!(Backend::set_max(BackendId::Portable), Ok(()));
    assert!(!Backend::permit_amx());
    assert_eq!(available(), [BackendId::Portable]);
}

/// All threads see the same cap, whoever comes first.
fn threads() {
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|i| {
                scope.spawn(move || {
                    let set = i % 2 == 0 && Backend::set_max(BackendId::Portable).is_ok();
                    (set, Backend::detect())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let capped = found.iter().any(|(set, _)| *set);
    assert!(found.iter().all(|(_, backend)| *backend == found[0].1));
    assert!(!capped || found[0].1.id() == BackendId::Portable);
}

fn environment() {
    assert_eq!(available(), [BackendId::Portable]);
    assert_eq!(Backend::detect().id(), BackendId::Portable);
    assert_in_use();
}

/// The program's own cap comes before its environment's.
fn overruled() {
    assert_eq!(Backend::set_max(LOW), Ok(()));
    assert_eq!(Backend::request(FOREIGN), above(FOREIGN, LOW));
    assert_ne!(Backend::request(LOW), above(LOW, BackendId::Portable));
}
