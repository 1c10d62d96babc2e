// The memory commands of hipsh: the name of a HIP function, then its arguments.
//
//   hipMallocPitch a 1000 50         `ok pitch 1024`: the pointer is kept under the name `a`
//   hipMallocAsync b 4096 s          `error 2`: on the stream that is kept under `s`
//   hipFreeAsync a s                 `ok`
//
// A place for an output is a name to keep it under, or `null`: NULL is given instead of a place. A handle or
// pointer that is given to a function is a name, `null`, or a number. Sizes are decimal, hex or `max`
// (2^64 - 1).
//
// The reply is `ok` or `error N`, then what is worth knowing:
//   null       the output is NULL (an error that leaves the output alone adds nothing)
//   written    an error wrote something else to the output
//   pitch P    the pitch of a success; after an error `pitch-written` if it changed
//   WORD N     what a query answered (`address NAME`: where a kept pointer points)
// A function that this runtime has not got answers `absent`.
#pragma once
#include "hip.h"

static void **slot(const char *name);

// What outputs hold before a call.
#define UNTOUCHED_POINTER ((void *)(uintptr_t)0xa5a5a5a5a5a5a5a5)
#define UNTOUCHED_SIZE ((size_t)0xa5a5a5a5a5a5a5a5)

enum { MOST_WORDS = 16 };

static int is_null(const char *word) { return !strcmp(word, "null"); }

static size_t size(const char *word) {
  return strcmp(word, "max") ? strtoull(word, NULL, 0) : (size_t)-1;
}

static int number(const char *word) { return (int)strtol(word, NULL, 0); }

// A pointer or handle that was kept, or by its number.
static void *kept_as(const char *word) {
  if (is_null(word)) return NULL;
  if (word[0] >= '0' && word[0] <= '9') return (void *)strtoull(word, NULL, 0);
  return *slot(word);
}

// An output: where the function is to write, and what came of it.
static void *output;
static void **place(const char *word) {
  output = UNTOUCHED_POINTER;
  return is_null(word) ? NULL : &output;
}

static void tell_error(hipError_t error) {
  if (error) printf("error %d", error);
  else printf("ok");
}

// The reply to a call that gives a pointer or a handle, which is kept if it is one.
static void tell_output(hipError_t error, const char *name) {
  int untouched = output == UNTOUCHED_POINTER;
  tell_error(error);
  if (!untouched && !output) printf(" null");
  if (!untouched && output && error) printf(" written");
  if (untouched && !error && !is_null(name)) printf(" untouched");
  if (!untouched && !error && !is_null(name)) *slot(name) = output;
}

static size_t pitch;
static size_t *place_of_pitch(const char *name) {
  pitch = UNTOUCHED_SIZE;
  // `no-pitch`: the pointer has a place, the pitch has none.
  return is_null(name) || !strcmp(name, "no-pitch") ? NULL : &pitch;
}

static void tell_pitch(hipError_t error) {
  if (pitch == UNTOUCHED_SIZE) return;
  if (error) printf(" pitch-written");
  else printf(" pitch %zu", pitch);
}

static hipExtent extent(char **word) { return (hipExtent){size(word[0]), size(word[1]), size(word[2])}; }

// Bits of the four channels and their kind: 0 signed, 1 unsigned, 2 float. `null`: no format.
static hipChannelFormatDesc *format(char **word) {
  static hipChannelFormatDesc made;
  if (is_null(word[0])) return NULL;
  made = (hipChannelFormatDesc){number(word[0]), number(word[1]), number(word[2]), number(word[3]), number(word[4])};
  return &made;
}

static hipMemAllocationProp *allocation(int type, int id) {
  static hipMemAllocationProp made;
  made = (hipMemAllocationProp){.type = 1, .requested_handle_type = 1, .location = {type, id}};
  return &made;
}

// ---- allocating ----

