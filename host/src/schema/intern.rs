//! The table of hooks of this process: [`Schema::intern`] and look-ups by name and by section.
//!
//! An interned schema lives as long as the process: policies, their environments and a library's open hooks point to it, and
//! none of them says when the last is gone. So each distinct schema is leaked once, and there are [`MAX_SCHEMAS`] at most.

use super::{Schema, SchemaError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most schemas that files bring into one process. A few kilobytes each, never given back.
pub const MAX_SCHEMAS: usize = 256;

static TABLE: Mutex<Vec<&'static Schema>> = Mutex::new(Vec::new());

/// A push is all that happens under the lock, so what a panic leaves behind is whole.
fn table() -> MutexGuard<'static, Vec<&'static Schema>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Schema {
    /// Makes the schema a hook of this process, or finds it: schemas that decide alike (equal [`Schema::hash`]) are one,
    /// with the description and units of the first.
    ///
    /// # Errors
    /// Another layout has the name already, or one of the two names begins with the other (then a section could mean
    /// either), or the table is full.
    pub fn intern(self) -> Result<&'static Schema, SchemaError> {
        intern_in(&mut table(), self)
    }

    /// The hook of that name that a file brought.
    pub fn custom(name: &str) -> Option<&'static Schema> {
        table().iter().copied().find(|s| s.name == name)
    }

    /// The hook that a file brought and that an ELF section names.
    pub fn custom_of_section(section: &str) -> Option<&'static Schema> {
        table().iter().copied().find(|s| s.names_section(section))
    }

    /// All hooks that files brought, by name.
    pub fn all_custom() -> Vec<&'static Schema> {
        let mut all = table().clone();
        all.sort();
        all
    }
}

fn intern_in(table: &mut Vec<&'static Schema>, schema: Schema) -> Result<&'static Schema, SchemaError> {
    if let Some(known) = table.iter().copied().find(|known| **known == schema) {
        return Ok(known);
    }
    let (name, file) = (&schema.name, &schema.file);
    if let Some(other) = table.iter().find(|other| other.name == *name) {
        let message = format!(
            "hook {name:?} has another layout in {}, and one name has one layout in a process; \
             give it another name, or restart",
            other.file
        );
        return Err(SchemaError::new(file, message));
    }
    let clash = |s: &&&Schema| s.names_section(name) || schema.names_section(&s.name);
    if let Some(other) = table.iter().find(clash) {
        let message = format!(
            "hook {name:?} and hook {:?} of {} begin alike: a section could mean either; rename one",
            other.name, other.file
        );
        return Err(SchemaError::new(file, message));
    }
    if table.len() >= MAX_SCHEMAS {
        return Err(SchemaError::new(
            file,
            format!("there are {MAX_SCHEMAS} schemas in this process already"),
        ));
    }
    let known: &'static Schema = Box::leak(Box::new(schema));
    table.push(known);
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(name: &str, size: u32, file: &str) -> Schema {
        Schema::parse(&format!("name = \"{name}\"\nsize = {size}"), file).unwrap()
    }

    #[test]
    fn equal_schemas_are_one() {
        let mut table = Vec::new();
        let a = intern_in(&mut table, schema("ep/mode", 8, "a.toml")).unwrap();
        let again = intern_in(&mut table, schema("ep/mode", 8, "b.toml")).unwrap();
        assert!(std::ptr::eq(a, again));
        assert_eq!(again.file(), "a.toml");
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn one_name_has_one_layout_and_both_files_are_named() {
        let mut table = Vec::new();
        intern_in(&mut table, schema("ep/mode", 8, "a.toml")).unwrap();
        let e = intern_in(&mut table, schema("ep/mode", 16, "b.toml")).unwrap_err();
        assert_eq!(e.file(), "b.toml");
        assert!(e.message().contains("another layout in a.toml"), "{e}");
    }

    #[test]
    fn names_that_begin_alike_are_refused_either_way() {
        for (first, second) in [("ep", "ep/mode"), ("ep/mode", "ep")] {
            let mut table = Vec::new();
            intern_in(&mut table, schema(first, 8, "a.toml")).unwrap();
            let e = intern_in(&mut table, schema(second, 8, "b.toml")).unwrap_err();
            assert!(e.message().contains("begin alike"), "{e}");
        }
        let mut table = Vec::new();
        intern_in(&mut table, schema("ep", 8, "a.toml")).unwrap();
        intern_in(&mut table, schema("epoch", 8, "b.toml")).unwrap();
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Vec::new();
        for i in 0..MAX_SCHEMAS {
            intern_in(&mut table, schema(&format!("h{i}"), 8, "a.toml")).unwrap();
        }
        let e = intern_in(&mut table, schema("more", 8, "a.toml")).unwrap_err();
        assert!(e.message().contains("256 schemas"), "{e}");
        intern_in(&mut table, schema("h7", 8, "a.toml")).unwrap();
    }

    #[test]
    fn the_process_wide_table_finds_by_name_and_by_section() {
        let made = schema("intern-test/x", 8, "a.toml").intern().unwrap();
        assert!(std::ptr::eq(Schema::custom("intern-test/x").unwrap(), made));
        assert!(Schema::custom("intern-test").is_none());
        assert!(std::ptr::eq(Schema::custom_of_section("intern-test/x/y").unwrap(), made));
        assert!(Schema::custom_of_section("intern-test/xy").is_none());
        assert!(Schema::all_custom().contains(&made));
    }
}
