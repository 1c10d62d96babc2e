use super::*;
use crate::status::samples;
use unicode_width::UnicodeWidthStr;

fn all(status: &Status) -> String {
    format!(
        "{}---- messages\n{}\n",
        render(status),
        messages(status).join("\n")
    )
}

#[test]
fn views() {
    insta::assert_snapshot!("empty", all(&samples::empty()));
    insta::assert_snapshot!("busy", all(&samples::busy()));
    insta::assert_snapshot!("several", all(&samples::several()));
    insta::assert_snapshot!("idle", all(&samples::idle()));
}

#[test]
fn nothing_to_show_is_told_by_who_asks() {
    let asked = |sees_all, only: Option<&str>| {
        render(&Status {
            sees_all,
            only: only.map(str::to_owned),
            ..samples::idle()
        })
    };
    insta::assert_snapshot!(
        "no_budget",
        [
            asked(true, Some("team")),
            asked(false, Some("team")),
            asked(true, None),
            asked(false, None),
        ]
        .join("----\n")
    );
}

#[test]
fn overhead_has_a_column_only_where_it_is_measured() {
    let mut status = samples::busy();
    assert!(render(&status).contains("OVERHEAD"));
    for account in &mut status.budgets[0].gpus {
        account.overhead = None;
    }
    assert!(!render(&status).contains("OVERHEAD"));
}

#[test]
fn ordinary_figures_fit_80_columns() {
    for status in [samples::busy(), samples::several(), samples::idle()] {
        for line in render(&status).lines() {
            assert!(line.width() <= 80, "{} columns: {line}", line.width());
        }
    }
}

#[test]
fn nothing_moves_the_cursor() {
    let text = all(&samples::several());
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
}

#[test]
fn ages_have_their_two_largest_units() {
    for (seconds, text) in [
        (0, "0s"),
        (59, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (86_400 * 400 + 3600 * 23, "400d23h"),
    ] {
        assert_eq!(age(1_000, 1_000 + seconds), text);
    }
    assert_eq!(age(1_000, 900), "0s", "a clock that was set back");
    assert_eq!(age(0, u64::MAX), "213503982334601d07h");
}