static void do_hipMalloc(char **word) {
  tell_output(HIP(hipMalloc)(place(word[1]), size(word[2])), word[1]);
}
static void do_hipExtMallocWithFlags(char **word) {
  tell_output(HIP(hipExtMallocWithFlags)(place(word[1]), size(word[2]), (unsigned)size(word[3])), word[1]);
}
static void do_hipMallocManaged(char **word) {
  tell_output(HIP(hipMallocManaged)(place(word[1]), size(word[2]), (unsigned)size(word[3])), word[1]);
}
static void do_hipHostMalloc(char **word) {
  tell_output(HIP(hipHostMalloc)(place(word[1]), size(word[2]), (unsigned)size(word[3])), word[1]);
}
static void do_hipMallocAsync(char **word) {
  tell_output(HIP(hipMallocAsync)(place(word[1]), size(word[2]), kept_as(word[3])), word[1]);
}
static void do_hipMallocFromPoolAsync(char **word) {
  tell_output(HIP(hipMallocFromPoolAsync)(place(word[1]), size(word[2]), kept_as(word[3]), kept_as(word[4])), word[1]);
}
// hipMemCreate NAME BYTES LOCATION-TYPE DEVICE; type 1: a device, 2: the host; `null`: no properties
static void do_hipMemCreate(char **word) {
  hipMemAllocationProp *properties = is_null(word[3]) ? NULL : allocation(number(word[3]), number(word[4]));
  tell_output(HIP(hipMemCreate)(place(word[1]), size(word[2]), properties, 0), word[1]);
}
static void do_hipMallocPitch(char **word) {
  size_t *to = place_of_pitch(word[1]);
  hipError_t error = HIP(hipMallocPitch)(place(word[1]), to, size(word[2]), size(word[3]));
  tell_output(error, word[1]);
  tell_pitch(error);
}
static void do_hipMemAllocPitch(char **word) {
  size_t *to = place_of_pitch(word[1]);
  hipError_t error =
      HIP(hipMemAllocPitch)(place(word[1]), to, size(word[2]), size(word[3]), (unsigned)size(word[4]));
  tell_output(error, word[1]);
  tell_pitch(error);
}
static void do_hipMalloc3D(char **word) {
  hipPitchedPtr block = {UNTOUCHED_POINTER, UNTOUCHED_SIZE, UNTOUCHED_SIZE, UNTOUCHED_SIZE};
  hipError_t error = HIP(hipMalloc3D)(is_null(word[1]) ? NULL : &block, extent(word + 2));
  output = block.ptr;
  pitch = block.pitch;
  tell_output(error, word[1]);
  tell_pitch(error);
}
// hipMallocArray NAME X Y Z W KIND WIDTH HEIGHT FLAGS
static void do_hipMallocArray(char **word) {
  hipError_t error = HIP(hipMallocArray)(place(word[1]), format(word + 2), size(word[7]), size(word[8]),
                                         (unsigned)size(word[9]));
  tell_output(error, word[1]);
}
// hipMalloc3DArray NAME X Y Z W KIND WIDTH HEIGHT DEPTH FLAGS
static void do_hipMalloc3DArray(char **word) {
  hipError_t error =
      HIP(hipMalloc3DArray)(place(word[1]), format(word + 2), extent(word + 7), (unsigned)size(word[10]));
  tell_output(error, word[1]);
}
// hipArrayCreate NAME FORMAT CHANNELS WIDTH HEIGHT; format `null`: no descriptor
static void do_hipArrayCreate(char **word) {
  HIP_ARRAY_DESCRIPTOR what = {size(word[4]), size(word[5]), (unsigned)size(word[2]), (unsigned)size(word[3])};
  tell_output(HIP(hipArrayCreate)(place(word[1]), is_null(word[2]) ? NULL : &what), word[1]);
}
static HIP_ARRAY3D_DESCRIPTOR *descriptor(char **word) {
  static HIP_ARRAY3D_DESCRIPTOR made;
  if (is_null(word[0])) return NULL;
  made = (HIP_ARRAY3D_DESCRIPTOR){size(word[2]), size(word[3]), size(word[4]), (unsigned)size(word[0]),
                                  (unsigned)size(word[1]), (unsigned)size(word[5])};
  return &made;
}
// hipArray3DCreate NAME FORMAT CHANNELS WIDTH HEIGHT DEPTH FLAGS
static void do_hipArray3DCreate(char **word) {
  tell_output(HIP(hipArray3DCreate)(place(word[1]), descriptor(word + 2)), word[1]);
}
// hipMallocMipmappedArray NAME X Y Z W KIND WIDTH HEIGHT DEPTH LEVELS FLAGS
static void do_hipMallocMipmappedArray(char **word) {
  hipError_t error = HIP(hipMallocMipmappedArray)(place(word[1]), format(word + 2), extent(word + 7),
                                                  (unsigned)size(word[10]), (unsigned)size(word[11]));
  tell_output(error, word[1]);
}
// hipMipmappedArrayCreate NAME FORMAT CHANNELS WIDTH HEIGHT DEPTH FLAGS LEVELS
static void do_hipMipmappedArrayCreate(char **word) {
  tell_output(HIP(hipMipmappedArrayCreate)(place(word[1]), descriptor(word + 2), (unsigned)size(word[8])), word[1]);
}

