//! One test for each generation of HIP.

/// Makes a test of each named function for each generation: `reports_the_limit::hip_6_4` and so
/// on. The function gets the beginning of the version, and the runner can leave a generation out
/// by the test's name when its runtime cannot be had.
#[macro_export]
macro_rules! on_each_runtime {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn hip_5_2() -> anyhow::Result<()> { super::$name("5.2") }
            #[test]
            fn hip_5_7() -> anyhow::Result<()> { super::$name("5.7") }
            #[test]
            fn hip_6_4() -> anyhow::Result<()> { super::$name("6.4") }
            #[test]
            fn hip_7_2() -> anyhow::Result<()> { super::$name("7.2") }
        }
    )+ };
}
