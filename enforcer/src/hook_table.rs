//! The hooked functions, one row each. Everything else about them is generated from here.
//!
//! `name (its arguments) => what it does to the account, slot its place in the dispatch table;`
//!
//! * `allocates { out, request }`: on success what was asked for ([`crate::request`]) lies at or behind
//!   `*out`; `memory` is linear memory, known by its address, an `object` is known by its handle,
//!   `physical` memory by its handle and its mappings;
//! * `frees { memory pointer }`, `frees { object handle }`: on success that is gone; `on stream`: unless the
//!   stream is being recorded;
//! * `releases { handle }`, `maps { address, bytes, handle }`, `unmaps { address, bytes }`: what keeps the
//!   physical memory of a handle;
//! * `resets {}`: on success all that a reset frees on the current device is gone;
//! * `observes { observer }`: on success `observer` looks at what the call has made;
//! * `answers { query }`: a question whose answer `query` adapts.
//!
//! Slots: `HipDispatchTable` of `hip/amd_detail/hip_api_trace.hpp`; their order is frozen, new ones are
//! added at the end. Signatures: `hip_runtime_api.h`, the same from ROCm 5.2 to 7.2. `hipDevice_t` and
//! `hipDeviceAttribute_t` are ints; streams, pools, arrays and handles are pointers.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::entries::define_hooks;
use crate::hip::{
    AllocationProperties, Array3dDescriptor, ChannelFormat, Extent, PitchedPtr,
    PlainArrayDescriptor, PropertiesLayout,
};
use crate::observers;
use crate::queries;
use crate::request;

