//! The limit: which text holds, whether it can be understood, and whether it fits this machine.

use std::ffi::OsStr;

use hipflex_kfd::Topology;
use hipflex_ledger::{GpuKey, GpuSpec, Limit, LimitSpec, size};

use crate::environment::{Environment, MEMORY_LIMIT};
use crate::failure::Failure;

/// A limit that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// As it will be handed to the program in `FH_MEMORY_LIMIT`.
    pub(crate) text: String,
    /// Where it came from, for messages.
    origin: &'static str,
    spec: LimitSpec,
}

/// The limit of the flag, else of the environment; `None`: there is none. There is no default: a limit nobody chose
/// would either refuse too much or nothing.
pub(crate) fn choose(
    flag: Option<&OsStr>,
    environment: &Environment,
) -> Result<Option<Wanted>, Failure> {
    let (text, origin) = match (flag, environment.get(MEMORY_LIMIT)) {
        (Some(text), _) => (text, "--memory"),
        (None, Some(text)) => (text, MEMORY_LIMIT),
        (None, None) => return Ok(None),
    };
    let text = text.to_string_lossy().into_owned();
    match LimitSpec::parse(&text) {
        Ok(spec) => Ok(Some(Wanted { text, origin, spec })),
        Err(error) => Err(Failure::refused(format!("{origin}: {error}"), "")),
    }
}

/// That nothing is limited.
pub(crate) fn none() -> Failure {
    Failure::refused(
        "no limit was given",
        format!(
            "use --memory SIZE (such as 4GiB, 50% or unlimited) or set {MEMORY_LIMIT}, or use --cus RANGE for a limit on \
             compute units alone"
        ),
    )
}

impl Wanted {
    /// The limit of each GPU that HIP will see, as the program's own process will bring them to the
    /// ledger.
    pub(crate) fn on(&self, topology: &Topology) -> Result<Vec<GpuSpec>, Failure> {
        let seen = topology.gpus.iter().filter(|gpu| gpu.render_node_present);
        let gpus = seen.map(|gpu| {
            let key = GpuKey(gpu.bdf.to_u64());
            (key, gpu.bdf.to_string(), gpu.vram_bytes.unwrap_or(0))
        });
        self.spec
            .on(gpus)
            .map_err(|error| Failure::refused(format!("{}: {error}", self.origin), ""))
    }
}

