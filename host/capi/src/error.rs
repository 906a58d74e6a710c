//! [`Failure`]: a result code with its text, on the way to the caller's `rf_error`.

use crate::table::*;
use ringfence_host::LoadError;
use ringfence_host::client::ClientError;
use ringfence_host::maps::Errno;
use ringfence_host::schema::SchemaError;

/// Why a call did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

/// What a call came to.
pub(crate) type Outcome = Result<i32, Failure>;

impl Failure {
    #[cold]
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn argument(text: &str) -> Failure {
        Failure::new(RF_ERR_ARGUMENT, text)
    }

    /// A set that was refused is no error: the host is open, and takes a corrected one.
    pub(crate) fn refused(error: &LoadError) -> Failure {
        Failure::new(RF_REFUSED, error.to_string())
    }
}

impl From<SchemaError> for Failure {
    fn from(error: SchemaError) -> Failure {
        Failure::new(RF_ERR_SCHEMA, error.to_string())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let code = match error {
            ClientError::UnknownHook(_) => RF_ERR_SCHEMA,
            ClientError::Size { .. } => RF_ERR_SIZE,
            _ => RF_ERR_LIMIT,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        let code = if error == Errno::NOENT { RF_ERR_NOT_FOUND } else { RF_ERR_MAP };
        Failure::new(code, format!("the map says {}", error.name()))
    }
}

/// A text as C has it: cut at a character's end so that it fits with its NUL. What is in it of NULs becomes spaces.
pub(crate) fn c_text(text: &str) -> [std::ffi::c_char; RF_ERROR_TEXT] {
    let mut end = text.len().min(RF_ERROR_TEXT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = [0; RF_ERROR_TEXT];
    for (to, byte) in out.iter_mut().zip(text[..end].bytes()) {
        *to = if byte == 0 { b' ' } else { byte } as std::ffi::c_char;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_end_in_a_nul() {
        let bytes = |t: &str| c_text(t).map(|c| c as u8);
        assert_eq!(&bytes("a\0b")[..4], b"a b\0");
        let long = "é".repeat(RF_ERROR_TEXT);
        let cut = bytes(&long);
        assert_eq!(cut[RF_ERROR_TEXT - 1], 0);
        let end = cut.iter().position(|b| *b == 0).unwrap();
        assert_eq!(end, 502, "the last character that fits whole");
        assert!(std::str::from_utf8(&cut[..end]).is_ok());
    }
}