define_hooks! {
    // Linear memory

    /// `hipError_t hipMalloc(void **ptr, size_t size)`
    hipMalloc (pointer: *mut *mut c_void, size: usize)
        => allocates { memory pointer, request::linear(size) }, slot 215;
    /// `hipError_t hipExtMallocWithFlags(void **ptr, size_t sizeBytes, unsigned int flags)`
    hipExtMallocWithFlags (pointer: *mut *mut c_void, size: usize, flags: c_uint)
        => allocates { memory pointer, request::flagged(size, flags) }, slot 86;
    /// `hipError_t hipMallocManaged(void **dev_ptr, size_t size, unsigned int flags)`
    hipMallocManaged (pointer: *mut *mut c_void, size: usize, flags: c_uint)
        => allocates { memory pointer, request::managed(size) }, slot 222;
    /// `hipError_t hipMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)`
    hipMallocPitch (pointer: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize)
        => allocates { memory pointer, request::rows(width, height, pitch) }, slot 224;
    /// `hipError_t hipMemAllocPitch(hipDeviceptr_t *dptr, size_t *pitch, size_t widthInBytes, size_t height,
    /// unsigned int elementSizeBytes)`
    hipMemAllocPitch
        (pointer: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        => allocates { memory pointer, request::rows(width, height, pitch) }, slot 229;
    /// `hipError_t hipMalloc3D(hipPitchedPtr *pitchedDevPtr, hipExtent extent)`
    hipMalloc3D (result: *mut PitchedPtr, extent: Extent)
        => allocates { memory result, request::slices(extent, result) }, slot 216;
    /// `hipError_t hipMallocAsync(void **dev_ptr, size_t size, hipStream_t stream)`
    hipMallocAsync (pointer: *mut *mut c_void, size: usize, stream: *mut c_void)
        => allocates { memory pointer, request::in_order(size, stream) }, slot 219;
    /// `hipError_t hipMallocFromPoolAsync(void **dev_ptr, size_t size, hipMemPool_t mem_pool,
    /// hipStream_t stream)`
    hipMallocFromPoolAsync
        (pointer: *mut *mut c_void, size: usize, pool: *mut c_void, stream: *mut c_void)
        => allocates { memory pointer, request::from_pool(size, pool, stream) }, slot 220;
    /// `hipError_t hipFree(void *ptr)`
    hipFree (pointer: *mut c_void)
        => frees { memory pointer }, slot 90;
    /// `hipError_t hipFreeAsync(void *dev_ptr, hipStream_t stream)`
    hipFreeAsync (pointer: *mut c_void, stream: *mut c_void)
        => frees { memory pointer, on stream }, slot 92;

    /// `hipError_t hipHostFree(void *ptr)`: it also frees memory of a device, in all releases that were seen.
    hipHostFree (pointer: *mut c_void)
        => frees { memory pointer }, slot 194;
    /// `hipError_t hipFreeHost(void *ptr)`: the same.
    hipFreeHost (pointer: *mut c_void)
        => frees { memory pointer }, slot 93;
    /// `hipError_t hipDeviceReset(void)`
    hipDeviceReset ()
        => resets {}, slot 60;

    // When pools give back what they have kept

    /// `hipError_t hipMemPoolTrimTo(hipMemPool_t mem_pool, size_t min_bytes_to_hold)`
    hipMemPoolTrimTo (pool: *mut c_void, keep: usize)
        => observes { observers::settle_pools() }, slot 250;
    /// `hipError_t hipMemPoolDestroy(hipMemPool_t mem_pool)`
    hipMemPoolDestroy (pool: *mut c_void)
        => observes { observers::settle_pools() }, slot 241;
    /// `hipError_t hipStreamSynchronize(hipStream_t stream)`
    hipStreamSynchronize (stream: *mut c_void)
        => observes { observers::settle_pools() }, slot 346;
    /// `hipError_t hipStreamSynchronize_spt(hipStream_t stream)`: null is the thread's own stream
    hipStreamSynchronize_spt (stream: *mut c_void)
        => observes { observers::settle_pools() }, slot 412;
    /// `hipError_t hipEventSynchronize(hipEvent_t event)`
    hipEventSynchronize (event: *mut c_void)
        => observes { observers::settle_pools() }, slot 82;
    /// `hipError_t hipDeviceSynchronize(void)`
    hipDeviceSynchronize ()
        => observes { observers::settle_pools() }, slot 66;

    // Graphs that allocate when they run

    /// `hipError_t hipGraphAddMemAllocNode(hipGraphNode_t *pGraphNode, hipGraph_t graph,
    /// const hipGraphNode_t *pDependencies, size_t numDependencies, hipMemAllocNodeParams *pNodeParams)`
    hipGraphAddMemAllocNode
        (node: *mut *mut c_void, graph: *mut c_void, before: *const c_void, count: usize, parameters: *mut c_void)
        => observes { observers::graphs_allocate() }, slot 125;
    /// `hipError_t hipGraphAddNode(hipGraphNode_t *pGraphNode, hipGraph_t graph,
    /// const hipGraphNode_t *pDependencies, size_t numDependencies, hipGraphNodeParams *nodeParams)`
    hipGraphAddNode
        (node: *mut *mut c_void, graph: *mut c_void, before: *const c_void, count: usize, parameters: *mut c_void)
        => observes { observers::graphs_allocate() }, slot 437;
    /// `hipError_t hipGraphLaunch(hipGraphExec_t graphExec, hipStream_t stream)`
    hipGraphLaunch (graph: *mut c_void, stream: *mut c_void)
        => observes { observers::graph_was_launched() }, slot 166;
    /// `hipError_t hipGraphLaunch_spt(hipGraphExec_t graphExec, hipStream_t stream)`: on the thread's own stream
    hipGraphLaunch_spt (graph: *mut c_void, stream: *mut c_void)
        => observes { observers::graph_was_launched() }, slot 420;

    // Physical memory, to be mapped

    /// `hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t size,
    /// const hipMemAllocationProp *prop, unsigned long long flags)`
    hipMemCreate
        (handle: *mut *mut c_void, size: usize, properties: *const AllocationProperties, flags: c_ulonglong)
        => allocates { physical handle, request::physical(size, properties) }, slot 230;
    /// `hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle)`
    hipMemRelease (handle: *mut c_void)
        => releases { handle }, slot 255;
    /// `hipError_t hipMemMap(void *ptr, size_t size, size_t offset, hipMemGenericAllocationHandle_t handle,
    /// unsigned long long flags)`
    hipMemMap
        (address: *mut c_void, bytes: usize, offset: usize, handle: *mut c_void, flags: c_ulonglong)
        => maps { address, bytes, handle }, slot 238;
    /// `hipError_t hipMemUnmap(void *ptr, size_t size)`
    hipMemUnmap (address: *mut c_void, bytes: usize)
        => unmaps { address, bytes }, slot 258;
    /// `hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *handle, void *osHandle,
    /// hipMemAllocationHandleType shHandleType)`
    hipMemImportFromShareableHandle (handle: *mut *mut c_void, shareable: *mut c_void, kind: c_int)
        => observes { observers::imported(handle.cast_const().cast()) }, slot 237;

    // Arrays

    /// `hipError_t hipMallocArray(hipArray_t *array, const hipChannelFormatDesc *desc, size_t width,
    /// size_t height, unsigned int flags)`
    hipMallocArray
        (array: *mut *mut c_void, format: *const ChannelFormat, width: usize, height: usize, flags: c_uint)
        => allocates { object array, request::array(format, Extent { width, height, depth: 0 }) }, slot 218;
    /// `hipError_t hipMalloc3DArray(hipArray_t *array, const struct hipChannelFormatDesc *desc,
    /// struct hipExtent extent, unsigned int flags)`
    hipMalloc3DArray
        (array: *mut *mut c_void, format: *const ChannelFormat, extent: Extent, flags: c_uint)
        => allocates { object array, request::array(format, extent) }, slot 217;
    /// `hipError_t hipArrayCreate(hipArray_t *pHandle, const HIP_ARRAY_DESCRIPTOR *pAllocateArray)`
    hipArrayCreate (array: *mut *mut c_void, descriptor: *const PlainArrayDescriptor)
        => allocates { object array, request::described_array(descriptor) }, slot 3;
    /// `hipError_t hipArray3DCreate(hipArray_t *array, const HIP_ARRAY3D_DESCRIPTOR *pAllocateArray)`
    hipArray3DCreate (array: *mut *mut c_void, descriptor: *const Array3dDescriptor)
        => allocates { object array, request::described_array(descriptor) }, slot 1;
    /// `hipError_t hipFreeArray(hipArray_t array)`
    hipFreeArray (array: *mut c_void)
        => frees { object array }, slot 91;
    /// `hipError_t hipArrayDestroy(hipArray_t array)`
    hipArrayDestroy (array: *mut c_void)
        => frees { object array }, slot 4;
    /// `hipError_t hipMallocMipmappedArray(hipMipmappedArray_t *mipmappedArray,
    /// const struct hipChannelFormatDesc *desc, struct hipExtent extent, unsigned int numLevels,
    /// unsigned int flags)`
    hipMallocMipmappedArray
        (array: *mut *mut c_void, format: *const ChannelFormat, extent: Extent, levels: c_uint, flags: c_uint)
        => allocates { object array, request::mipmaps(format, extent, levels) }, slot 223;
    /// `hipError_t hipMipmappedArrayCreate(hipMipmappedArray_t *pHandle,
    /// HIP_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc, unsigned int numMipmapLevels)`
    hipMipmappedArrayCreate
        (array: *mut *mut c_void, descriptor: *mut Array3dDescriptor, levels: c_uint)
        => allocates { object array, request::described_mipmaps(descriptor, levels) }, slot 300;
    /// `hipError_t hipFreeMipmappedArray(hipMipmappedArray_t mipmappedArray)`
    hipFreeMipmappedArray (array: *mut c_void)
        => frees { object array }, slot 94;
    /// `hipError_t hipMipmappedArrayDestroy(hipMipmappedArray_t hMipmappedArray)`
    hipMipmappedArrayDestroy (array: *mut c_void)
        => frees { object array }, slot 301;

    // Questions

    /// `hipError_t hipMemGetInfo(size_t *free, size_t *total)`
    hipMemGetInfo (free: *mut usize, total: *mut usize)
        => answers { queries::memory_info(free, total) }, slot 236;
    /// `hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)`
    hipDeviceTotalMem (bytes: *mut usize, device: c_int)
        => answers { queries::total_memory(bytes, device) }, slot 67;
    /// `hipError_t hipDeviceGetAttribute(int *pi, hipDeviceAttribute_t attr, int deviceId)`
    hipDeviceGetAttribute (value: *mut c_int, attribute: c_int, device: c_int)
        => answers { queries::attribute(value, attribute, device) }, slot 41;
    /// `hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000 *prop, int deviceId)`
    hipGetDeviceProperties (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0000, properties, device) }, slot none;
    /// `hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *prop, int deviceId)`
    hipGetDevicePropertiesR0600 (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0600, properties, device) }, slot 105;
    /// `hipError_t hipGetDevicePropertiesR0000(hipDeviceProp_tR0000 *prop, int deviceId)`
    hipGetDevicePropertiesR0000 (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0000, properties, device) }, slot 106;
}
