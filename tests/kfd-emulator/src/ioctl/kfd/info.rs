//! Version, clocks, apertures, and the settings that the emulator only accepts.

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use zerocopy::IntoBytes;

use crate::abi::kfd::{
    AcquireVm, AvailableMemory, ClockCounters, GetProcessAperturesNew, GetTileConfig, GetVersion,
    ProcessApertures, RuntimeEnable, SetMemoryPolicy, SetScratchBackingVa, SetTrapHandler,
    SetXnackMode,
};
use crate::ioctl::Descriptor;

use super::Call;

/// Ticks of the GPU's clock per second: 100 MHz.
const GPU_CLOCK: u64 = 100_000_000;
const NANOSECONDS: u64 = 1_000_000_000;

/// Apertures as `kfd_init_apertures_v9` of kfd_flat_memory.c sets them.
const LDS_BASE: u64 = 1 << 48;
const SCRATCH_BASE: u64 = 2 << 48;
const APERTURE_SIZE: u64 = 1 << 32;
const GPUVM_BASE: u64 = 0x4000;
const GPUVM_LIMIT: u64 = (1 << 47) - 1;

fn clock(id: ClockId) -> u64 {
    // Both clocks exist on every kernel that this runs on; 0 would only stop time.
    let time = clock_gettime(id).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    (time.tv_sec() as u64)
        .wrapping_mul(NANOSECONDS)
        .wrapping_add(time.tv_nsec() as u64)
}

/// The GPU's clock: ticks of 10 ns.
pub fn gpu_ticks() -> u64 {
    clock(ClockId::CLOCK_MONOTONIC_RAW) / (NANOSECONDS / GPU_CLOCK)
}

