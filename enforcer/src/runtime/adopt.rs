//! Making a runtime known.

use core::ffi::{CStr, c_void};
use core::sync::atomic::AtomicBool;

use super::{Function, Runtime, is_runtime, publish};
use crate::below;
use crate::elf;
use crate::entries::Api;
use crate::helpers::Helper;
use crate::linker;

/// A handle of `dlopen`. It is never closed.
#[derive(Clone, Copy)]
pub(super) struct Handle(pub(super) *mut c_void);

/// Makes the runtime of this handle known, unless it is already, and answers it. `None`: the library has not a
/// single HIP function, or there are too many runtimes.
pub(super) fn adopt(handle: Handle) -> Option<&'static Runtime> {
    // Found out here, where the linker may be called.
    linker::another_copy_counts();
    let find = |name: &CStr| linker::find(handle.0, name, None);
    let own = Api::ALL.map(|api| find(api.name()));
    let helper = Helper::ALL.map(|helper| find(helper.name()));
    let known = own.iter().copied().find(|address| *address != 0)?;
    let base_of =
        |address| elf::find_object(|object| object.contains(address).then(|| object.base()));
    let base = base_of(known)?;
    let extent = elf::find_object(|object| object.contains(known).then(|| object.extent()))?;
    // A wrapper finds the runtime only if the linker does, behind us: by some name that is not wrapped.
    let names = Api::ALL
        .map(Api::name)
        .into_iter()
        .chain(Helper::ALL.map(Helper::name));
    let reachable = names
        .filter_map(|name| linker::after_us(name, None))
        .any(|address| base_of(address) == Some(base));
    let functions = Api::ALL.map(|api| {
        let own = own.get(api as usize).copied().unwrap_or(0);
        let next = linker::after_us(api.name(), None).filter(|next| {
            let owner =
                elf::find_object(|object| object.contains(*next).then(|| is_runtime(object)));
            reachable && owner == Some(false)
        });
        Function::new(next.unwrap_or(own), own)
    });
    linker::forget_error();
    let (runtime, is_new) = publish(Box::new(Runtime {
        number: 0,
        base,
        extent,
        tried: AtomicBool::new(false),
        functions,
        helper,
    }))?;
    if is_new {
        below::install(runtime);
    }
    Some(runtime)
}