/// A limit above the size of the board: it is meant, perhaps, but it limits nothing.
pub(crate) fn above_the_board(specs: &[GpuSpec]) -> Option<String> {
    let above = specs.iter().find_map(|spec| match spec.limit {
        Limit::Bytes(bytes) if spec.board_bytes > 0 && bytes > spec.board_bytes => {
            Some((spec, bytes))
        }
        _ => None,
    });
    above.map(|(spec, bytes)| {
        format!(
            "the limit of {} is above the {} of GPU {}: the board's size holds there",
            size::Display(bytes),
            size::Display(spec.board_bytes),
            spec.key
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::gpus::tests::machine;
    use hipflex_kfd::Root;

    const GIB: u64 = 1 << 30;

    fn wanted(text: &str) -> Result<Wanted, Failure> {
        choose(Some(OsStr::new(text)), &Environment::default()).map(Option::unwrap)
    }

    #[test]
    fn the_flag_comes_before_the_variable() {
        let set = Environment::from([(MEMORY_LIMIT, "1GiB")]);
        let text = |chosen: Result<Option<Wanted>, Failure>| chosen.unwrap().unwrap().text;
        assert_eq!(text(choose(Some(OsStr::new("2GiB")), &set)), "2GiB");
        assert_eq!(text(choose(None, &set)), "1GiB");
        assert_eq!(choose(None, &Environment::default()), Ok(None));
        let none = none().to_string();
        assert!(
            none.contains("--memory SIZE") && none.contains(MEMORY_LIMIT),
            "{none}"
        );
    }

    #[test]
    fn messages_name_the_origin_and_the_value() {
        for text in ["banana", "0", "-1", "1Gi x", "1GiX", "99999999999T"] {
            let message = wanted(text).unwrap_err().to_string();
            assert!(
                message.starts_with("--memory: ") && message.contains(text),
                "{message}"
            );
            let set = Environment::from([(MEMORY_LIMIT, text)]);
            let message = choose(None, &set).unwrap_err().to_string();
            assert!(
                message.starts_with("FH_MEMORY_LIMIT: ") && message.contains(text),
                "{message}"
            );
        }
    }

    #[test]
    fn messages() {
        let texts = [
            "",
            "banana",
            "0",
            "-1",
            "1Gi x",
            "1GiX",
            "99999999999T",
            "0%",
            "0000:03:00.0=x",
            "a\nb",
        ];
        let told = texts
            .map(|text| wanted(text).unwrap_err().to_string())
            .join("\n");
        let none = none();
        insta::assert_snapshot!(format!("{told}\n{none}"));
    }

    fn on(text: &str) -> Result<Vec<Limit>, Failure> {
        let machine = machine(2);
        let topology = Topology::read(&Root::at(machine.path())).unwrap();
        let specs = wanted(text)?.on(&topology)?;
        assert_eq!(specs.len(), 2);
        assert_eq!(specs[1].key, GpuKey(0x400));
        assert_eq!(specs[1].board_bytes, 64 * GIB);
        Ok(specs.iter().map(|spec| spec.limit).collect())
    }

    #[test]
    fn limits_are_resolved_for_each_gpu() {
        assert_eq!(on("4GiB").unwrap(), [Limit::Bytes(4 * GIB); 2]);
        assert_eq!(on("50%").unwrap(), [Limit::Bytes(32 * GIB); 2]);
        assert_eq!(on("unlimited").unwrap(), [Limit::Unlimited; 2]);
        let each = on("0000:03:00.0=8GiB,*=1GiB").unwrap();
        assert_eq!(each, [Limit::Bytes(8 * GIB), Limit::Bytes(GIB)]);
    }

    #[test]
    fn the_account_and_the_driver_write_and_read_addresses_alike() {
        use hipflex_kfd::Bdf;
        for (domain, location) in [
            (0, 0x300),
            (1, 0x83_19),
            (0, 0x2000_0300),
            (0xffff_ffff, 0xf000_ffff),
        ] {
            let bdf = Bdf::from_kfd(domain, location);
            let key = GpuKey(bdf.to_u64());
            assert_eq!(key.to_string(), bdf.to_string());
            assert_eq!(GpuKey::parse(&bdf.to_string()), Some(key));
        }
        for text in [
            "0000:03:00.0",
            "03:00.0",
            "3:0.0",
            "0:3:0.0",
            "C3:1F.7/15",
            "03:00.0/2",
            "03:00.0/02",
            "00000001:03:00.0",
            "",
            "03:00",
            "03.0",
            "03:20.0",
            "03:00.8",
            "103:00.0",
            "100000000:03:00.0",
            "+3:00.0",
            "03:00.0/16",
            "03:00.0/",
            "03:00.0 ",
            "0:0:0:0.0",
        ] {
            let driver = text.parse::<Bdf>().ok().map(Bdf::to_u64);
            let account = GpuKey::parse(text).map(|key| key.0);
            assert_eq!(account, driver, "{text:?}");
        }
    }

    #[test]
    fn gpus_without_a_render_node_need_no_limit() {
        let machine = machine(2);
        let root = Root::at(machine.path());
        std::fs::remove_file(root.render_node(129)).unwrap();
        let topology = Topology::read(&root).unwrap();
        let specs = wanted("0000:03:00.0=8GiB").unwrap().on(&topology).unwrap();
        assert_eq!(
            specs.iter().map(|spec| spec.key).collect::<Vec<_>>(),
            [GpuKey(0x300)]
        );
    }

    #[test]
    fn gpus_that_are_not_there_or_left_out_are_told() {
        let message = on("0000:99:00.0=8GiB,*=1GiB").unwrap_err().to_string();
        assert!(
            message.contains("0000:99:00.0") && message.contains("0000:04:00.0"),
            "{message}"
        );
        let message = on("0000:03:00.0=8GiB").unwrap_err().to_string();
        assert!(message.contains("0000:04:00.0"), "{message}");
    }

    #[test]
    fn a_limit_above_the_board_is_told() {
        let spec = |limit, board_bytes| GpuSpec {
            key: GpuKey(0x300),
            limit,
            board_bytes,
        };
        assert_eq!(
            above_the_board(&[spec(Limit::Bytes(64 * GIB), 64 * GIB)]),
            None
        );
        assert_eq!(above_the_board(&[spec(Limit::Unlimited, 64 * GIB)]), None);
        assert_eq!(
            above_the_board(&[spec(Limit::Bytes(GIB), 0)]),
            None,
            "size unknown"
        );
        let text = above_the_board(&[spec(Limit::Bytes(128 * GIB), 64 * GIB)]).unwrap();
        assert_eq!(
            text,
            "the limit of 128.0 GiB is above the 64.0 GiB of GPU 0000:03:00.0: the board's size holds there"
        );
    }
}