impl Call<'_> {
    pub(super) fn get_version(&mut self, args: &mut GetVersion) -> Result<(), Errno> {
        *args = GetVersion {
            major: 1,
            minor: self.driver.options.kfd_minor,
        };
        self.fields.set("minor", args.minor);
        Ok(())
    }

    pub(super) fn get_clock_counters(&mut self, args: &mut ClockCounters) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        args.gpu_clock = gpu_ticks();
        args.cpu_clock = clock(ClockId::CLOCK_MONOTONIC_RAW);
        args.system_clock = clock(ClockId::CLOCK_BOOTTIME);
        args.system_clock_frequency = NANOSECONDS;
        Ok(())
    }

    pub(super) fn get_apertures(&mut self, args: &mut GetProcessAperturesNew) -> Result<(), Errno> {
        let gpus = &self.driver.devices;
        let count = u32::try_from(gpus.len()).map_err(|_| Errno::EINVAL)?;
        self.fields.set("room", args.nodes);
        if args.nodes == 0 {
            args.nodes = count;
            return Ok(());
        }
        let apertures: Vec<ProcessApertures> = gpus
            .iter()
            .take(args.nodes as usize)
            .map(|device| ProcessApertures {
                lds_base: LDS_BASE,
                lds_limit: LDS_BASE + APERTURE_SIZE - 1,
                scratch_base: SCRATCH_BASE,
                scratch_limit: SCRATCH_BASE + APERTURE_SIZE - 1,
                gpuvm_base: GPUVM_BASE,
                gpuvm_limit: GPUVM_LIMIT,
                gpu_id: device.gpu.gpu_id,
                pad: 0,
            })
            .collect();
        self.caller
            .write(args.apertures_pointer, apertures.as_bytes())?;
        args.nodes = args.nodes.min(count);
        Ok(())
    }

    pub(super) fn acquire_vm(&mut self, args: &mut AcquireVm) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        self.check_gpu(args.gpu_id)?;
        // Any GPU's render node will do: libdrm tells devices apart by their device numbers, which
        // files of a FUSE tree do not have, so it hands out the first one's descriptor for all.
        let Descriptor::Render(_) = self.caller.descriptor(args.drm_fd) else {
            return Err(Errno::EINVAL);
        };
        self.process()?.acquired.insert(args.gpu_id);
        Ok(())
    }

    pub(super) fn set_memory_policy(&mut self, args: &mut SetMemoryPolicy) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        if args.default_policy > 1 || args.alternate_policy > 1 {
            return Err(Errno::EINVAL);
        }
        self.check_gpu(args.gpu_id)
    }

    pub(super) fn set_scratch_backing(
        &mut self,
        args: &mut SetScratchBackingVa,
    ) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        self.fields.hex("va", args.va);
        self.check_gpu(args.gpu_id)
    }

    pub(super) fn get_tile_config(&mut self, args: &mut GetTileConfig) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        self.check_gpu(args.gpu_id)?;
        args.tile_configs = 0;
        args.macro_tile_configs = 0;
        args.gb_addr_config = 0;
        Ok(())
    }

    pub(super) fn set_trap_handler(&mut self, args: &mut SetTrapHandler) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        self.check_gpu(args.gpu_id)
    }

    pub(super) fn available_memory(&mut self, args: &mut AvailableMemory) -> Result<(), Errno> {
        let device = self.driver.device(args.gpu_id).ok_or(Errno::EINVAL)?;
        args.available = device.available();
        self.fields.hex("gpu_id", args.gpu_id);
        self.fields.set("available", args.available);
        Ok(())
    }

    pub(super) fn set_xnack_mode(&mut self, args: &mut SetXnackMode) -> Result<(), Errno> {
        self.fields.set("xnack", args.xnack_enabled);
        if args.xnack_enabled > 0 {
            return Err(Errno::EPERM);
        }
        args.xnack_enabled = 0;
        Ok(())
    }

    pub(super) fn runtime_enable(&mut self, args: &mut RuntimeEnable) -> Result<(), Errno> {
        self.fields.set("mode", args.mode);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::kfd::number;
    use crate::ioctl::testing::Bench;
    use crate::state::testing::VRAM;

    #[test]
    fn the_version_can_be_chosen_and_decides_what_exists() {
        let mut bench = Bench::new();
        let mut version = GetVersion::default();
        bench.kfd(number::GET_VERSION, &mut version).unwrap();
        assert_eq!((version.major, version.minor), (1, 17));
        let mut available = AvailableMemory {
            gpu_id: bench.gpu_id,
            ..Default::default()
        };
        bench.driver.options.kfd_minor = 8;
        let result = bench.kfd(number::AVAILABLE_MEMORY, &mut available);
        assert_eq!(result, Err(Errno::ENOTTY), "it came with 1.9");
        bench.driver.options.kfd_minor = 9;
        bench.kfd(number::AVAILABLE_MEMORY, &mut available).unwrap();
        assert_eq!(available.available, VRAM);
    }

    #[test]
    fn apertures_first_their_count_then_themselves() {
        let mut bench = Bench::with("mi210", 2);
        let mut args = GetProcessAperturesNew::default();
        bench
            .kfd(number::GET_PROCESS_APERTURES_NEW, &mut args)
            .unwrap();
        assert_eq!(args.nodes, 2);
        args.apertures_pointer = bench.caller.put(0x1000, &[0; 3 * 56]);
        args.nodes = 3;
        bench
            .kfd(number::GET_PROCESS_APERTURES_NEW, &mut args)
            .unwrap();
        assert_eq!(args.nodes, 2);
        let second: ProcessApertures = bench.caller.get(0x1000 + 56);
        assert_eq!(second.gpu_id, bench.driver.devices[1].gpu.gpu_id);
        args.apertures_pointer = 0x9000;
        let result = bench.kfd(number::GET_PROCESS_APERTURES_NEW, &mut args);
        assert_eq!(result, Err(Errno::EFAULT));
    }

    #[test]
    fn a_vm_comes_from_a_render_node() {
        let mut bench = Bench::new();
        bench
            .driver
            .process(crate::state::ProcessKey(1))
            .unwrap()
            .acquired
            .clear();
        let mut args = AcquireVm {
            drm_fd: 5,
            gpu_id: bench.gpu_id,
        };
        assert_eq!(
            bench.kfd(number::ACQUIRE_VM, &mut args),
            Err(Errno::EINVAL),
            "not open"
        );
        bench.caller.descriptors.insert(5, Descriptor::Other);
        assert_eq!(
            bench.kfd(number::ACQUIRE_VM, &mut args),
            Err(Errno::EINVAL),
            "no such node"
        );
        for minor in [128, 129] {
            bench
                .caller
                .descriptors
                .insert(5, Descriptor::Render(minor));
            assert_eq!(bench.kfd(number::ACQUIRE_VM, &mut args), Ok(()));
        }
    }

    #[test]
    fn clocks_advance_and_xnack_stays_off() {
        let mut bench = Bench::new();
        let (mut first, mut second) = (ClockCounters::default(), ClockCounters::default());
        bench.kfd(number::GET_CLOCK_COUNTERS, &mut first).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        bench.kfd(number::GET_CLOCK_COUNTERS, &mut second).unwrap();
        assert!(second.gpu_clock > first.gpu_clock && second.cpu_clock > first.cpu_clock);
        let mut xnack = SetXnackMode { xnack_enabled: 1 };
        assert_eq!(
            bench.kfd(number::SET_XNACK_MODE, &mut xnack),
            Err(Errno::EPERM)
        );
        xnack.xnack_enabled = -1;
        bench.kfd(number::SET_XNACK_MODE, &mut xnack).unwrap();
        assert_eq!(xnack.xnack_enabled, 0);
    }

    #[test]
    fn settings_name_a_gpu_that_exists() {
        let mut bench = Bench::new();
        let mut trap = SetTrapHandler {
            gpu_id: 1,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::SET_TRAP_HANDLER, &mut trap),
            Err(Errno::EINVAL)
        );
        trap.gpu_id = bench.gpu_id;
        assert_eq!(bench.kfd(number::SET_TRAP_HANDLER, &mut trap), Ok(()));
        let mut policy = SetMemoryPolicy {
            gpu_id: bench.gpu_id,
            default_policy: 2,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::SET_MEMORY_POLICY, &mut policy),
            Err(Errno::EINVAL)
        );
    }
}