// ---- freeing ----

static void do_hipFree(char **word) { tell_error(HIP(hipFree)(kept_as(word[1]))); }
static void do_hipFreeAsync(char **word) { tell_error(HIP(hipFreeAsync)(kept_as(word[1]), kept_as(word[2]))); }
static void do_hipHostFree(char **word) { tell_error(HIP(hipHostFree)(kept_as(word[1]))); }
static void do_hipMemRelease(char **word) { tell_error(HIP(hipMemRelease)(kept_as(word[1]))); }
static void do_hipFreeArray(char **word) { tell_error(HIP(hipFreeArray)(kept_as(word[1]))); }
static void do_hipArrayDestroy(char **word) { tell_error(HIP(hipArrayDestroy)(kept_as(word[1]))); }
static void do_hipFreeMipmappedArray(char **word) { tell_error(HIP(hipFreeMipmappedArray)(kept_as(word[1]))); }
static void do_hipMipmappedArrayDestroy(char **word) { tell_error(HIP(hipMipmappedArrayDestroy)(kept_as(word[1]))); }

// ---- virtual memory ----

static void do_hipMemAddressReserve(char **word) {
  tell_output(HIP(hipMemAddressReserve)(place(word[1]), size(word[2]), 0, NULL, 0), word[1]);
}
static void do_hipMemAddressFree(char **word) { tell_error(HIP(hipMemAddressFree)(kept_as(word[1]), size(word[2]))); }
// hipMemMap ADDRESS AT BYTES HANDLE: at that offset of the reserved range
static void do_hipMemMap(char **word) {
  char *to = (char *)kept_as(word[1]) + size(word[2]);
  tell_error(HIP(hipMemMap)(to, size(word[3]), 0, kept_as(word[4]), 0));
}
static void do_hipMemUnmap(char **word) {
  tell_error(HIP(hipMemUnmap)((char *)kept_as(word[1]) + size(word[2]), size(word[3])));
}
// hipMemSetAccess ADDRESS AT BYTES DEVICE: to read and write
static void do_hipMemSetAccess(char **word) {
  hipMemAccessDesc access = {{1, number(word[4])}, 3};
  tell_error(HIP(hipMemSetAccess)((char *)kept_as(word[1]) + size(word[2]), size(word[3]), &access, 1));
}
static void do_hipMemRetainAllocationHandle(char **word) {
  tell_output(HIP(hipMemRetainAllocationHandle)(place(word[1]), kept_as(word[2])), word[1]);
}
// hipMemGetAllocationGranularity DEVICE: the recommended one
static void do_hipMemGetAllocationGranularity(char **word) {
  size_t bytes = 0;
  hipError_t error = HIP(hipMemGetAllocationGranularity)(&bytes, allocation(1, number(word[1])), 1);
  tell_error(error);
  if (!error) printf(" granularity %zu", bytes);
}

// ---- pools and streams ----

