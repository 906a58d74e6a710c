//! [`EnvRules`]: `[env]` of the manifest, and [`class_of`]: which names may be answered, and by whom.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Longest value in a manifest, as in `nccl.conf`.
const MAX_VALUE: usize = 1023;

/// Who may answer for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameClass {
    /// The manifest and policies.
    Policy,
    /// The manifest alone: a path or a library that NCCL opens, a file that it writes, or an address that it connects to.
    Manifest,
    /// Nobody but the process environment.
    Process,
}

/// Names that NCCL reads before or beside the env plugin, so that an answer would be without effect, or would loop.
const PROCESS: [&str; 5] =
    ["NCCL_ENV_PLUGIN", "NCCL_CONF_FILE", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_NO_CACHE"];
/// Names of files, libraries and addresses that the endings below do not tell.
const MANIFEST: [&str; 6] = [
    "NCCL_COMM_ID",
    "NCCL_HOSTID",
    "NCCL_RAS_ADDR",
    "NCCL_SOCKET_MAGIC",
    "NCCL_CUDA_PATH",
    "NCCL_DEBUG_TIMESTAMP_FORMAT",
];

/// Who may answer for `name`.
pub fn class_of(name: &str) -> NameClass {
    let known = name.len() > 5 && name.len() <= super::MAX_NAME && name.starts_with("NCCL_");
    let plain = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if !known || !plain || PROCESS.contains(&name) {
        return NameClass::Process;
    }
    let opens = ["_PLUGIN", "_FILE", "_LIB", "_PATH", "_DIR"].iter().any(|end| name.ends_with(end));
    if opens || name.contains("_PLUGIN_") || MANIFEST.contains(&name) {
        NameClass::Manifest
    } else {
        NameClass::Policy
    }
}

/// `[env]` of the manifest. Empty: every look-up of NCCL's goes to the process environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvRules {
    /// Names that policies may answer.
    #[serde(default)]
    pub allow: BTreeSet<String>,
    /// Names for which an answer of ours wins over what the process has set.
    #[serde(default)]
    pub r#override: BTreeSet<String>,
    /// Values by name.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

impl EnvRules {
    /// Is anything said of that name?
    pub(crate) fn mentions(&self, name: &str) -> bool {
        self.allow.contains(name) || self.set.contains_key(name)
    }

    /// May policies answer?
    pub(crate) fn allows(&self, name: &str) -> bool {
        self.allow.contains(name)
    }

    /// Does an answer win over the process?
    pub(crate) fn overrides(&self, name: &str) -> bool {
        self.r#override.contains(name)
    }

    /// The manifest's value.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.set.get(name).map(String::as_str)
    }

    /// The first thing that is wrong: the key, and why.
    pub(crate) fn check(&self) -> Result<(), (String, String)> {
        for name in &self.allow {
            let why = match class_of(name) {
                NameClass::Policy => continue,
                NameClass::Manifest => {
                    "names a file, a library or an address, which policies must not choose; give it in env.set"
                }
                NameClass::Process => "cannot be answered",
            };
            return Err(("env.allow".to_owned(), format!("{name} {why}")));
        }
        for (name, value) in &self.set {
            if class_of(name) == NameClass::Process {
                return Err((format!("env.set.{name}"), "cannot be answered".to_owned()));
            }
            if value.len() > MAX_VALUE || value.chars().any(char::is_control) {
                let why = format!("must be printable, and at most {MAX_VALUE} bytes");
                return Err((format!("env.set.{name}"), why));
            }
        }
        match self.r#override.iter().find(|name| !self.mentions(name)) {
            Some(name) => {
                Err(("env.override".to_owned(), format!("{name} is neither in env.allow nor in env.set")))
            }
            None => Ok(()),
        }
    }

    /// For the hash of a policy set.
    pub(crate) fn canonical(&self) -> String {
        format!("{:?} {:?} {:?}", self.allow, self.r#override, self.set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_classes() {
        for name in
            ["NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_IB_HCA", "NCCL_NET", "NCCL_P2P_LEVEL"]
        {
            assert_eq!(class_of(name), NameClass::Policy, "{name}");
        }
        for name in [
            "NCCL_NET_PLUGIN",
            "NCCL_TUNER_PLUGIN",
            "NCCL_PROFILER_PLUGIN",
            "NCCL_GIN_PLUGIN",
            "NCCL_RMA_PLUGIN",
            "NCCL_TOPO_FILE",
            "NCCL_GRAPH_DUMP_FILE",
            "NCCL_DEBUG_FILE",
            "NCCL_TUNER_CONFIG_FILE",
            "NCCL_IBVERBS_LIB",
            "NCCL_COMM_ID",
            "NCCL_NET_PLUGIN_REF_COUNT",
        ] {
            assert_eq!(class_of(name), NameClass::Manifest, "{name}");
        }
        for name in [
            "",
            "NCCL_",
            "HOME",
            "LD_PRELOAD",
            "CUDA_LAUNCH_BLOCKING",
            "RINGFENCE_POLICY",
            "NCCL_ENV_PLUGIN",
            "NCCL_CONF_FILE",
            "NCCL_DEBUG",
            "nccl_algo",
            "NCCL_ALGO=1",
            "NCCL_ÄLGO",
            "XNCCL_ALGO",
        ] {
            assert_eq!(class_of(name), NameClass::Process, "{name}");
        }
        assert_eq!(class_of(&format!("NCCL_{}", "A".repeat(58))), NameClass::Policy);
        assert_eq!(
            class_of(&format!("NCCL_{}", "A".repeat(59))),
            NameClass::Process,
            "a policy would see half of it"
        );
    }

    #[test]
    fn rules_are_checked() {
        let rules = |text: &str| toml::from_str::<EnvRules>(text).unwrap();
        let good = rules(
            "allow = ['NCCL_ALGO']\noverride = ['NCCL_ALGO', 'NCCL_TOPO_FILE']\n[set]\nNCCL_TOPO_FILE = '/x'\n",
        );
        assert_eq!(good.check(), Ok(()));
        assert!(
            good.mentions("NCCL_ALGO") && good.mentions("NCCL_TOPO_FILE") && !good.mentions("NCCL_PROTO")
        );
        assert!(good.allows("NCCL_ALGO") && !good.allows("NCCL_TOPO_FILE"));
        assert_eq!(EnvRules::default().check(), Ok(()));
        for (text, key, why) in [
            (
                "allow = ['NCCL_NET_PLUGIN']",
                "env.allow",
                "NCCL_NET_PLUGIN names a file, a library or an address",
            ),
            ("allow = ['PATH']", "env.allow", "PATH cannot be answered"),
            ("[set]\nNCCL_ENV_PLUGIN = 'x'", "env.set.NCCL_ENV_PLUGIN", "cannot be answered"),
            ("[set]\nNCCL_ALGO = \"a\\nb\"", "env.set.NCCL_ALGO", "must be printable"),
            ("override = ['NCCL_ALGO']", "env.override", "NCCL_ALGO is neither in env.allow nor in env.set"),
        ] {
            let (at, what) = rules(text).check().unwrap_err();
            assert_eq!(at, key);
            assert!(what.starts_with(why), "{what}");
        }
        let long = format!("[set]\nNCCL_ALGO = '{}'", "x".repeat(1024));
        assert_eq!(rules(&long).check().unwrap_err().0, "env.set.NCCL_ALGO");
    }
}
