// The part of HIP's interface that the test programs use, for every generation from 5.2 to 7.2.
//
// Signatures and constants are those of hip/hip_runtime_api.h (ROCm 5.2.3, 5.7.1, 6.4.3, 7.2.4);
// where generations differ it is said. A program calls HIP(hipMalloc)(...): linked programs get
// the function itself, those built with HIP_DLOPEN look it up in HIP_LIBRARY.
#pragma once
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int hipError_t;
enum {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorNoDevice = 100,
  hipErrorNotSupported = 801,
};
enum { hipMemcpyHostToDevice = 1, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum { hipMemAttachGlobal = 1 };

typedef void *hipStream_t;
typedef void *hipArray_t;
typedef void *hipMemGenericAllocationHandle_t;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } hipPitchedPtr;
typedef struct { size_t width, height, depth; } hipExtent;
typedef struct { int x, y, z, w, f; } hipChannelFormatDesc;
typedef struct { int type, id; } hipMemLocation; // type 1: a device
typedef struct {
  int type;                  // 1: pinned
  int requested_handle_type; // 1: a POSIX file descriptor
  hipMemLocation location;
  void *win32_handle_meta_data;
  struct { unsigned char compression_type, gpu_direct_rdma_capable; unsigned short usage; } flags;
  char reserved[64]; // some generations read more than others
} hipMemAllocationProp;
typedef struct { hipMemLocation location; int flags; } hipMemAccessDesc; // flags 3: read and write
typedef struct { char reserved[64]; } hipIpcMemHandle_t;
typedef void *hipMipmappedArray_t;
typedef void *hipMemPool_t;
typedef void *hipGraph_t;
typedef void *hipGraphExec_t;
// Formats: 1 and 8 have a byte a channel; 2, 9 and 16 two; 3, 10 and 32 four.
typedef struct { size_t width, height; unsigned format, channels; } HIP_ARRAY_DESCRIPTOR;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } HIP_ARRAY3D_DESCRIPTOR;
typedef struct {
  int allocation_type; // 1: pinned
  int handle_types;    // 0: not shareable
  hipMemLocation location;
  void *win32_security_attributes;
  char reserved[64]; // since 6.0 the first 8 bytes are the largest size, 0: no bound
} hipMemPoolProps;
typedef struct {
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
} hipPointerAttribute_t;

// return type, name, parameters
#define HIP_MEMORY_FUNCTIONS(F)                                                                     \
  F(hipError_t, hipExtMallocWithFlags, (void **pointer, size_t bytes, unsigned flags))             \
  F(hipError_t, hipMallocFromPoolAsync,                                                            \
    (void **pointer, size_t bytes, hipMemPool_t pool, hipStream_t stream))                         \
  F(hipError_t, hipMemAllocPitch,                                                                  \
    (void **pointer, size_t *pitch, size_t width, size_t height, unsigned element))                \
  F(hipError_t, hipMalloc3DArray,                                                                  \
    (hipArray_t * array, const hipChannelFormatDesc *format, hipExtent extent, unsigned flags))    \
  F(hipError_t, hipArrayCreate, (hipArray_t * array, const HIP_ARRAY_DESCRIPTOR *descriptor))      \
  F(hipError_t, hipArray3DCreate, (hipArray_t * array, const HIP_ARRAY3D_DESCRIPTOR *descriptor))  \
  F(hipError_t, hipMallocMipmappedArray,                                                           \
    (hipMipmappedArray_t * array, const hipChannelFormatDesc *format, hipExtent extent,            \
     unsigned levels, unsigned flags))                                                             \
  F(hipError_t, hipMipmappedArrayCreate,                                                           \
    (hipMipmappedArray_t * array, HIP_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels))            \
  F(hipError_t, hipArrayDestroy, (hipArray_t array))                                               \
  F(hipError_t, hipFreeMipmappedArray, (hipMipmappedArray_t array))                                \
  F(hipError_t, hipMipmappedArrayDestroy, (hipMipmappedArray_t array))                             \
  F(hipError_t, hipMemRetainAllocationHandle,                                                      \
    (hipMemGenericAllocationHandle_t * handle, void *pointer))                                     \
  F(hipError_t, hipDeviceGetDefaultMemPool, (hipMemPool_t * pool, int device))                     \
  F(hipError_t, hipDeviceGetMemPool, (hipMemPool_t * pool, int device))                            \
  F(hipError_t, hipDeviceSetMemPool, (int device, hipMemPool_t pool))                              \
  F(hipError_t, hipMemPoolCreate, (hipMemPool_t * pool, const hipMemPoolProps *properties))        \
  F(hipError_t, hipMemPoolDestroy, (hipMemPool_t pool))                                            \
  F(hipError_t, hipMemPoolTrimTo, (hipMemPool_t pool, size_t keep))                                \
  F(hipError_t, hipMemPoolGetAttribute, (hipMemPool_t pool, int attribute, void *value))           \
  F(hipError_t, hipMemPoolSetAttribute, (hipMemPool_t pool, int attribute, void *value))           \
  F(hipError_t, hipStreamGetDevice, (hipStream_t stream, int *device))                             \
  F(hipError_t, hipStreamIsCapturing, (hipStream_t stream, int *status))                           \
  F(hipError_t, hipStreamBeginCapture, (hipStream_t stream, int mode))                             \
  F(hipError_t, hipStreamEndCapture, (hipStream_t stream, hipGraph_t * graph))                     \
  F(hipError_t, hipGraphInstantiate,                                                               \
    (hipGraphExec_t * made, hipGraph_t graph, void **node, char *log, size_t bytes))               \
  F(hipError_t, hipGraphLaunch, (hipGraphExec_t graph, hipStream_t stream))                        \
  F(hipError_t, hipGraphExecDestroy, (hipGraphExec_t graph))                                       \
  F(hipError_t, hipGraphDestroy, (hipGraph_t graph))                                               \
  F(hipError_t, hipGetDevice, (int *device))                                                       \
  F(hipError_t, hipDeviceReset, (void))                                                            \
  F(hipError_t, hipDevicePrimaryCtxReset, (int device))                                            \
  F(hipError_t, hipPointerGetAttributes, (hipPointerAttribute_t * attributes, const void *pointer)) \
  F(hipError_t, hipPointerGetAttribute, (void *value, int attribute, void *pointer))               \
  F(hipError_t, hipMemGetAddressRange, (void **base, size_t *bytes, void *pointer))