static void do_hipDeviceGetDefaultMemPool(char **word) {
  tell_output(HIP(hipDeviceGetDefaultMemPool)(place(word[1]), number(word[2])), word[1]);
}
static void do_hipDeviceGetMemPool(char **word) {
  tell_output(HIP(hipDeviceGetMemPool)(place(word[1]), number(word[2])), word[1]);
}
static void do_hipDeviceSetMemPool(char **word) {
  tell_error(HIP(hipDeviceSetMemPool)(number(word[1]), kept_as(word[2])));
}
// hipMemPoolCreate NAME DEVICE
static void do_hipMemPoolCreate(char **word) {
  hipMemPoolProps properties = {.allocation_type = 1, .location = {1, number(word[2])}};
  tell_output(HIP(hipMemPoolCreate)(place(word[1]), &properties), word[1]);
}
static void do_hipMemPoolDestroy(char **word) { tell_error(HIP(hipMemPoolDestroy)(kept_as(word[1]))); }
static void do_hipMemPoolTrimTo(char **word) { tell_error(HIP(hipMemPoolTrimTo)(kept_as(word[1]), size(word[2]))); }
// hipMemPoolGetAttribute POOL ATTRIBUTE: 4 threshold, 5 reserved, 6 most reserved, 7 used, 8 most used
static void do_hipMemPoolGetAttribute(char **word) {
  uint64_t value = 0;
  hipError_t error = HIP(hipMemPoolGetAttribute)(kept_as(word[1]), number(word[2]), &value);
  tell_error(error);
  if (!error) printf(" value %llu", (unsigned long long)value);
}
static void do_hipMemPoolSetAttribute(char **word) {
  uint64_t value = size(word[3]);
  tell_error(HIP(hipMemPoolSetAttribute)(kept_as(word[1]), number(word[2]), &value));
}
static void do_hipStreamCreate(char **word) { tell_output(HIP(hipStreamCreate)(place(word[1])), word[1]); }
static void do_hipStreamSynchronize(char **word) { tell_error(HIP(hipStreamSynchronize)(kept_as(word[1]))); }
static void do_hipStreamDestroy(char **word) { tell_error(HIP(hipStreamDestroy)(kept_as(word[1]))); }
static void do_hipStreamGetDevice(char **word) {
  int device = -1;
  hipError_t error = HIP(hipStreamGetDevice)(kept_as(word[1]), &device);
  tell_error(error);
  if (!error) printf(" device %d", device);
}
// hipStreamIsCapturing STREAM: 0 no, 1 yes, 2 no longer valid
static void do_hipStreamIsCapturing(char **word) {
  int status = -1;
  hipError_t error = HIP(hipStreamIsCapturing)(kept_as(word[1]), &status);
  tell_error(error);
  if (!error) printf(" status %d", status);
}
// hipStreamBeginCapture STREAM MODE: 0 global, 1 of the thread, 2 relaxed
static void do_hipStreamBeginCapture(char **word) {
  tell_error(HIP(hipStreamBeginCapture)(kept_as(word[1]), number(word[2])));
}
static void do_hipStreamEndCapture(char **word) {
  tell_output(HIP(hipStreamEndCapture)(kept_as(word[2]), place(word[1])), word[1]);
}
static void do_hipGraphInstantiate(char **word) {
  tell_output(HIP(hipGraphInstantiate)(place(word[1]), kept_as(word[2]), NULL, NULL, 0), word[1]);
}
static void do_hipGraphLaunch(char **word) { tell_error(HIP(hipGraphLaunch)(kept_as(word[1]), kept_as(word[2]))); }
static void do_hipGraphExecDestroy(char **word) { tell_error(HIP(hipGraphExecDestroy)(kept_as(word[1]))); }
static void do_hipGraphDestroy(char **word) { tell_error(HIP(hipGraphDestroy)(kept_as(word[1]))); }

// ---- devices and pointers ----

