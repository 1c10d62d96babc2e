//! Shared virtual memory.

use nix::errno::Errno;
use zerocopy::IntoBytes;

use crate::abi::kfd::{SVM_GET, SVM_SET, Svm, SvmAttribute};
use crate::abi::{load, store};
use crate::state::PAGE;

use super::Call;

impl Call<'_> {
    /// The argument is a struct and an array behind it.
    pub(super) fn svm(&mut self, argument: &mut [u8]) -> Result<(), Errno> {
        let args: Svm = load(argument);
        self.fields.hex("start", args.start);
        self.fields.set("size", args.size);
        self.fields.set("op", args.operation);
        let page = args.start.is_multiple_of(PAGE) && args.size.is_multiple_of(PAGE);
        let end = args.start.checked_add(args.size).ok_or(Errno::EINVAL)?;
        if !page || args.size == 0 {
            return Err(Errno::EINVAL);
        }
        let room = argument.get_mut(size_of::<Svm>()..).unwrap_or_default();
        let bytes = (args.attributes as usize)
            .checked_mul(size_of::<SvmAttribute>())
            .and_then(|bytes| room.get_mut(..bytes))
            .ok_or(Errno::EINVAL)?;
        let mut attributes: Vec<SvmAttribute> = bytes
            .chunks_exact(size_of::<SvmAttribute>())
            .map(load)
            .collect();
        let shown = |a: &SvmAttribute| format!("{}={:#x}", a.kind, a.value);
        self.fields.list("attributes", attributes.iter().map(shown));
        let ranges = &mut self.process()?.svm;
        match args.operation {
            SVM_SET => ranges.set(args.start, end, &attributes)?,
            SVM_GET => {
                ranges.get(args.start, end, &mut attributes)?;
                bytes.copy_from_slice(attributes.as_bytes());
            }
            _ => return Err(Errno::EINVAL),
        }
        store(&args, argument);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    use super::*;
    use crate::abi::kfd::{SVM_ATTR_ACCESS, SVM_ATTR_ACCESS_IN_PLACE, SVM_ATTR_NO_ACCESS, number};
    use crate::ioctl::testing::Bench;

    #[repr(C)]
    #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
    struct WithTwo {
        args: Svm,
        attributes: [SvmAttribute; 2],
    }

    fn query(bench: &mut Bench, operation: u32, kind: u32) -> Result<WithTwo, Errno> {
        let gpu_id = bench.gpu_id;
        let mut argument = WithTwo {
            args: Svm {
                start: 0x10_0000,
                size: 0x2000,
                operation,
                attributes: 2,
            },
            attributes: [
                SvmAttribute {
                    kind,
                    value: gpu_id,
                },
                SvmAttribute { kind: 7, value: 3 },
            ],
        };
        bench.kfd(number::SVM, &mut argument).map(|()| argument)
    }

    #[test]
    fn what_was_set_is_what_is_answered() {
        let mut bench = Bench::new();
        let before = query(&mut bench, SVM_GET, SVM_ATTR_ACCESS).unwrap();
        assert_eq!(before.attributes[0].kind, SVM_ATTR_NO_ACCESS);
        assert_eq!(before.attributes[1].value, 9);
        query(&mut bench, SVM_SET, SVM_ATTR_ACCESS_IN_PLACE).unwrap();
        let after = query(&mut bench, SVM_GET, SVM_ATTR_ACCESS).unwrap();
        assert_eq!(after.attributes[0].kind, SVM_ATTR_ACCESS_IN_PLACE);
        assert_eq!(after.attributes[1].value, 3);
    }

    #[test]
    fn more_attributes_than_there_are_bytes() {
        let mut bench = Bench::new();
        let mut args = Svm {
            start: 0x1000,
            size: 0x1000,
            operation: SVM_GET,
            attributes: 1,
        };
        assert_eq!(bench.kfd(number::SVM, &mut args), Err(Errno::EINVAL));
        args.attributes = u32::MAX;
        assert_eq!(bench.kfd(number::SVM, &mut args), Err(Errno::EINVAL));
        args = Svm {
            start: 0x1000,
            size: 100,
            operation: SVM_GET,
            attributes: 0,
        };
        assert_eq!(
            bench.kfd(number::SVM, &mut args),
            Err(Errno::EINVAL),
            "not whole pages"
        );
        args = Svm {
            start: u64::MAX - 0xfff,
            size: 0x2000,
            operation: SVM_GET,
            attributes: 0,
        };
        assert_eq!(
            bench.kfd(number::SVM, &mut args),
            Err(Errno::EINVAL),
            "it wraps"
        );
        assert!(
            query(&mut bench, 2, SVM_ATTR_ACCESS).is_err(),
            "no such operation"
        );
    }
}
