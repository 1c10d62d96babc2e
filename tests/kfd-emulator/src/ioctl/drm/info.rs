//! What a render node tells about itself.

use nix::errno::Errno;

use crate::abi::drm::{
    CAP_PRIME, CAP_SYNCOBJ, CAP_SYNCOBJ_TIMELINE, Client, GetCap, Info, Version,
};
use crate::drm_info;

use super::Call;

/// amdgpu's own version: 3.61 has all that the runtimes look for.
const MAJOR: i32 = 3;
const MINOR: i32 = 61;
/// `DRM_PRIME_CAP_IMPORT | DRM_PRIME_CAP_EXPORT`.
const PRIME_IMPORT_EXPORT: u64 = 3;

impl Call<'_> {
    pub(super) fn version(&mut self, args: &mut Version) -> Result<(), Errno> {
        (args.major, args.minor, args.patch) = (MAJOR, MINOR, 0);
        let texts = [
            (&mut args.name_length, args.name_pointer, "amdgpu"),
            (&mut args.date_length, args.date_pointer, "20150101"),
            (
                &mut args.description_length,
                args.description_pointer,
                "AMD GPU",
            ),
        ];
        for (length, pointer, text) in texts {
            let room = usize::try_from(*length).unwrap_or(usize::MAX);
            let fits = text
                .as_bytes()
                .get(..text.len().min(room))
                .unwrap_or_default();
            if !fits.is_empty() && pointer != 0 {
                self.caller.write(pointer, fits)?;
            }
            *length = text.len() as u64;
        }
        Ok(())
    }

    pub(super) fn get_client(&mut self, args: &mut Client) -> Result<(), Errno> {
        args.authenticated = 1;
        args.pid = u64::from(self.caller.pid());
        Ok(())
    }

    pub(super) fn get_cap(&mut self, args: &mut GetCap) -> Result<(), Errno> {
        self.fields.hex("capability", args.capability);
        args.value = match args.capability {
            CAP_PRIME => PRIME_IMPORT_EXPORT,
            CAP_SYNCOBJ | CAP_SYNCOBJ_TIMELINE => 1,
            _ => 0,
        };
        Ok(())
    }

    pub(super) fn info(&mut self, args: &mut Info) -> Result<(), Errno> {
        self.fields.hex("query", args.query);
        self.fields.hex("selector", args.selector);
        let device = self.driver.device(self.gpu_id).ok_or(Errno::ENODEV)?;
        let used = device.vram_used;
        let answer =
            drm_info::answer(&device.gpu, args.query, args.selector, used).ok_or(Errno::EINVAL)?;
        let room = args.return_size as usize;
        let fits = answer.get(..answer.len().min(room)).unwrap_or_default();
        if !fits.is_empty() {
            self.caller.write(args.return_pointer, fits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::drm::{INFO_ACCEL_WORKING, number};
    use crate::ioctl::testing::{Bench, PID};

    #[test]
    fn the_version_fills_what_room_there_is() {
        let mut bench = Bench::new();
        let mut args = Version {
            name_length: 3,
            name_pointer: bench.caller.put(0x1000, &[0; 8]),
            ..zerocopy::FromZeros::new_zeroed()
        };
        bench.drm(number::VERSION, &mut args).unwrap();
        assert_eq!(
            (args.major, args.name_length, args.description_length),
            (3, 6, 7)
        );
        assert_eq!(bench.caller.get::<[u8; 8]>(0x1000), *b"amd\0\0\0\0\0");
        args.name_length = 6;
        bench.drm(number::VERSION, &mut args).unwrap();
        assert_eq!(bench.caller.get::<[u8; 8]>(0x1000), *b"amdgpu\0\0");
    }

    #[test]
    fn client_and_capabilities() {
        let mut bench = Bench::new();
        let mut client: Client = zerocopy::FromZeros::new_zeroed();
        bench.drm(number::GET_CLIENT, &mut client).unwrap();
        assert_eq!((client.authenticated, client.pid), (1, u64::from(PID)));
        let mut cap = GetCap {
            capability: CAP_PRIME,
            value: 0,
        };
        bench.drm(number::GET_CAP, &mut cap).unwrap();
        assert_eq!(cap.value, 3);
    }

    #[test]
    fn an_answer_never_exceeds_its_room() {
        let mut bench = Bench::new();
        let mut info = Info {
            return_pointer: bench.caller.put(0x1000, &[0; 4]),
            return_size: 4,
            query: INFO_ACCEL_WORKING,
            ..Default::default()
        };
        bench.drm(number::INFO, &mut info).unwrap();
        assert_eq!(bench.caller.get::<u32>(0x1000), 1);
        info.return_pointer = 0;
        assert_eq!(bench.drm(number::INFO, &mut info), Err(Errno::EFAULT));
        info.query = 0xdead;
        assert_eq!(bench.drm(number::INFO, &mut info), Err(Errno::EINVAL));
    }
}
