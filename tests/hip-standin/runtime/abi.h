/* The part of HIP's binary interface that the stand-in offers.
 *
 * Values and layouts are those of hip/hip_runtime_api.h and hip/driver_types.h, ROCm 5.2 to 7.2; where
 * releases differ it is said. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int hipError_t;
enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNotInitialized = 3,
    hipErrorInvalidDevicePointer = 17,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidContext = 201,
    hipErrorInvalidHandle = 400,
    hipErrorIllegalState = 401,
    hipErrorNotFound = 500,
    hipErrorNotReady = 600,
    hipErrorContextIsDestroyed = 709,
    hipErrorNotSupported = 801,
    hipErrorStreamCaptureUnsupported = 900,
    hipErrorUnknown = 999,
};

typedef int hipDevice_t;
typedef struct {
    char bytes[16];
} hipUUID;
typedef struct stream *hipStream_t;
typedef struct event *hipEvent_t;
typedef struct graph *hipGraph_t;
typedef struct context *hipCtx_t;
typedef struct array *hipArray_t;
typedef struct array *hipMipmappedArray_t;
typedef struct pool *hipMemPool_t;
typedef struct allocation *hipMemGenericAllocationHandle_t;

typedef struct {
    void *ptr;
    size_t pitch, xsize, ysize;
} hipPitchedPtr;

typedef struct {
    size_t width, height, depth;
} hipExtent;

typedef struct {
    int x, y, z, w; /* bits of each channel */
    int f;
} hipChannelFormatDesc;

typedef struct {
    size_t Width, Height;
    unsigned Format; /* 1, 8: one byte a channel; 2, 9, 16: two; 3, 10, 32: four */
    unsigned NumChannels;
} HIP_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    unsigned Format;
    unsigned NumChannels;
    unsigned Flags;
} HIP_ARRAY3D_DESCRIPTOR;

enum { hipMemLocationTypeDevice = 1, hipMemLocationTypeHost = 2 /* since 7 */ };

typedef struct {
    int type;
    int id;
} hipMemLocation;

typedef struct {
    int type; /* 1: pinned */
    int requestedHandleType;
    hipMemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
    } allocFlags;
} hipMemAllocationProp;

typedef struct {
    hipMemLocation location;
    int flags;
} hipMemAccessDesc;

typedef struct {
    int allocType;   /* 1: pinned */
    int handleTypes; /* 1: POSIX file descriptor */
    hipMemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize; /* 0: no bound */
    unsigned char reserved[56];
} hipMemPoolProps;

/* hipMemPoolAttr */
enum {
    PoolReuseFollowEventDependencies = 1,
    PoolReuseAllowOpportunistic,
    PoolReuseAllowInternalDependencies,
    PoolReleaseThreshold,
    PoolReservedMemCurrent,
    PoolReservedMemHigh,
    PoolUsedMemCurrent,
    PoolUsedMemHigh,
};

typedef struct {
    char reserved[64];
} hipIpcMemHandle_t;

typedef struct {
    int type;
    int device;
    void *devicePointer, *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;

/* hipDeviceProp_t as hipGetDeviceProperties@hip_4.2 and ...R0000 fill it in: 792 bytes. */
typedef struct {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int clockRate, memoryClockRate, memoryBusWidth;
    size_t totalConstMem;
    int major, minor, multiProcessorCount, l2CacheSize, maxThreadsPerMultiProcessor;
    int computeMode, clockInstructionRate;
    unsigned arch;
    int concurrentKernels, pciDomainID, pciBusID, pciDeviceID;
    size_t maxSharedMemoryPerMultiProcessor;
    int isMultiGpuBoard, canMapHostMemory, gcnArch;
    char gcnArchName[256];
    char rest[140];
} hipDeviceProp_tR0000;

/* hipDeviceProp_t since ROCm 6.0: 1,472 bytes. Fields that the stand-in leaves 0 are not named. */
typedef struct {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem;    /* at 288 */
    size_t sharedMemPerBlock; /* at 296 */
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount; /* the latter at 388 */
    char between[192];
    int pciBusID, pciDeviceID, pciDomainID; /* from 584 */
    char more[564];
    char gcnArchName[256]; /* at 1160 */
    char rest[56];
} hipDeviceProp_tR0600;

_Static_assert(sizeof(hipDeviceProp_tR0000) == 792, "R0000");
_Static_assert(offsetof(hipDeviceProp_tR0000, totalGlobalMem) == 256, "R0000");
_Static_assert(offsetof(hipDeviceProp_tR0000, multiProcessorCount) == 336, "R0000");
_Static_assert(offsetof(hipDeviceProp_tR0000, pciBusID) == 368, "R0000");
_Static_assert(offsetof(hipDeviceProp_tR0000, gcnArchName) == 396, "R0000");
_Static_assert(sizeof(hipDeviceProp_tR0600) == 1472, "R0600");
_Static_assert(offsetof(hipDeviceProp_tR0600, totalGlobalMem) == 288, "R0600");
_Static_assert(offsetof(hipDeviceProp_tR0600, multiProcessorCount) == 388, "R0600");
_Static_assert(offsetof(hipDeviceProp_tR0600, pciBusID) == 584, "R0600");
_Static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == 1160, "R0600");

/* hipDeviceAttribute_t: the few that are answered. */
enum {
    AttributeMultiprocessorCount = 63,
    AttributePciBusId = 67,
    AttributePciDeviceId = 68,
    AttributePciDomainId = 69, /* since 6; 5.x stops at other numbers and is not asked */
    AttributeTexturePitchAlignment = 81,
    AttributeTotalGlobalMem = 84, /* since 6; at most INT_MAX */
    AttributeWarpSize = 87,
    AttributePhysicalMultiProcessorCount = 10015,
};
