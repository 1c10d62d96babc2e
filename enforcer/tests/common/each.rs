//! One test for each build of the stand-in runtime.

/// Makes a test of each named function for each build: `what_is_freed_can_be_had_again::six` and so on.
/// The function gets the build.
#[allow(
    unused_macros,
    reason = "not every test file has tests that need a runtime"
)]
macro_rules! on_each_standin {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            use hip_standin::Build;

            #[test]
            fn five() { super::$name(Build::Five); }
            #[test]
            fn five_plain() { super::$name(Build::FivePlain); }
            #[test]
            fn six() { super::$name(Build::Six); }
            #[test]
            fn six_registering() { super::$name(Build::SixRegistering); }
            #[test]
            fn seven() { super::$name(Build::Seven); }
        }
    )+ };
}
pub(crate) use on_each_standin;
