/* The exported functions, one row each. The library's build script reads this file too, for the symbol
 * versions: a row begins a line with its macro.
 *
 * FUNCTION(since, version, slot, name, parameters, arguments, outputs)
 *     one that returns an error code and records it as the thread's last. `since`: the first generation
 *     that has it (5_7: of those builds of 5 only the one of 5.7); `version`: its symbol version; `slot`: its place in the dispatch table, in pointers
 *     behind the size; `outputs`: what is written on success (for poisoning and null results).
 *     Implemented by do_NAME.
 * DIRECT(...)
 *     the same, but in every build an ordinary function: it has no slot.
 * SPECIAL(since, version, slot, type, name, parameters, arguments)
 *     one that does not touch the thread's last error except by its own rule. Implemented by do_NAME.
 *
 * Versions and slots: golden/, which the tests compare with what was built. */

/* Devices */
FUNCTION(5, hip_4.2, 202, hipInit, (unsigned flags), (flags), NONE)
FUNCTION(5, hip_4.2, 326, hipRuntimeGetVersion, (int *version), (version), OUT(version))
FUNCTION(5, hip_4.2, 68, hipDriverGetVersion, (int *version), (version), OUT(version))
FUNCTION(5, hip_4.2, 103, hipGetDeviceCount, (int *count), (count), OUT(count))
FUNCTION(5, hip_4.2, 102, hipGetDevice, (int *device), (device), OUT(device))
FUNCTION(5, hip_4.2, 327, hipSetDevice, (int device), (device), NONE)
FUNCTION(5, hip_4.2, 40, hipDeviceGet, (hipDevice_t *device, int ordinal), (device, ordinal),
      OUT(device))
FUNCTION(5, hip_4.2, 48, hipDeviceGetName, (char *name, int length, hipDevice_t device), (name,
      length, device), NONE)
FUNCTION(5, hip_4.2, 50, hipDeviceGetPCIBusId, (char *id, int length, int device), (id, length,
      device), NONE)
FUNCTION(5, hip_5.1, 53, hipDeviceGetUuid, (hipUUID *uuid, hipDevice_t device), (uuid, device),
      OUT(uuid))
FUNCTION(5, hip_4.2, 42, hipDeviceGetByPCIBusId, (int *device, const char *id), (device, id),
      OUT(device))
FUNCTION(5, hip_4.2, 41, hipDeviceGetAttribute, (int *value, int attribute, int device), (value,
      attribute, device), OUT(value))
FUNCTION(5, hip_4.2, 67, hipDeviceTotalMem, (size_t *bytes, hipDevice_t device), (bytes, device),
      OUT(bytes))
DIRECT(5, hip_4.2, NO_SLOT, hipGetDeviceProperties, (hipDeviceProp_tR0000 *properties, int device),
      (properties, device), OUT(properties))
FUNCTION(6, hip_6.0, 105, hipGetDevicePropertiesR0600, (hipDeviceProp_tR0600 *properties, int
      device), (properties, device), OUT(properties))
FUNCTION(6, hip_4.2, 106, hipGetDevicePropertiesR0000, (hipDeviceProp_tR0000 *properties, int
      device), (properties, device), OUT(properties))
FUNCTION(5, hip_4.2, 66, hipDeviceSynchronize, (void), (), NONE)
FUNCTION(5, hip_4.2, 60, hipDeviceReset, (void), (), NONE)
FUNCTION(5, hip_4.2, 57, hipDevicePrimaryCtxReset, (hipDevice_t device), (device), NONE)
FUNCTION(5, hip_4.2, 16, hipCtxCreate, (hipCtx_t *context, unsigned flags, hipDevice_t device),
      (context, flags, device), OUT(context))
FUNCTION(5, hip_4.2, 17, hipCtxDestroy, (hipCtx_t context), (context), NONE)
FUNCTION(5, hip_4.2, 29, hipCtxSetCurrent, (hipCtx_t context), (context), NONE)
FUNCTION(5, hip_4.2, 23, hipCtxGetDevice, (hipDevice_t *device), (device), OUT(device))
FUNCTION(6, hip_6.1, 442, hipGetProcAddress, (const char *symbol, void **function, int version,
      uint64_t flags, int *status), (symbol, function, version, flags, status), OUT(function))

