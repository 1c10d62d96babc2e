//! Medians, and how far to trust them.

/// What many rounds gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    /// The value in the middle.
    pub(super) median: f64,
    /// Half of the range that the middle half lies in.
    pub(super) noise: f64,
}

/// `None`: there was no round.
pub(super) fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |quarter: usize| values[last * quarter / 4];
    Some(Summary {
        median: at(2),
        noise: (at(3) - at(1)) / 2.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_change_nothing() {
        let noise = 1.0;
        let expected = Summary { median: 3.0, noise };
        assert_eq!(summary([900.0, 2.0, 3.0, 4.0, 1.0]), Some(expected));
        assert_eq!(summary([]), None);
    }
}