static void do_hipRuntimeGetVersion(char **word) {
  int version = 0;
  (void)word;
  tell_error(HIP(hipRuntimeGetVersion)(&version));
  printf(" version %d", version);
}
static void do_hipGetDeviceCount(char **word) {
  int count = -1;
  (void)word;
  tell_error(HIP(hipGetDeviceCount)(&count));
  printf(" count %d", count);
}
static void do_hipSetDevice(char **word) { tell_error(HIP(hipSetDevice)(number(word[1]))); }
static void do_hipGetDevice(char **word) {
  int device = -1;
  (void)word;
  tell_error(HIP(hipGetDevice)(&device));
  printf(" device %d", device);
}
static void do_hipDeviceGetPCIBusId(char **word) {
  char id[64] = "";
  hipError_t error = HIP(hipDeviceGetPCIBusId)(id, sizeof id, number(word[1]));
  tell_error(error);
  if (!error) printf(" bus %s", id);
}
static void do_hipDeviceGetUuid(char **word) {
  char uuid[17] = "";
  hipError_t error = HIP(hipDeviceGetUuid)(uuid, number(word[1]));
  tell_error(error);
  if (!error) printf(" uuid %s", uuid);
}
static void do_hipDeviceTotalMem(char **word) {
  size_t total = UNTOUCHED_SIZE;
  hipError_t error = HIP(hipDeviceTotalMem)(is_null(word[2]) ? NULL : &total, number(word[1]));
  tell_error(error);
  if (total != UNTOUCHED_SIZE) printf(" total %zu", total);
}
static void do_hipDeviceSynchronize(char **word) {
  (void)word;
  tell_error(HIP(hipDeviceSynchronize)());
}
static void do_hipDeviceReset(char **word) {
  (void)word;
  tell_error(HIP(hipDeviceReset)());
}
static void do_hipDevicePrimaryCtxReset(char **word) { tell_error(HIP(hipDevicePrimaryCtxReset)(number(word[1]))); }
static void do_hipPointerGetAttributes(char **word) {
  hipPointerAttribute_t is = {.type = -1, .device = -9};
  hipError_t error = HIP(hipPointerGetAttributes)(&is, kept_as(word[1]));
  tell_error(error);
  if (!error) printf(" type %d device %d managed %d", is.type, is.device, is.managed);
}
// hipPointerGetAttribute POINTER ATTRIBUTE: 2 kind of memory, 9 device, 12 size of its range, 17 pool
static void do_hipPointerGetAttribute(char **word) {
  uint64_t value[2] = {0, 0};
  hipError_t error = HIP(hipPointerGetAttribute)(value, number(word[2]), kept_as(word[1]));
  tell_error(error);
  if (!error) printf(" value %llu", (unsigned long long)value[0]);
}
static void do_hipMemGetAddressRange(char **word) {
  void *base = NULL;
  size_t bytes = 0;
  hipError_t error = HIP(hipMemGetAddressRange)(&base, &bytes, kept_as(word[1]));
  tell_error(error);
  if (!error) printf(" bytes %zu", bytes);
}

// Where a kept pointer points.
static void do_address(char **word) { printf("address %llu", (unsigned long long)(uintptr_t)kept_as(word[1])); }