/* Linear memory */
FUNCTION(5, hip_4.2, 215, hipMalloc, (void **pointer, size_t bytes), (pointer, bytes), OUT(pointer))
FUNCTION(5, hip_4.2, 86, hipExtMallocWithFlags, (void **pointer, size_t bytes, unsigned flags),
      (pointer, bytes, flags), OUT(pointer))
FUNCTION(5, hip_4.2, 222, hipMallocManaged, (void **pointer, size_t bytes, unsigned flags),
      (pointer, bytes, flags), OUT(pointer))
FUNCTION(5, hip_4.2, 224, hipMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t
      height), (pointer, pitch, width, height), OUT2(pointer, pitch))
FUNCTION(5, hip_4.2, 229, hipMemAllocPitch, (void **pointer, size_t *pitch, size_t width, size_t
      height, unsigned element), (pointer, pitch, width, height, element), OUT2(pointer, pitch))
FUNCTION(5, hip_4.2, 216, hipMalloc3D, (hipPitchedPtr *pitched, hipExtent extent), (pitched,
      extent), OUT(pitched))
FUNCTION(5, hip_4.2, 90, hipFree, (void *pointer), (pointer), NONE)
FUNCTION(5, hip_4.2, 236, hipMemGetInfo, (size_t *available, size_t *total), (available, total),
      OUT2(available, total))
FUNCTION(5, hip_4.2, 252, hipMemPtrGetInfo, (void *pointer, size_t *bytes), (pointer, bytes),
      OUT(bytes))
FUNCTION(5, hip_4.2, 233, hipMemGetAddressRange, (void **base, size_t *bytes, void *pointer), (base,
      bytes, pointer), OUT2(base, bytes))
FUNCTION(5, hip_4.2, 322, hipPointerGetAttributes, (hipPointerAttribute_t *attributes, const void
      *pointer), (attributes, pointer), OUT(attributes))
FUNCTION(5, hip_4.2, 197, hipHostMalloc, (void **pointer, size_t bytes, unsigned flags), (pointer,
      bytes, flags), OUT(pointer))
FUNCTION(5, hip_4.2, 194, hipHostFree, (void *pointer), (pointer), NONE)
FUNCTION(5, hip_4.2, 93, hipFreeHost, (void *pointer), (pointer), NONE)
FUNCTION(5, hip_4.2, 259, hipMemcpy, (void *to, const void *from, size_t bytes, int kind), (to,
      from, bytes, kind), NONE)
FUNCTION(5, hip_4.2, 268, hipMemcpyAsync, (void *to, const void *from, size_t bytes, int kind,
      hipStream_t stream), (to, from, bytes, kind, stream), NONE)
FUNCTION(5, hip_4.2, 260, hipMemcpy2D, (void *to, size_t to_pitch, const void *from, size_t
      from_pitch, size_t width, size_t height, int kind), (to, to_pitch, from, from_pitch, width,
      height, kind), NONE)
FUNCTION(5, hip_4.2, 288, hipMemset, (void *pointer, int value, size_t bytes), (pointer, value,
      bytes), NONE)
FUNCTION(5, hip_4.2, 293, hipMemsetAsync, (void *pointer, int value, size_t bytes, hipStream_t
      stream), (pointer, value, bytes, stream), NONE)
FUNCTION(5, hip_4.2, 289, hipMemset2D, (void *pointer, size_t pitch, int value, size_t width, size_t
      height), (pointer, pitch, value, width, height), NONE)
FUNCTION(5, hip_4.2, 296, hipMemsetD32, (void *pointer, int value, size_t count), (pointer, value,
      count), NONE)

/* Arrays */
FUNCTION(5, hip_4.2, 218, hipMallocArray, (hipArray_t *array, const hipChannelFormatDesc *format,
      size_t width, size_t height, unsigned flags), (array, format, width, height, flags),
      OUT(array))
FUNCTION(5, hip_4.2, 217, hipMalloc3DArray, (hipArray_t *array, const hipChannelFormatDesc *format,
      hipExtent extent, unsigned flags), (array, format, extent, flags), OUT(array))
