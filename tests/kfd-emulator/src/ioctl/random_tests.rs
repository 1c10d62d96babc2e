//! Any ioctl with any argument leaves the driver standing.

use proptest::prelude::*;

use crate::abi::kfd::WaitEvents;
use crate::abi::{Command, drm, kfd};
use crate::state::{Domain, FileId, PAGE, WaitClient};

use super::testing::{Bench, PID};
use super::{Descriptor, Fields, run};

struct Nobody;

impl WaitClient for Nobody {
    fn write_age(&self, _index: usize, _age: u64) {}
    fn finish(self: Box<Self>, _result: Result<(), nix::errno::Errno>, _args: &WaitEvents) {}
}

/// Numbers that mean something more often than random ones do: handles, ids, sizes, addresses of
/// the fake caller's memory, and the ends of the number range.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0_u32..8,
        2 => Just(0x1000_u32),
        2 => Just(0x8a37_u32),
        1 => Just(u32::MAX),
        1 => Just(0x8000_0000_u32),
        1 => Just(0x2000_u32),
        1 => any::<u32>(),
    ]
}

/// On which file, which ioctl, with which argument.
fn call() -> impl Strategy<Value = (bool, u8, Vec<u32>)> {
    let numbers = prop_oneof![0_u8..0x30, 0x40_u8..0x52, 0x80_u8..0x82];
    (any::<bool>(), numbers, prop::collection::vec(word(), 0..30))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_sequence_of_ioctls(calls in prop::collection::vec(call(), 1..60)) {
        let mut bench = Bench::with("rx7900xtx", 1);
        bench.driver.options.dkms_ipc = true;
        bench.driver.options.preload = true;
        bench.caller.put(0x1000, &[1; 0x200]);
        let (block, _) = bench.driver.allocate(bench.gpu_id, Domain::Vram, PAGE, 0).unwrap();
        bench.caller.descriptors.insert(1, Descriptor::Dmabuf(block));
        for (on_kfd, number, words) in calls {
            let (file, kind) =
                if on_kfd { (bench.kfd, kfd::TYPE) } else { (bench.render, drm::TYPE) };
            let mut argument: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            let command = Command::new(3, kind, number, argument.len());
            let mut fields = Fields::default();
            run(
                &mut bench.driver,
                &bench.caller,
                file,
                command,
                &mut argument,
                &mut fields,
                || Box::new(Nobody),
            );
        }
        // Whatever happened, the end of the process returns everything but the dma-buf's memory.
        bench.driver.close(bench.kfd);
        bench.driver.close(bench.render);
        prop_assert!(bench.driver.process_of_pid(PID).is_none());
        prop_assert_eq!(bench.driver.devices[0].vram_used, PAGE);
        prop_assert_eq!(bench.driver.blocks.len(), 1);
        prop_assert_eq!(bench.driver.waits.iter().count(), 0);
        bench.driver.close(FileId(0));
    }
}
