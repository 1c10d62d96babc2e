//! The driver's `properties` files: one `name value` pair a line.

use std::path::{Path, PathBuf};

use crate::error::ReadError;
use crate::root::{parse_number, read_text};

/// The content of one `properties` file.
///
/// Names that this crate does not ask for may have any value, or none: drivers add properties.
pub(crate) struct Properties {
    path: PathBuf,
    text: String,
}

impl Properties {
    /// Reads the file, without interpreting it yet.
    pub(crate) fn read(path: &Path) -> Result<Self, ReadError> {
        Ok(Self {
            path: path.to_owned(),
            text: read_text(path)?,
        })
    }

    /// The value of `name`, or `None` when the file does not have it.
    pub(crate) fn u64(&self, name: &'static str) -> Result<Option<u64>, ReadError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        parse_number(text)
            .map(Some)
            .ok_or_else(|| self.not_a_number(name, text))
    }

    /// As [`Properties::u64`], for properties of 32 bits; a larger number is an error.
    pub(crate) fn u32(&self, name: &'static str) -> Result<Option<u32>, ReadError> {
        let Some(value) = self.u64(name)? else {
            return Ok(None);
        };
        match u32::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.not_a_number(name, self.text(name).unwrap_or_default())),
        }
    }

    /// The value of `name`, which must be there.
    pub(crate) fn required_u32(&self, name: &'static str) -> Result<u32, ReadError> {
        self.u32(name)?.ok_or_else(|| ReadError::Missing {
            path: self.path.clone(),
            property: name,
        })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| {
            let (key, value) = line.split_once(char::is_whitespace)?;
            (key == name).then(|| value.trim())
        })
    }

    fn not_a_number(&self, name: &'static str, text: &str) -> ReadError {
        let (what, text) = (format!("property {name}"), text.to_owned());
        ReadError::NotANumber {
            path: self.path.clone(),
            what,
            text,
        }
    }
}