FUNCTION(5, hip_4.2, 3, hipArrayCreate, (hipArray_t *array, const HIP_ARRAY_DESCRIPTOR *descriptor),
      (array, descriptor), OUT(array))
FUNCTION(5, hip_4.2, 1, hipArray3DCreate, (hipArray_t *array, const HIP_ARRAY3D_DESCRIPTOR
      *descriptor), (array, descriptor), OUT(array))
FUNCTION(5, hip_4.2, 91, hipFreeArray, (hipArray_t array), (array), NONE)
FUNCTION(5, hip_4.3, 4, hipArrayDestroy, (hipArray_t array), (array), NONE)
FUNCTION(5, hip_4.2, 223, hipMallocMipmappedArray, (hipMipmappedArray_t *array, const
      hipChannelFormatDesc *format, hipExtent extent, unsigned levels, unsigned flags), (array,
      format, extent, levels, flags), OUT(array))
FUNCTION(5, hip_4.2, 300, hipMipmappedArrayCreate, (hipMipmappedArray_t *array,
      HIP_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels), (array, descriptor, levels), OUT(array))
FUNCTION(5, hip_4.2, 94, hipFreeMipmappedArray, (hipMipmappedArray_t array), (array), NONE)
FUNCTION(5, hip_4.2, 301, hipMipmappedArrayDestroy, (hipMipmappedArray_t array), (array), NONE)

/* Streams, events and pools */
FUNCTION(5, hip_4.2, 334, hipStreamCreate, (hipStream_t *stream), (stream), OUT(stream))
FUNCTION(5, hip_4.2, 335, hipStreamCreateWithFlags, (hipStream_t *stream, unsigned flags), (stream,
      flags), OUT(stream))
FUNCTION(5, hip_4.2, 87, hipExtStreamCreateWithCUMask, (hipStream_t *stream, uint32_t words, const
      uint32_t *mask), (stream, words, mask), OUT(stream))
FUNCTION(5, hip_4.2, 346, hipStreamSynchronize, (hipStream_t stream), (stream), NONE)
FUNCTION(5, hip_4.2, 337, hipStreamDestroy, (hipStream_t stream), (stream), NONE)
FUNCTION(5_7, hip_4.2, 341, hipStreamGetDevice, (hipStream_t stream, hipDevice_t *device), (stream,
      device), OUT(device))
FUNCTION(5, hip_4.3, 333, hipStreamBeginCapture, (hipStream_t stream, int mode), (stream, mode), NONE)
FUNCTION(5, hip_4.3, 344, hipStreamIsCapturing, (hipStream_t stream, int *status), (stream, status),
      OUT(status))
FUNCTION(5, hip_4.3, 338, hipStreamEndCapture, (hipStream_t stream, hipGraph_t *graph), (stream,
      graph), OUT(graph))
FUNCTION(5, hip_4.3, 136, hipGraphDestroy, (hipGraph_t graph), (graph), NONE)
FUNCTION(5, hip_5.1, 219, hipMallocAsync, (void **pointer, size_t bytes, hipStream_t stream),
      (pointer, bytes, stream), OUT(pointer))
FUNCTION(5, hip_5.1, 220, hipMallocFromPoolAsync, (void **pointer, size_t bytes, hipMemPool_t pool,
      hipStream_t stream), (pointer, bytes, pool, stream), OUT(pointer))
FUNCTION(5, hip_5.1, 92, hipFreeAsync, (void *pointer, hipStream_t stream), (pointer, stream), NONE)
FUNCTION(5, hip_5.1, 44, hipDeviceGetDefaultMemPool, (hipMemPool_t *pool, int device), (pool,
      device), OUT(pool))
FUNCTION(5, hip_5.1, 47, hipDeviceGetMemPool, (hipMemPool_t *pool, int device), (pool, device),
      OUT(pool))
FUNCTION(5, hip_5.1, 64, hipDeviceSetMemPool, (int device, hipMemPool_t pool), (device, pool), NONE)
FUNCTION(5, hip_5.1, 240, hipMemPoolCreate, (hipMemPool_t *pool, const hipMemPoolProps *properties),
      (pool, properties), OUT(pool))