#define HIP_FUNCTIONS(F)                                                                            \
  HIP_MEMORY_FUNCTIONS(F)                                                                          \
  F(hipError_t, hipInit, (unsigned flags))                                                         \
  F(hipError_t, hipRuntimeGetVersion, (int *version))                                              \
  F(hipError_t, hipGetLastError, (void))                                                           \
  F(hipError_t, hipGetDeviceCount, (int *count))                                                   \
  F(hipError_t, hipSetDevice, (int device))                                                        \
  F(hipError_t, hipDeviceSynchronize, (void))                                                      \
  F(hipError_t, hipDeviceGetPCIBusId, (char *id, int length, int device))                          \
  F(hipError_t, hipDeviceGetUuid, (char *uuid, int device))                                        \
  F(hipError_t, hipDeviceGetAttribute, (int *value, int attribute, int device))                    \
  F(hipError_t, hipDeviceGetName, (char *name, int length, int device))                            \
  F(hipError_t, hipDeviceTotalMem, (size_t *bytes, int device))                                    \
  F(hipError_t, hipMemGetInfo, (size_t *available, size_t *total))                                 \
  F(hipError_t, hipGetDeviceProperties, (void *properties, int device))                            \
  F(hipError_t, hipGetDevicePropertiesR0600, (void *properties, int device))                       \
  F(hipError_t, hipGetDevicePropertiesR0000, (void *properties, int device))                       \
  F(hipError_t, hipMalloc, (void **pointer, size_t bytes))                                         \
  F(hipError_t, hipFree, (void *pointer))                                                          \
  F(hipError_t, hipMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height))      \
  F(hipError_t, hipMalloc3D, (hipPitchedPtr * pointer, hipExtent extent))                          \
  F(hipError_t, hipMallocArray,                                                                    \
    (hipArray_t * array, const hipChannelFormatDesc *format, size_t width, size_t height,          \
     unsigned flags))                                                                              \
  F(hipError_t, hipFreeArray, (hipArray_t array))                                                  \
  F(hipError_t, hipMallocManaged, (void **pointer, size_t bytes, unsigned flags))                  \
  F(hipError_t, hipMallocAsync, (void **pointer, size_t bytes, hipStream_t stream))                \
  F(hipError_t, hipFreeAsync, (void *pointer, hipStream_t stream))                                 \
  F(hipError_t, hipHostMalloc, (void **pointer, size_t bytes, unsigned flags))                     \
  F(hipError_t, hipHostFree, (void *pointer))                                                      \
  F(hipError_t, hipMemcpy, (void *to, const void *from, size_t bytes, int kind))                   \
  F(hipError_t, hipMemcpyAsync,                                                                    \
    (void *to, const void *from, size_t bytes, int kind, hipStream_t stream))                      \
  F(hipError_t, hipMemcpy2D,                                                                       \
    (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,  \
     int kind))                                                                                    \
  F(hipError_t, hipMemset, (void *pointer, int value, size_t bytes))                               \
  F(hipError_t, hipMemsetAsync, (void *pointer, int value, size_t bytes, hipStream_t stream))      \
  F(hipError_t, hipMemset2D, (void *pointer, size_t pitch, int value, size_t width, size_t height)) \
  F(hipError_t, hipMemsetD32, (void *pointer, int value, size_t count))                            \
  F(hipError_t, hipStreamCreate, (hipStream_t * stream))                                           \
  F(hipError_t, hipStreamSynchronize, (hipStream_t stream))                                        \
  F(hipError_t, hipStreamDestroy, (hipStream_t stream))                                            \
  F(hipError_t, hipExtStreamCreateWithCUMask,                                                      \
    (hipStream_t * stream, uint32_t words, const uint32_t *mask))                                  \
  F(hipError_t, hipMemGetAllocationGranularity,                                                    \
    (size_t *bytes, const hipMemAllocationProp *properties, int option))                           \
  F(hipError_t, hipMemCreate,                                                                      \
    (hipMemGenericAllocationHandle_t * handle, size_t bytes,                                       \
     const hipMemAllocationProp *properties, unsigned long long flags))                            \
  F(hipError_t, hipMemRelease, (hipMemGenericAllocationHandle_t handle))                           \
  F(hipError_t, hipMemAddressReserve,                                                              \
    (void **pointer, size_t bytes, size_t alignment, void *wish, unsigned long long flags))        \
  F(hipError_t, hipMemAddressFree, (void *pointer, size_t bytes))                                  \
  F(hipError_t, hipMemMap,                                                                         \
    (void *pointer, size_t bytes, size_t offset, hipMemGenericAllocationHandle_t handle,           \
     unsigned long long flags))                                                                    \
  F(hipError_t, hipMemUnmap, (void *pointer, size_t bytes))                                        \
  F(hipError_t, hipMemSetAccess,                                                                   \
    (void *pointer, size_t bytes, const hipMemAccessDesc *access, size_t count))                   \
  F(hipError_t, hipMemExportToShareableHandle,                                                     \
    (void *shareable, hipMemGenericAllocationHandle_t handle, int type, unsigned long long flags)) \
  F(hipError_t, hipMemImportFromShareableHandle,                                                   \
    (hipMemGenericAllocationHandle_t * handle, void *shareable, int type))                         \
  F(hipError_t, hipIpcGetMemHandle, (hipIpcMemHandle_t * handle, void *pointer))                   \
  F(hipError_t, hipIpcOpenMemHandle, (void **pointer, hipIpcMemHandle_t handle, unsigned flags))   \
  F(hipError_t, hipIpcCloseMemHandle, (void *pointer))

