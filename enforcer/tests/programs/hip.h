/* The part of HIP that the client uses, and how it finds it.
 *
 * Signatures and layouts: hip/hip_runtime_api.h and hip/driver_types.h, ROCm 5.2 to 7.2; handles are plain
 * pointers here. Versions, for dlvsym: those of the libraries. */
#pragma once
#include <stddef.h>

typedef struct { void *ptr; size_t pitch, xsize, ysize; } hipPitchedPtr;
typedef struct { size_t width, height, depth; } hipExtent;
typedef struct { int x, y, z, w, f; } hipChannelFormatDesc; /* bits of each channel; the kind of number */
typedef struct { size_t Width, Height; unsigned Format, NumChannels; } HIP_ARRAY_DESCRIPTOR;
typedef struct { size_t Width, Height, Depth; unsigned Format, NumChannels, Flags; } HIP_ARRAY3D_DESCRIPTOR;
typedef struct { int type, id; } hipMemLocation; /* type 1: a device; 2, since 7: the host */
typedef struct {
    int type, requestedHandleType; /* 1: pinned; 1: a file descriptor */
    hipMemLocation location;
    void *win32HandleMetaData;
    char rest[64]; /* newer releases read more than older ones */
} hipMemAllocationProp;
typedef struct {
    int allocType, handleTypes; /* 1: pinned; 1: a file descriptor */
    hipMemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    char reserved[56];
} hipMemPoolProps;

#define HIP_FUNCTIONS(F)                                                                                    \
    F(hipMalloc, "hip_4.2", (void **, size_t))                                                              \
    F(hipExtMallocWithFlags, "hip_4.2", (void **, size_t, unsigned))                                        \
    F(hipMallocManaged, "hip_4.2", (void **, size_t, unsigned))                                             \
    F(hipMallocAsync, "hip_5.1", (void **, size_t, void *stream))                                           \
    F(hipMallocFromPoolAsync, "hip_5.1", (void **, size_t, void *pool, void *stream))                       \
    F(hipMemCreate, "hip_5.1", (void **, size_t, const hipMemAllocationProp *, unsigned long long flags))   \
    F(hipMallocPitch, "hip_4.2", (void **, size_t *pitch, size_t width, size_t height))                     \
    F(hipMemAllocPitch, "hip_4.2", (void **, size_t *pitch, size_t width, size_t height, unsigned element)) \
    F(hipMalloc3D, "hip_4.2", (hipPitchedPtr *, hipExtent))                                                 \
    F(hipMallocArray, "hip_4.2", (void **, const hipChannelFormatDesc *, size_t, size_t, unsigned flags))   \
    F(hipMalloc3DArray, "hip_4.2", (void **, const hipChannelFormatDesc *, hipExtent, unsigned flags))      \
    F(hipArrayCreate, "hip_4.2", (void **, const HIP_ARRAY_DESCRIPTOR *))                                   \
    F(hipArray3DCreate, "hip_4.2", (void **, const HIP_ARRAY3D_DESCRIPTOR *))                               \
    F(hipMallocMipmappedArray, "hip_4.2",                                                                   \
      (void **, const hipChannelFormatDesc *, hipExtent, unsigned levels, unsigned flags))                  \
    F(hipMipmappedArrayCreate, "hip_4.2", (void **, HIP_ARRAY3D_DESCRIPTOR *, unsigned levels))             \
    F(hipFree, "hip_4.2", (void *))                                                                         \
    F(hipFreeAsync, "hip_5.1", (void *, void *stream))                                                      \
    F(hipMemRelease, "hip_5.1", (void *))                                                                   \
    F(hipFreeArray, "hip_4.2", (void *))                                                                    \
    F(hipArrayDestroy, "hip_4.3", (void *))                                                                 \
    F(hipFreeMipmappedArray, "hip_4.2", (void *))                                                           \
    F(hipMipmappedArrayDestroy, "hip_4.2", (void *))                                                        \
    F(hipMemGetInfo, "hip_4.2", (size_t *, size_t *))                                                       \
    F(hipDeviceTotalMem, "hip_4.2", (size_t *, int device))                                                 \
    F(hipDeviceGetAttribute, "hip_4.2", (int *, int attribute, int device))                                 \
    F(hipGetDeviceProperties, "hip_4.2", (void *, int device))                                              \
    F(hipGetDevicePropertiesR0600, "hip_6.0", (void *, int device))                                         \
    F(hipGetDevicePropertiesR0000, "hip_4.2", (void *, int device))                                         \
    F(hipSetDevice, "hip_4.2", (int))                                                                       \
    F(hipGetLastError, "hip_4.2", (void))                                                                   \
    F(hipStreamCreate, "hip_4.2", (void **))                                                                \
    F(hipStreamBeginCapture, "hip_4.3", (void *stream, int mode))                                           \
    F(hipStreamEndCapture, "hip_4.3", (void *stream, void **graph))                                         \
    F(hipStreamSynchronize, "hip_4.2", (void *stream))                                                      \
    F(hipDeviceGetDefaultMemPool, "hip_5.1", (void **, int device))                                         \
    F(hipMemPoolCreate, "hip_5.1", (void **, const hipMemPoolProps *))                                      \
    F(hipMemPoolSetAttribute, "hip_5.1", (void *pool, int attribute, void *value))                          \
    F(hipMemPoolTrimTo, "hip_5.1", (void *pool, size_t keep))                                               \
    F(hipMemPoolDestroy, "hip_5.1", (void *pool))                                                           \
    F(hipDeviceSynchronize, "hip_4.2", (void))                                                              \
    F(hipDeviceReset, "hip_4.2", (void))                                                                    \
    F(hipHostFree, "hip_4.2", (void *))                                                                     \
    F(hipMemAddressReserve, "hip_5.1", (void **, size_t, size_t alignment, void *wish, unsigned long long)) \
    F(hipMemMap, "hip_5.1", (void *, size_t, size_t offset, void *handle, unsigned long long flags))        \
    F(hipMemUnmap, "hip_5.1", (void *, size_t))                                                             \
    F(hipMemRetainAllocationHandle, "hip_5.1", (void **, void *address))                                    \
    F(hipMemExportToShareableHandle, "hip_5.1", (void *, void *handle, int kind, unsigned long long flags)) \
    F(hipMemImportFromShareableHandle, "hip_5.1", (void **, void *shareable, int kind))                     \
    F(hipRuntimeGetVersion, "hip_4.2", (int *))

/* Every function; NULL: the runtime has none of that name. */
extern struct hip {
#define F(name, version, parameters) int(*name) parameters;
    HIP_FUNCTIONS(F)
#undef F
} hip;

/* A function, which must be there. */
#define HIP(name) (hip.name ? hip.name : (missing(#name), hip.name))
void missing(const char *name);

/* Fills `hip`, in one of the ways that client.c lists. */
void find_functions(const char *way);
