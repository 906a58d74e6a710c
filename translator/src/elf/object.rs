//! [`Object`]: a parsed eBPF object, and [`ProgramSpec`], an entry point in it.

use super::btf::{self, Btf};
use super::funcs::{FuncId, Functions};
use super::image::{Image, Place, Role, SymbolKind};
use super::lines::Lines;
use super::maps::MapTable;
use super::{c_str, printable, reloc};
use crate::error::{At, Error, ErrorKind, Stage};
use crate::map::MapDecl;
use crate::program::Program;
use std::fmt;

/// A parsed object: what a file offers, before any of it is linked. Inert: no instruction has been looked at.
#[derive(Clone)]
pub struct Object {
    pub(super) image: Image,
    pub(super) functions: Functions,
    pub(super) maps: MapTable,
    pub(super) lines: Lines,
    programs: Vec<ProgramSpec>,
    license: Option<String>,
    has_btf: bool,
}

/// An entry point: a global or weak function in a section other than `.text`.
#[derive(Clone, Debug)]
pub struct ProgramSpec {
    name: String,
    section: String,
    pub(super) function: FuncId,
}

impl ProgramSpec {
    /// Symbol name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// ELF section, as written.
    pub fn section(&self) -> &str {
        &self.section
    }
    /// The hook that the program asks for: its section's name. Several programs may share one.
    pub fn hook(&self) -> &str {
        &self.section
    }
}

impl Object {
    /// Reads an object of at most [`MAX_OBJECT_BYTES`](crate::limits::MAX_OBJECT_BYTES) bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotEbpf`] and [`ErrorKind::BigEndian`] for other files, [`ErrorKind::TooLarge`],
    /// [`ErrorKind::Malformed`] for tables, symbols or BTF that point outside the file or make no sense, and
    /// [`ErrorKind::Unsupported`] for encodings that no BPF compiler writes. What concerns a single program or
    /// map is reported by [`Object::program`] when it is asked for.
    pub fn parse(bytes: &[u8]) -> Result<Object, Error> {
        let image = Image::read(bytes)?;
        let functions = Functions::of(&image)?;
        let btf =
            image.section_named(btf::SECTION).map(|section| Btf::parse(image.data(section))).transpose()?;
        let maps = MapTable::of(&image, btf.as_ref());
        let lines = Lines::of(&image, btf.as_ref())?;
        let has_btf = btf.is_some();
        let programs = programs(&image, &functions);
        let license = image.section_named("license").and_then(|s| c_str(image.data(s), 0)).map(printable);
        Ok(Object { image, functions, maps, lines, programs, license, has_btf })
    }

    /// Entry points, in the order of the symbol table. May be empty.
    pub fn programs(&self) -> impl ExactSizeIterator<Item = &ProgramSpec> {
        self.programs.iter()
    }

    /// Maps that the object declares (not its global data), in the order of the file; for one that cannot be
    /// used, the error that a program that uses it will meet.
    pub fn maps(&self) -> impl Iterator<Item = Result<&MapDecl, &Error>> {
        self.maps.iter()
    }

    /// Text of the `license` section.
    pub fn license(&self) -> Option<&str> {
        self.license.as_deref()
    }

    /// Whether the object has BTF, hence types and usually lines.
    pub fn has_btf(&self) -> bool {
        self.has_btf
    }

    /// Links the entry point of that name: the function itself at pc 0, then every function that it reaches by
    /// calls or takes the address of, in the order of first use. [`Program::maps`] holds the maps and global
    /// data sections that this code refers to, and no others, in the order of first use in the linked code.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for an unknown program and for symbols that the object does not define,
    /// [`ErrorKind::Unsupported`] for relocations, map types and sections that we do not know, for addresses
    /// inside global data and for CO-RE, [`ErrorKind::BadMap`] for map definitions that make no sense,
    /// [`ErrorKind::TooLarge`] beyond [`limits`](crate::limits); and what [`Stage::Decode`] finds.
    pub fn program(&self, name: &str) -> Result<Program, Error> {
        match self.programs.iter().find(|p| p.name == name) {
            Some(spec) => reloc::link(self, spec),
            None => {
                let known: Vec<&str> = self.programs.iter().take(8).map(ProgramSpec::name).collect();
                let text = format!("no program {name:?}; the object has [{}]", known.join(", "));
                Err(Error::new(Stage::Link, ErrorKind::NotFound, At::File, text))
            }
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maps: Vec<_> = self.maps().collect();
        f.debug_struct("Object")
            .field("programs", &self.programs)
            .field("maps", &maps)
            .field("license", &self.license)
            .field("has_btf", &self.has_btf)
            .finish_non_exhaustive()
    }
}

fn programs(image: &Image, functions: &Functions) -> Vec<ProgramSpec> {
    // `.text.NAME` is what compilers make of `.text` with one section per function.
    let is_text = |name: &str| name == ".text" || name.starts_with(".text.");
    let entries =
        image.symbols.iter().filter(|s| s.global && matches!(s.kind, SymbolKind::Func | SymbolKind::None));
    let spec = |symbol: &super::image::Symbol| {
        let Place::Section(index) = symbol.place else { return None };
        let section = &image.sections[index];
        let function = functions.starting_at(index, symbol.value)?;
        (section.role == Role::Code && !is_text(&section.name)).then(|| ProgramSpec {
            name: image.symbol_name(symbol),
            section: section.name.clone(),
            function,
        })
    };
    entries.filter_map(spec).collect()
}