static const struct {
  const char *name;
  void (*run)(char **word);
  int arguments;
} memory_commands[] = {
#define COMMAND(name, arguments) {#name, do_##name, arguments}
    COMMAND(hipMalloc, 2),
    COMMAND(hipExtMallocWithFlags, 3),
    COMMAND(hipMallocManaged, 3),
    COMMAND(hipHostMalloc, 3),
    COMMAND(hipMallocAsync, 3),
    COMMAND(hipMallocFromPoolAsync, 4),
    COMMAND(hipMemCreate, 4),
    COMMAND(hipMallocPitch, 3),
    COMMAND(hipMemAllocPitch, 4),
    COMMAND(hipMalloc3D, 4),
    COMMAND(hipMallocArray, 9),
    COMMAND(hipMalloc3DArray, 10),
    COMMAND(hipArrayCreate, 5),
    COMMAND(hipArray3DCreate, 7),
    COMMAND(hipMallocMipmappedArray, 11),
    COMMAND(hipMipmappedArrayCreate, 8),
    COMMAND(hipFree, 1),
    COMMAND(hipFreeAsync, 2),
    COMMAND(hipHostFree, 1),
    COMMAND(hipMemRelease, 1),
    COMMAND(hipFreeArray, 1),
    COMMAND(hipArrayDestroy, 1),
    COMMAND(hipFreeMipmappedArray, 1),
    COMMAND(hipMipmappedArrayDestroy, 1),
    COMMAND(hipMemAddressReserve, 2),
    COMMAND(hipMemAddressFree, 2),
    COMMAND(hipMemMap, 4),
    COMMAND(hipMemUnmap, 3),
    COMMAND(hipMemSetAccess, 4),
    COMMAND(hipMemRetainAllocationHandle, 2),
    COMMAND(hipMemGetAllocationGranularity, 1),
    COMMAND(hipDeviceGetDefaultMemPool, 2),
    COMMAND(hipDeviceGetMemPool, 2),
    COMMAND(hipDeviceSetMemPool, 2),
    COMMAND(hipMemPoolCreate, 2),
    COMMAND(hipMemPoolDestroy, 1),
    COMMAND(hipMemPoolTrimTo, 2),
    COMMAND(hipMemPoolGetAttribute, 2),
    COMMAND(hipMemPoolSetAttribute, 3),
    COMMAND(hipStreamCreate, 1),
    COMMAND(hipStreamSynchronize, 1),
    COMMAND(hipStreamDestroy, 1),
    COMMAND(hipStreamGetDevice, 1),
    COMMAND(hipStreamIsCapturing, 1),
    COMMAND(hipStreamBeginCapture, 2),
    COMMAND(hipStreamEndCapture, 2),
    COMMAND(hipGraphInstantiate, 2),
    COMMAND(hipGraphLaunch, 2),
    COMMAND(hipGraphExecDestroy, 1),
    COMMAND(hipGraphDestroy, 1),
    COMMAND(hipRuntimeGetVersion, 0),
    COMMAND(hipGetDeviceCount, 0),
    COMMAND(hipSetDevice, 1),
    COMMAND(hipGetDevice, 0),
    COMMAND(hipDeviceGetPCIBusId, 1),
    COMMAND(hipDeviceGetUuid, 1),
    COMMAND(hipDeviceTotalMem, 2),
    COMMAND(hipDeviceSynchronize, 0),
    COMMAND(hipDeviceReset, 0),
    COMMAND(hipDevicePrimaryCtxReset, 1),
    COMMAND(hipPointerGetAttributes, 1),
    COMMAND(hipPointerGetAttribute, 2),
    COMMAND(hipMemGetAddressRange, 1),
    COMMAND(address, 1),
#undef COMMAND
};

// Whether this runtime has the function: a linked program's weak reference may be NULL, and so may a look-up.
static int runtime_has(const char *name) {
  if (!strcmp(name, "address")) return 1;
#define HIP_IS(type, function, parameters) \
  if (!strcmp(name, #function)) return HIP(function) != NULL;
  HIP_FUNCTIONS(HIP_IS)
#undef HIP_IS
  return 0;
}

// Runs a line if it is one of these commands; whether it was.
static int memory_command(const char *line) {
  static char copy[256];
  char *word[MOST_WORDS], *rest;
  int count = 0;
  snprintf(copy, sizeof copy, "%s", line);
  for (char *next = strtok_r(copy, " \n", &rest); next && count < MOST_WORDS; next = strtok_r(NULL, " \n", &rest))
    word[count++] = next;
  for (size_t i = 0; count && i < sizeof memory_commands / sizeof *memory_commands; i++) {
    if (strcmp(word[0], memory_commands[i].name)) continue;
    if (count - 1 != memory_commands[i].arguments)
      printf("%s takes %d arguments", word[0], memory_commands[i].arguments);
    else if (!runtime_has(word[0])) printf("absent");
    else memory_commands[i].run(word);
    putchar('\n');
    return 1;
  }
  return 0;
}