#ifdef HIP_DLOPEN
#include "raw_symbol.h"
#define HIP_FIELD(type, name, parameters) type(*name) parameters;
static struct { HIP_FUNCTIONS(HIP_FIELD) } hip;
#undef HIP_FIELD
#define HIP(name) hip.name
// How the functions are found, by HIP_WAY: dlsym (the default), dlvsym, deepbind (dlsym after RTLD_DEEPBIND), raw (in the
// library's symbol table; one other function is looked up by its name before).
static void *hip_find(void *library, const char *way, const char *name) {
  if (!strcmp(way, "raw")) return raw_symbol(library, name);
  if (!strcmp(way, "dlvsym")) {
    void *found = dlvsym(library, name, "hip_4.2");
    return found ? found : dlsym(library, name);
  }
  return dlsym(library, name);
}

static void hip_open(void) {
  const char *way = getenv("HIP_WAY") ? getenv("HIP_WAY") : "dlsym";
  int flags = RTLD_NOW | (strcmp(way, "deepbind") ? 0 : RTLD_DEEPBIND);
  void *library = dlopen(HIP_LIBRARY, flags);
  if (library && !strcmp(way, "raw") && !dlsym(library, "hipGetDeviceCount")) exit(3);
  if (!library) {
    fprintf(stderr, "dlopen: %s\n", dlerror());
    exit(3);
  }
#define HIP_LOOK_UP(type, name, parameters) hip.name = (type(*) parameters)hip_find(library, way, #name);
  HIP_FUNCTIONS(HIP_LOOK_UP)
#undef HIP_LOOK_UP
}
#else
// Weak: a generation may not have all of them.
#define HIP_DECLARE(type, name, parameters) extern type name parameters __attribute__((weak));
HIP_FUNCTIONS(HIP_DECLARE)
#undef HIP_DECLARE
#define HIP(name) name
static void hip_open(void) {}
#endif
