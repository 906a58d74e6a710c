//! Verified programs through the public interface: assembled, verified, translated, compiled, called.

use ringfence_host::{
    Algo, CommInfo, CostTable, Decision, Engine, Fault, Hook, Instance, Limits, MapRegistry, Owner,
    PolicyModule, Proto, ScopeRules, TunerInput,
};
use ringfence_translator::isa::asm::assemble;
use ringfence_translator::verify::Verifier;
use ringfence_translator::{MapDecl, MapKind, Translator};
use std::num::NonZeroU32;

fn compile(hook: Hook, text: &str, maps: &[MapDecl]) -> PolicyModule {
    let program = assemble(text, maps).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let verified = Verifier::new(hook.env()).verify(program).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let module = Translator::new().translate(&verified).unwrap();
    PolicyModule::compile(Engine::global().unwrap(), module).unwrap()
}

fn instantiate(registry: &MapRegistry, policy: &PolicyModule, fuel: u64) -> Instance {
    let owner = Owner { policy: policy.name().into(), communicator: 7 };
    let maps = registry.resolve(policy.maps(), &ScopeRules::default(), &owner).unwrap();
    Instance::new(policy, &maps, Limits { fuel: Some(fuel) }).unwrap()
}

fn registry() -> MapRegistry {
    MapRegistry::new(Engine::global().unwrap(), 1 << 24)
}

fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32) -> MapDecl {
    let name = name.into();
    MapDecl { name, kind, key_size, value_size, max_entries: 16, ..MapDecl::default() }
}

struct Call {
    comm: CommInfo,
    n_bytes: u64,
    call_seq: u64,
    costs: Vec<f32>,
}

impl Call {
    /// A call in which each input depends on `salt`.
    fn new(salt: u32) -> Call {
        Call {
            comm: CommInfo {
                comm_id: u64::from(salt) << 32 | 0x77,
                n_ranks: 100 + salt,
                n_nodes: 200 + salt,
                n_nvl_domains: 300 + salt,
                min_ranks_per_nvl_domain: 400 + salt,
                max_ranks_per_nvl_domain: 500 + salt,
                max_channels: 600 + salt,
            },
            n_bytes: u64::from(salt) << 33 | 0x99,
            call_seq: u64::from(salt) << 34 | 0x55,
            costs: (0..21)
                .map(|i| if (i + salt).is_multiple_of(4) { -1.0 } else { (i * 8 + salt) as f32 })
                .collect(),
        }
    }

    fn decide(&mut self, instance: &mut Instance, salt: u32, so_far: Decision) -> Result<Decision, Fault> {
        let table = CostTable::new(&mut self.costs, 7, 3).unwrap();
        let input = TunerInput {
            comm: &self.comm,
            func: salt % 5,
            n_bytes: self.n_bytes,
            num_pipe_ops: 700 + salt,
            reg_buff: salt % 2 == 1,
            call_seq: self.call_seq,
            costs: table.costs(),
        };
        instance.decide(&input, so_far)
    }

    /// The context as the ABI has it, in 32-bit pieces.
    fn context(&self, salt: u32) -> Vec<u32> {
        let c = &self.comm;
        let halves = |w: u64| [w as u32, (w >> 32) as u32];
        let available = (0..21).filter(|i| self.costs[*i] >= 0.0).fold(0, |m, i| m | 1 << i);
        let mut words: Vec<u32> = [self.n_bytes, c.comm_id].into_iter().flat_map(halves).collect();
        words.extend([salt % 5, c.n_ranks, c.n_nodes, 700 + salt, salt % 2, 7, 3, c.max_channels, available]);
        words.extend([c.n_nvl_domains, c.min_ranks_per_nvl_domain, c.max_ranks_per_nvl_domain, !0, !0, 0, 0]);
        words.extend(halves(self.call_seq));
        words.extend(self.costs.iter().map(|c| if *c < 0.0 { !0 } else { (c * 1000.0) as u32 }));
        words
    }
}

/// Only what a policy reads is written into its context. So, for each piece of it: a policy that reads this piece and
/// another one, in calls that differ in all inputs, and both are right each time.
#[test]
fn what_a_policy_reads_is_what_nccl_said() {
    let pieces: Vec<u32> = (0..43).filter(|i| *i != 19).map(|i| 4 * i).collect();
    for (i, a) in pieces.iter().enumerate() {
        let b = pieces[(i * 5 + 3) % pieces.len()];
        let text = format!(
            "w2 = *(u32 *)(r1 + {a})\nw3 = *(u32 *)(r1 + {b})\nw2 ^= w3\n*(u32 *)(r1 + 72) = w2\nr0 = 0\nexit"
        );
        let mut instance = instantiate(&registry(), &compile(Hook::Tuner, &text, &[]), 1000);
        for salt in [1, 2, 7] {
            let mut call = Call::new(salt);
            let words = call.context(salt);
            let want = NonZeroU32::new(words[*a as usize / 4] ^ words[b as usize / 4]);
            let got = call.decide(&mut instance, salt, Decision::DEFER).unwrap();
            assert_eq!(got.channels, want, "{a} {b} {salt}");
        }
    }
}

