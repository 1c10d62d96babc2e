//! The list of mutations: what it says, and that it is true of this tree.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;
use serde::Deserialize;

/// Where the list is.
pub(crate) const FILE: &str = "tests/mutations.toml";

/// The whole list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    #[serde(rename = "mutation")]
    pub(crate) mutations: Vec<Mutation>,
    /// Lines or tests of the page for which no mutation is made.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test looks at it"))]
    #[serde(default, rename = "without")]
    pub(crate) without: Vec<Without>,
}

/// A mechanism that is removed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    pub(crate) name: String,
    /// The lines of docs/known-failures.md that it is about, by their first cells.
    pub(crate) lines: Vec<String>,
    /// How it is removed.
    #[serde(rename = "edit")]
    pub(crate) edits: Vec<Edit>,
    /// The tests that must fail then: all of them.
    pub(crate) caught_by: Vec<Test>,
}

/// A change of one text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    pub(crate) file: String,
    /// What is there exactly once.
    pub(crate) find: String,
    pub(crate) replace: String,
}

/// What is not shown by a mutation.
#[cfg_attr(not(test), allow(dead_code, reason = "a test looks at it"))]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Without {
    /// The first cell of a line of the page.
    #[serde(default)]
    pub(crate) line: Option<String>,
    #[serde(default)]
    pub(crate) tests: Vec<Test>,
    pub(crate) reason: String,
}

/// A test as the page names it: its file, a blank, its function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Test {
    pub(crate) file: String,
    pub(crate) name: String,
}

impl TryFrom<String> for Test {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(' ') {
            Some((file, name)) if file.ends_with(".rs") => Ok(Self {
                file: file.into(),
                name: name.into(),
            }),
            _ => Err(format!("'{text}' is not FILE.rs NAME")),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file, self.name)
    }
}

impl Edit {
    /// The text of the file with this change, or why it cannot be made.
    pub(crate) fn applied(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.find).count();
        ensure!(
            found == 1,
            "{} has this {found} times, and not once:\n{}",
            self.file,
            self.find
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// Reads the list of this tree.
pub(crate) fn read() -> Result<List> {
    let text = read_file(FILE)?;
    toml::from_str(&text).with_context(|| format!("{FILE} cannot be understood"))
}

fn read_file(name: impl AsRef<Path>) -> Result<String> {
    let path = paths::workspace().join(name);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = "docs/known-failures.md";

    /// The lines of the page: first cells, and the tests.
    fn page() -> Result<Vec<(String, Vec<Test>)>> {
        let rows = read_file(PAGE)?;
        let rows = rows
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| what |"));
        let rows = rows.map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
            let [what, _, tests] = cells[..] else {
                panic!("{row}")
            };
            let mut file = String::new();
            let mut named = Vec::new();
            for name in tests.split('`').skip(1).step_by(2) {
                if name.contains('/') {
                    file = name.into();
                } else {
                    named.push(Test {
                        file: file.clone(),
                        name: name.into(),
                    });
                }
            }
            (what.trim().to_owned(), named)
        });
        Ok(rows.collect())
    }

    #[test]
    fn every_mutation_can_be_made() -> Result<()> {
        let list = read()?;
        let mut names = BTreeSet::new();
        for mutation in &list.mutations {
            ensure!(names.insert(&mutation.name), "{} twice", mutation.name);
            ensure!(!mutation.caught_by.is_empty(), "{}", mutation.name);
            for edit in &mutation.edits {
                edit.applied(&read_file(&edit.file)?)
                    .with_context(|| format!("mutation '{}'", mutation.name))?;
            }
        }
        Ok(())
    }

    #[test]
    fn every_line_of_the_page_is_shown_or_has_a_reason_why_not() -> Result<()> {
        let (list, page) = (read()?, page()?);
        ensure!(page.len() >= 20, "{} lines: is that the page?", page.len());
        for (line, _) in &page {
            let mutated = list.mutations.iter().any(|one| one.lines.contains(line));
            let excused = list
                .without
                .iter()
                .any(|one| one.line.as_ref() == Some(line));
            ensure!(
                mutated || excused,
                "nothing is removed for this line: {line}"
            );
            ensure!(
                !(mutated && excused),
                "there is a mutation for this line: {line}"
            );
        }
        let lines = list.mutations.iter().flat_map(|one| &one.lines);
        for line in lines.chain(list.without.iter().filter_map(|one| one.line.as_ref())) {
            let known = page.iter().any(|(known, _)| known == line);
            ensure!(known, "{FILE} names a line that is not in {PAGE}: {line}");
        }
        Ok(())
    }

    #[test]
    fn every_test_of_the_page_fails_by_a_mutation_or_has_a_reason_why_not() -> Result<()> {
        let (list, page) = (read()?, page()?);
        let shown: BTreeSet<_> = list
            .mutations
            .into_iter()
            .flat_map(|one| one.caught_by)
            .collect();
        let mut excused = BTreeSet::new();
        for one in list.without {
            ensure!(
                !one.reason.trim().is_empty(),
                "no reason for {:?}",
                one.tests
            );
            excused.extend(one.tests);
        }
        for (line, tests) in &page {
            for test in tests {
                let listed = shown.contains(test) || excused.contains(test);
                ensure!(listed, "no mutation is caught by {test}: {line}");
            }
        }
        for test in shown.iter().chain(&excused) {
            let named = page.iter().any(|(_, tests)| tests.contains(test));
            ensure!(named, "{PAGE} does not name {test}");
        }
        let both: Vec<_> = shown.intersection(&excused).collect();
        ensure!(both.is_empty(), "a mutation is caught by these: {both:?}");
        Ok(())
    }
}
