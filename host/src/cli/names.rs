//! Names of NCCL's collectives, algorithms and protocols, as NCCL's own log writes them.

use crate::decision::{Algo, Proto};
use anyhow::bail;
use ringfence_guest::abi::func;

/// Collectives that reach a tuner, by `ncclFunc_t`.
const FUNCS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];

/// Name of a collective.
pub(crate) fn func_name(func: u32) -> &'static str {
    FUNCS.get(func as usize).copied().unwrap_or("?")
}

/// Name of an algorithm; `-` for none.
pub(crate) fn algo_name(algo: u32) -> &'static str {
    Algo::new(algo).map_or("-", Algo::name)
}

/// Name of a protocol; `-` for none.
pub(crate) fn proto_name(proto: u32) -> &'static str {
    Proto::new(proto).map_or("-", Proto::name)
}

/// The collective of that name, in any case and with or without underscores.
pub(crate) fn func_by_name(text: &str) -> anyhow::Result<u32> {
    match position(&FUNCS, text) {
        Some(i) => Ok(i),
        None => bail!("\"{text}\" is no collective that reaches a tuner (one of {})", FUNCS.join(", ")),
    }
}

fn position(names: &[&str], text: &str) -> Option<u32> {
    let plain: String = text.chars().filter(|c| !matches!(c, '_' | '-')).collect();
    names.iter().position(|n| n.eq_ignore_ascii_case(&plain)).map(|i| i as u32)
}

const _: () = assert!(func::ALL_REDUCE as usize + 1 == FUNCS.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree_with_the_abi() {
        assert_eq!(func_by_name("all_reduce").ok(), Some(func::ALL_REDUCE));
        assert_eq!(func_by_name("REDUCESCATTER").ok(), Some(func::REDUCE_SCATTER));
        assert_eq!((algo_name(1), proto_name(2)), ("Ring", "Simple"));
        assert_eq!((algo_name(u32::MAX), func_name(99)), ("-", "?"));
        assert!(func_by_name("sendrecv").is_err());
    }
}