/// Ring/Simple with 8 channels from 64 KiB on, else nothing; and the second policy of a chain sees the first one's wish.
#[test]
fn a_chain_of_policies_decides() {
    let choose = "r2 = *(u64 *)(r1 + 0)
        if r2 < 65536 goto out
        w3 = 1
        *(u32 *)(r1 + 64) = w3
        w3 = 2
        *(u32 *)(r1 + 68) = w3
        w3 = 8
        *(u32 *)(r1 + 72) = w3
        out:
        r0 = 0
        exit";
    let double = "w2 = *(u32 *)(r1 + 72)\nw2 <<= 1\n*(u32 *)(r1 + 72) = w2\nr0 = 0\nexit";
    let registry = registry();
    let mut first = instantiate(&registry, &compile(Hook::Tuner, choose, &[]), 1000);
    let mut second = instantiate(&registry, &compile(Hook::Tuner, double, &[]), 1000);
    let mut decide = |n_bytes| {
        let mut call = Call { n_bytes, ..Call::new(0) };
        let d = call.decide(&mut first, 0, Decision::DEFER).unwrap();
        call.decide(&mut second, 0, d).unwrap()
    };
    assert_eq!(decide(65535), Decision::DEFER);
    let want = Decision { route: Some((Algo::Ring, Proto::Simple)), channels: NonZeroU32::new(16) };
    assert_eq!(decide(65536), want);
    assert_eq!(decide(1), Decision::DEFER);
}

/// A verified loop is bounded, but fuel may be shorter still; then the decision so far stands.
#[test]
fn fuel_bounds_what_the_verifier_accepts() {
    let text = "r2 = 0\nl:\nr2 += 1\nif r2 < 500 goto l\nr0 = 0\nexit";
    let policy = compile(Hook::Tuner, text, &[]);
    let mut short = instantiate(&registry(), &policy, 100);
    let mut enough = instantiate(&registry(), &policy, 100_000);
    let so_far = Decision { route: None, channels: NonZeroU32::new(2) };
    assert_eq!(Call::new(1).decide(&mut short, 1, so_far), Err(Fault::OutOfFuel));
    assert_eq!(Call::new(1).decide(&mut enough, 1, so_far), Ok(so_far));
    assert_eq!((short.counters().faults(), enough.counters().faults()), (1, 0));
    assert_eq!(policy.metrics().snapshot().calls, 2);
}

/// Counts calls in a hash map, with lookup, update and an atomic add; instances on four threads share it.
#[test]
fn maps_count_exactly_across_threads() {
    let text = "w2 = 3
        *(u32 *)(r10 - 4) = w2
        r1 = map[count] ll
        r2 = r10
        r2 += -4
        call map_lookup_elem
        if r0 != 0 goto add
        r3 = 0
        *(u64 *)(r10 - 16) = r3
        r1 = map[count] ll
        r2 = r10
        r2 += -4
        r3 = r10
        r3 += -16
        r4 = 1
        call map_update_elem
        r1 = map[count] ll
        r2 = r10
        r2 += -4
        call map_lookup_elem
        if r0 == 0 goto out
        add:
        r1 = 1
        lock *(u64 *)(r0 + 0) += r1
        out:
        r0 = 0
        exit";
    const CALLS: u64 = 20_000;
    let registry = registry();
    let policy = compile(Hook::Tuner, text, &[map("count", MapKind::Hash, 4, 8)]);
    let reader = instantiate(&registry, &policy, 1000);
    std::thread::scope(|s| {
        for _ in 0..4 {
            let (registry, policy) = (&registry, &policy);
            s.spawn(move || {
                let mut instance = instantiate(registry, policy, 1000);
                let mut call = Call::new(1);
                for _ in 0..CALLS {
                    call.decide(&mut instance, 1, Decision::DEFER).unwrap();
                }
            });
        }
    });
    let value = reader.maps().get("count").unwrap().lookup(&3u32.to_le_bytes()).unwrap();
    let count = u64::from_le_bytes(value.try_into().unwrap());
    // A first call that met a busy map found no key and counted nothing; all others count exactly.
    assert!((4 * CALLS - 8..=4 * CALLS).contains(&count), "{count}");
    assert_eq!(policy.metrics().snapshot().calls, 4 * CALLS);
}

/// Array values are reached without the host, beyond the first page of Wasm memory too.
#[test]
fn array_values_are_inlined() {
    let decl = MapDecl { max_entries: 1000, ..map("a", MapKind::Array, 4, 256) };
    let text = "r2 = *(u64 *)(r1 + 0)
        r6 = r1
        *(u32 *)(r10 - 4) = w2
        r1 = map[a] ll
        r2 = r10
        r2 += -4
        call map_lookup_elem
        if r0 == 0 goto none
        w1 = *(u32 *)(r0 + 252)
        *(u32 *)(r6 + 72) = w1
        r0 = 0
        exit
        none:
        r0 = 1
        exit";
    let mut instance = instantiate(&registry(), &compile(Hook::Tuner, text, &[decl]), 1000);
    for i in [0u32, 255, 256, 999] {
        instance
            .maps()
            .get("a")
            .unwrap()
            .update(&i.to_le_bytes(), &[(i as u8).wrapping_add(1); 256], 0)
            .unwrap();
    }
    let mut channels = |n_bytes| {
        let mut call = Call { n_bytes, ..Call::new(0) };
        call.decide(&mut instance, 0, Decision::DEFER).unwrap().channels.map(NonZeroU32::get)
    };
    assert_eq!(channels(0), Some(0x0101_0101));
    assert_eq!((channels(255), channels(256)), (None, Some(0x0101_0101)));
    assert_eq!((channels(999), channels(1), channels(1000)), (Some(0xe8e8_e8e8), None, None));
}
