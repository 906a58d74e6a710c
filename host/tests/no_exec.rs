//! A process in which no memory may become executable (`PR_SET_MDWE`, as hardened services use it): compiling is an
//! error value, not a crash. The setting cannot be taken back, so this test has a process of its own.

use ringfence_host::{Engine, ErrorKind, Hook, PolicyModule};
use ringfence_translator::Translator;
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;

#[test]
fn compiling_fails_cleanly() {
    let program = assemble("r0 = 0\nexit", &[]).unwrap();
    let verified = Verifier::new(Hook::Tuner.env()).verify(program).unwrap();
    let module = Translator::new().translate(&verified).unwrap();
    let engine = Engine::global().unwrap();
    assert!(PolicyModule::compile(engine, module.clone()).is_ok());

    const PR_SET_MDWE: i32 = 65;
    const PR_MDWE_REFUSE_EXEC_GAIN: u64 = 1;
    // SAFETY: takes numbers only; it forbids later mappings of this process, and touches none that exist.
    if unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0u64, 0u64, 0u64) } != 0 {
        eprintln!("skipped: this kernel has no PR_SET_MDWE (Linux 6.3 and later)");
        return;
    }
    for _ in 0..2 {
        let error = PolicyModule::compile(engine, module.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Compile, "{error}");
    }
}
