//! [`Schema::builtin`]: the schemas of NCCL's hooks, which are files like any other.

use super::Schema;
use once_cell::sync::OnceCell;

/// Name of the hook, its text, and the schema once somebody asked.
struct Builtin {
    name: &'static str,
    text: &'static str,
    schema: &'static OnceCell<Schema>,
}

macro_rules! builtins {
    ($($name:literal: $file:literal,)*) => {
        /// In the order in which lists show them.
        static BUILTIN: &[Builtin] = &[$(Builtin {
            name: $name,
            text: include_str!(concat!("../../schemas/", $file)),
            schema: {
                static CELL: OnceCell<Schema> = OnceCell::new();
                &CELL
            },
        },)*];
    };
}

builtins! {
    "tuner": "tuner.toml",
    "tuner/chunk": "tuner_chunk.toml",
    "tuner/init": "tuner_init.toml",
    "uprobe": "uprobe.toml",
    "profiler": "profiler.toml",
    "profiler/event": "profiler_event.toml",
    "net": "net.toml",
    "env": "env.toml",
}

impl Builtin {
    fn schema(&'static self) -> &'static Schema {
        self.schema.get_or_init(|| {
            let file = format!("(built in) {}", self.name);
            // The text is a part of this library, and a test reads every one.
            Schema::parse_builtin(self.text, &file).unwrap_or_else(|e| panic!("{e}"))
        })
    }
}

impl Schema {
    /// The schema of NCCL's hook of that name. Read at the first call.
    pub fn builtin(name: &str) -> Option<&'static Schema> {
        BUILTIN.iter().find(|b| b.name == name).map(Builtin::schema)
    }

    /// The schemas of all of NCCL's hooks.
    pub fn all_builtin() -> impl Iterator<Item = &'static Schema> {
        BUILTIN.iter().map(Builtin::schema)
    }

    /// The text of the file that [`Schema::builtin`] reads, comments included.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|b| b.name == name).map(|b| b.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_schema_of_its_name() {
        for builtin in BUILTIN {
            let schema = Schema::parse_builtin(builtin.text, builtin.name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(schema.name(), builtin.name);
            assert!(!schema.about().is_empty(), "{}", builtin.name);
            for field in schema.fields() {
                assert!(
                    !field.about.is_empty(),
                    "{}: {} says nothing about itself",
                    builtin.name,
                    field.name
                );
            }
            assert!(std::ptr::eq(Schema::builtin(builtin.name).unwrap(), builtin.schema()));
        }
        assert!(Schema::builtin("ep/mode").is_none());
    }

    #[test]
    fn nobody_else_may_define_them() {
        for builtin in BUILTIN {
            let e = Schema::parse(builtin.text, "x.toml").unwrap_err();
            assert!(e.message().contains("belongs to a hook of NCCL's"), "{e}");
        }
    }
}
