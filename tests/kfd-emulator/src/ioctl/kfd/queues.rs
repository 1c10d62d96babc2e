//! Queues: CREATE, DESTROY, UPDATE, SET_CU_MASK.

use nix::errno::Errno;

use crate::abi::kfd::{
    AllocQueueGws, CreateQueue, DestroyQueue, QUEUE_TYPE_SDMA_BY_ENGINE, SetCuMask, UpdateQueue,
};
use crate::ioctl::read_array;
use crate::state::queue::{MIN_RING, Queue, check_properties, free_id, is_paired};

use super::Call;

/// Longest CU mask; bits past it are dropped (`kfd_ioctl_set_cu_mask`).
const MAX_MASK_BITS: u32 = 1024;
const DOORBELL_BYTES: u64 = 8;

impl Call<'_> {
    pub(super) fn create_queue(&mut self, args: &mut CreateQueue) -> Result<(), Errno> {
        self.fields.hex("gpu_id", args.gpu_id);
        self.fields.set("type", args.queue_type);
        self.fields.set("ring_size", args.ring_size);
        check_properties(args.ring_size, args.queue_percentage, args.queue_priority)?;
        if args.queue_type > QUEUE_TYPE_SDMA_BY_ENGINE {
            return Err(Errno::EINVAL);
        }
        self.check_vm(args.gpu_id)?;
        let devices = &self.driver.devices;
        let gpus = devices.len();
        let index = devices
            .iter()
            .position(|d| d.gpu.gpu_id == args.gpu_id)
            .unwrap_or(0);
        self.driver.queues_serial += 1;
        let serial = self.driver.queues_serial;
        let process = self.process()?;
        let id = free_id(&process.queues).ok_or(Errno::ENOMEM)?;
        let doorbell = process.doorbell_page(index, gpus) + u64::from(id) * DOORBELL_BYTES;
        let queue = Queue {
            serial,
            kind: args.queue_type,
            gpu_id: args.gpu_id,
            ring_base: args.ring_base_address,
            ring_bytes: u64::from(args.ring_size.max(MIN_RING)),
            read_pointer: args.read_pointer_address,
            doorbell,
            percentage: args.queue_percentage & 0xff,
            priority: args.queue_priority,
            cu_mask: Vec::new(),
        };
        process.queues.insert(id, queue);
        self.driver.reset_doorbell(doorbell);
        args.queue_id = id;
        args.doorbell_offset = doorbell;
        self.fields.set("queue_id", id);
        Ok(())
    }

    pub(super) fn destroy_queue(&mut self, args: &mut DestroyQueue) -> Result<(), Errno> {
        self.fields.set("queue_id", args.queue_id);
        self.process()?
            .queues
            .remove(&args.queue_id)
            .ok_or(Errno::EINVAL)?;
        self.driver.queues_serial += 1;
        Ok(())
    }

    pub(super) fn update_queue(&mut self, args: &mut UpdateQueue) -> Result<(), Errno> {
        self.fields.set("queue_id", args.queue_id);
        self.fields.set("percentage", args.queue_percentage);
        check_properties(args.ring_size, args.queue_percentage, args.queue_priority)?;
        let queue = self
            .process()?
            .queues
            .get_mut(&args.queue_id)
            .ok_or(Errno::EFAULT)?;
        // The thunk passes no ring when it only changes percentage or priority.
        if args.ring_base_address != 0 {
            queue.ring_base = args.ring_base_address;
            queue.ring_bytes = u64::from(args.ring_size.max(MIN_RING));
        }
        queue.percentage = args.queue_percentage & 0xff;
        queue.priority = args.queue_priority;
        self.driver.queues_serial += 1;
        Ok(())
    }

    pub(super) fn set_cu_mask(&mut self, args: &mut SetCuMask) -> Result<(), Errno> {
        self.fields.set("queue_id", args.queue_id);
        self.fields.set("bits", args.bits);
        if args.bits == 0 || !args.bits.is_multiple_of(32) {
            return Err(Errno::EINVAL);
        }
        let words = args.bits.min(MAX_MASK_BITS) / 32;
        let mask: Vec<u32> = read_array(self.caller, args.mask_pointer, words)?;
        let shown: Vec<String> = mask.iter().map(|word| format!("{word:08x}")).collect();
        self.fields.set("mask", shown);
        let queue = self
            .process()?
            .queues
            .get(&args.queue_id)
            .ok_or(Errno::EFAULT)?;
        let gpu_id = queue.gpu_id;
        let in_pairs = self
            .driver
            .device(gpu_id)
            .is_some_and(|d| d.gpu.profile.has_wgp());
        if in_pairs && !is_paired(&mask) {
            return Err(Errno::EINVAL);
        }
        if let Some(queue) = self.process()?.queues.get_mut(&args.queue_id) {
            queue.cu_mask = mask;
        }
        Ok(())
    }

    pub(super) fn alloc_queue_gws(&mut self, args: &mut AllocQueueGws) -> Result<(), Errno> {
        self.fields.set("queue_id", args.queue_id);
        self.process()?
            .queues
            .get(&args.queue_id)
            .ok_or(Errno::EINVAL)?;
        args.first_gws = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::kfd::{QUEUE_TYPE_COMPUTE_AQL, number};
    use crate::ioctl::testing::{Bench, PID};
    use crate::state::backing::{DOORBELL_STRIDE, DOORBELLS};

    fn create(bench: &mut Bench) -> Result<CreateQueue, Errno> {
        let mut args = CreateQueue {
            ring_base_address: 0x1000,
            ring_size: 4096,
            gpu_id: bench.gpu_id,
            queue_type: QUEUE_TYPE_COMPUTE_AQL,
            queue_percentage: 100,
            queue_priority: 7,
            ..Default::default()
        };
        bench.kfd(number::CREATE_QUEUE, &mut args).map(|()| args)
    }

    fn set_mask(bench: &mut Bench, queue_id: u32, mask: &[u32]) -> Result<(), Errno> {
        let bytes: Vec<u8> = mask.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mask_pointer = bench.caller.put(0x5000, &bytes);
        let mut args = SetCuMask {
            queue_id,
            bits: mask.len() as u32 * 32,
            mask_pointer,
        };
        bench.kfd(number::SET_CU_MASK, &mut args)
    }

    fn mask_of(bench: &Bench, queue_id: u32) -> Vec<u32> {
        let view = bench.driver.view();
        let queues = &view.process(PID).unwrap().queues;
        queues
            .iter()
            .find(|q| q.id == queue_id)
            .unwrap()
            .cu_mask
            .clone()
    }

    #[test]
    fn each_queue_has_its_doorbell() {
        let mut bench = Bench::new();
        let (a, b) = (create(&mut bench).unwrap(), create(&mut bench).unwrap());
        assert_eq!((a.queue_id, b.queue_id), (0, 1));
        assert_eq!(a.doorbell_offset % DOORBELL_STRIDE, 0);
        assert_eq!(a.doorbell_offset, DOORBELLS);
        assert_eq!(b.doorbell_offset, a.doorbell_offset + 8);
        let mut destroy = DestroyQueue {
            queue_id: 0,
            pad: 0,
        };
        bench.kfd(number::DESTROY_QUEUE, &mut destroy).unwrap();
        assert_eq!(
            bench.kfd(number::DESTROY_QUEUE, &mut destroy),
            Err(Errno::EINVAL)
        );
        assert_eq!(create(&mut bench).unwrap().queue_id, 0);
    }

    #[test]
    fn an_older_struct_is_shorter() {
        let mut bench = Bench::new();
        let (driver, caller) = (&mut bench.driver, &bench.caller);
        let mut fields = crate::ioctl::Fields::default();
        let mut bytes = [0_u8; 0x58];
        let args = CreateQueue {
            gpu_id: bench.gpu_id,
            ..Default::default()
        };
        crate::abi::store(&args, &mut bytes);
        let key = crate::state::ProcessKey(1);
        let outcome = Call {
            driver,
            caller,
            key,
            fields: &mut fields,
        }
        .run(number::CREATE_QUEUE, &mut bytes);
        assert!(matches!(outcome, crate::ioctl::Outcome::Done(Ok(()))));
    }

    #[test]
    fn queues_run_out() {
        let mut bench = Bench::new();
        for _ in 0..crate::state::queue::MAX_QUEUES {
            create(&mut bench).unwrap();
        }
        assert_eq!(create(&mut bench).unwrap_err(), Errno::ENOMEM);
    }

    #[test]
    fn masks_of_a_gpu_without_pairs() {
        let mut bench = Bench::new();
        let id = create(&mut bench).unwrap().queue_id;
        set_mask(&mut bench, id, &[0x1f, 0]).unwrap();
        assert_eq!(mask_of(&bench, id), [0x1f, 0]);
        assert_eq!(set_mask(&mut bench, 77, &[1]), Err(Errno::EFAULT));
        assert_eq!(set_mask(&mut bench, id, &[]), Err(Errno::EINVAL));
        let mut args = SetCuMask {
            queue_id: id,
            bits: 31,
            mask_pointer: 0x5000,
        };
        assert_eq!(
            bench.kfd(number::SET_CU_MASK, &mut args),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn from_gfx10_on_a_mask_must_not_split_a_pair() {
        let mut bench = Bench::with("rx7900xtx", 1);
        let id = create(&mut bench).unwrap().queue_id;
        set_mask(&mut bench, id, &[0x3f, 0]).unwrap();
        assert_eq!(set_mask(&mut bench, id, &[0x1f, 0]), Err(Errno::EINVAL));
        assert_eq!(
            mask_of(&bench, id),
            [0x3f, 0],
            "the refused mask changes nothing"
        );
    }

    #[test]
    fn updating() {
        let mut bench = Bench::new();
        let id = create(&mut bench).unwrap().queue_id;
        let mut args = UpdateQueue {
            queue_id: id,
            queue_percentage: 0,
            ..Default::default()
        };
        bench.kfd(number::UPDATE_QUEUE, &mut args).unwrap();
        args.queue_percentage = 101;
        assert_eq!(
            bench.kfd(number::UPDATE_QUEUE, &mut args),
            Err(Errno::EINVAL)
        );
        args = UpdateQueue {
            queue_id: 9,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::UPDATE_QUEUE, &mut args),
            Err(Errno::EFAULT)
        );
    }
}