FUNCTION(5, hip_5.1, 241, hipMemPoolDestroy, (hipMemPool_t pool), (pool), NONE)
FUNCTION(5, hip_5.1, 250, hipMemPoolTrimTo, (hipMemPool_t pool, size_t keep), (pool, keep), NONE)
FUNCTION(5, hip_5.1, 245, hipMemPoolGetAttribute, (hipMemPool_t pool, int attribute, void *value),
      (pool, attribute, value), NONE)
FUNCTION(5, hip_5.1, 244, hipMemPoolGetAccess, (int *flags, hipMemPool_t pool, hipMemLocation
      *location), (flags, pool, location), NONE)
FUNCTION(5, hip_5.1, 249, hipMemPoolSetAttribute, (hipMemPool_t pool, int attribute, void *value),
      (pool, attribute, value), NONE)

/* Virtual memory and sharing */
FUNCTION(5, hip_5.1, 234, hipMemGetAllocationGranularity, (size_t *bytes, const hipMemAllocationProp
      *properties, int option), (bytes, properties, option), OUT(bytes))
FUNCTION(5, hip_5.1, 230, hipMemCreate, (hipMemGenericAllocationHandle_t *handle, size_t bytes,
      const hipMemAllocationProp *properties, unsigned long long flags), (handle, bytes, properties,
      flags), OUT(handle))
FUNCTION(5, hip_5.1, 255, hipMemRelease, (hipMemGenericAllocationHandle_t handle), (handle), NONE)
FUNCTION(5, hip_5.1, 256, hipMemRetainAllocationHandle, (hipMemGenericAllocationHandle_t *handle,
      void *pointer), (handle, pointer), OUT(handle))
FUNCTION(5, hip_5.1, 226, hipMemAddressReserve, (void **pointer, size_t bytes, size_t alignment,
      void *wish, unsigned long long flags), (pointer, bytes, alignment, wish, flags), OUT(pointer))
FUNCTION(5, hip_5.1, 225, hipMemAddressFree, (void *pointer, size_t bytes), (pointer, bytes), NONE)
FUNCTION(5, hip_5.1, 238, hipMemMap, (void *pointer, size_t bytes, size_t offset,
      hipMemGenericAllocationHandle_t handle, unsigned long long flags), (pointer, bytes, offset,
      handle, flags), NONE)
FUNCTION(5, hip_5.1, 258, hipMemUnmap, (void *pointer, size_t bytes), (pointer, bytes), NONE)
FUNCTION(5, hip_5.1, 257, hipMemSetAccess, (void *pointer, size_t bytes, const hipMemAccessDesc
      *access, size_t count), (pointer, bytes, access, count), NONE)
FUNCTION(5, hip_5.1, 231, hipMemExportToShareableHandle, (void *shareable,
      hipMemGenericAllocationHandle_t handle, int type, unsigned long long flags), (shareable,
      handle, type, flags), NONE)
FUNCTION(5, hip_5.1, 237, hipMemImportFromShareableHandle, (hipMemGenericAllocationHandle_t *handle,
      void *shareable, int type), (handle, shareable, type), OUT(handle))
FUNCTION(5, hip_4.2, 205, hipIpcGetMemHandle, (hipIpcMemHandle_t *handle, void *pointer), (handle,
      pointer), OUT(handle))
FUNCTION(5, hip_4.2, 207, hipIpcOpenMemHandle, (void **pointer, hipIpcMemHandle_t handle, unsigned
      flags), (pointer, handle, flags), OUT(pointer))
FUNCTION(5, hip_4.2, 203, hipIpcCloseMemHandle, (void *pointer), (pointer), NONE)

/* Errors */
SPECIAL(5, hip_4.2, 109, hipError_t, hipGetLastError, (void), ())
SPECIAL(5, hip_4.2, 320, hipError_t, hipPeekAtLastError, (void), ())
SPECIAL(6, hip_6.0, 439, hipError_t, hipExtGetLastError, (void), ())
SPECIAL(5, hip_4.2, 107, const char *, hipGetErrorName, (hipError_t error), (error))
SPECIAL(5, hip_4.2, 108, const char *, hipGetErrorString, (hipError_t error), (error))
