//! The rows of the enforcer's table of hooks.

use anyhow::{Context, Result, ensure};

/// A hooked function.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) name: String,
    /// What it does to the account: `allocates`, `frees` and so on.
    pub(super) kind: String,
}

/// Reads the table's source. The grammar of a row is told there; its documentation does not count.
pub(super) fn read(source: &str) -> Result<Vec<Hook>> {
    let (_, rows) = source
        .split_once("define_hooks! {")
        .context("there is no table of hooks")?;
    let lines = rows.lines().map(str::trim);
    let code: Vec<_> = lines.filter(|line| !line.starts_with("//")).collect();
    let code = code.join(" ");
    let mut hooks = Vec::new();
    for row in code.split(';') {
        let Some((before, after)) = row.split_once("=>") else {
            continue;
        };
        let word = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_')
                .find(|word| !word.is_empty())
                .map(str::to_string)
        };
        hooks.push(Hook {
            name: word(before).with_context(|| format!("a row without a name: {row}"))?,
            kind: word(after).with_context(|| format!("a row without a kind: {row}"))?,
        });
    }
    ensure!(!hooks.is_empty(), "the table of hooks has no row");
    Ok(hooks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_stand() {
        let source = "use x; define_hooks! {\n    // Some\n    /// `hipError_t hipB(int a);` => that\n    hipA (a: *mut T)\n        => allocates { memory a, b(c) }, slot 3;\n    hipB_v2 () => resets {}, slot none;\n}\n";
        let hook = |name: &str, kind: &str| Hook {
            name: name.into(),
            kind: kind.into(),
        };
        assert_eq!(
            read(source).unwrap(),
            [hook("hipA", "allocates"), hook("hipB_v2", "resets")]
        );
        assert!(read("nothing").is_err());
        assert!(read("define_hooks! { }").is_err());
    }
}
