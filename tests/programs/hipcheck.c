// Does a HIP runtime work here? One line a check, `ok` or `BAD`; exits 1 if anything is bad.
//
//   hipcheck [CHECK...]     memory copy pitch array managed async vmm ipc info; all if none is named
#include "hip.h"
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 5 * 1024 * 1024 + 37 }; // no multiple of a page, a word or a tile
static unsigned char *sent, *received;
static int bad, version;

static void check(const char *what, int good) {
  printf("  %-44s %s\n", what, good ? "ok" : "BAD");
  fflush(stdout);
  bad += !good;
}

static int succeeds_(const char *call, hipError_t error) {
  if (error) printf("  %s -> %d\n", call, error);
  return error == hipSuccess;
}
#define SUCCEEDS(call) succeeds_(#call, call)

static int all_are(const unsigned char *bytes, int value, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != value) return 0;
  return 1;
}

// Host to device and back, whole and in part, device to device, and a fill.
static void copies(unsigned char *a, unsigned char *b, const char *memory) {
  char what[80];
  memset(received, 0, BYTES);
  SUCCEEDS(HIP(hipMemcpy)(a, sent, BYTES, hipMemcpyHostToDevice));
  SUCCEEDS(HIP(hipMemcpy)(received, a, BYTES, hipMemcpyDeviceToHost));
  snprintf(what, sizeof what, "%s: H2D, D2H", memory);
  check(what, !memcmp(sent, received, BYTES));

  memset(received, 0, BYTES);
  SUCCEEDS(HIP(hipMemcpy)(a + 3, sent + 5, 100, hipMemcpyHostToDevice));
  SUCCEEDS(HIP(hipMemcpy)(received, a + 3, 100, hipMemcpyDeviceToHost));
  snprintf(what, sizeof what, "%s: 100 unaligned bytes", memory);
  check(what, !memcmp(sent + 5, received, 100));

  memset(received, 0, BYTES);
  SUCCEEDS(HIP(hipMemcpy)(a, sent, BYTES, hipMemcpyHostToDevice));
  SUCCEEDS(HIP(hipMemcpy)(b, a, BYTES, hipMemcpyDeviceToDevice));
  SUCCEEDS(HIP(hipDeviceSynchronize)());
  SUCCEEDS(HIP(hipMemcpy)(received, b, BYTES, hipMemcpyDeviceToHost));
  snprintf(what, sizeof what, "%s: D2D", memory);
  check(what, !memcmp(sent, received, BYTES));

  SUCCEEDS(HIP(hipMemset)(b, 0x5a, BYTES));
  SUCCEEDS(HIP(hipMemcpy)(received, b, BYTES, hipMemcpyDeviceToHost));
  snprintf(what, sizeof what, "%s: memset", memory);
  check(what, all_are(received, 0x5a, BYTES));
}

static void check_memory(void) {
  size_t before = 0, during = 0, after = 0, total = 0;
  void *block = NULL, *beyond = NULL;
  check("hipMemGetInfo", SUCCEEDS(HIP(hipMemGetInfo)(&before, &total)) && before <= total && total);
  check("hipMalloc 64 MiB", SUCCEEDS(HIP(hipMalloc)(&block, 64 << 20)) && block);
  HIP(hipMemGetInfo)(&during, &total);
  check("free went down by 64 MiB", before - during >= 64 << 20 && before - during <= 70 << 20);
  check("hipMalloc beyond the board is refused",
        HIP(hipMalloc)(&beyond, total + (1 << 30)) == hipErrorOutOfMemory);
  check("hipMalloc near 2^63 is refused",
        HIP(hipMalloc)(&beyond, (size_t)1 << 63) == hipErrorOutOfMemory);
  check("hipFree", SUCCEEDS(HIP(hipFree)(block)));
  check("a second hipFree of it is refused", HIP(hipFree)(block) == hipErrorInvalidValue);
  check("hipFree(NULL)", SUCCEEDS(HIP(hipFree)(NULL)));
  HIP(hipMemGetInfo)(&after, &total);
  check("free is back", after >= during + (64 << 20));
  HIP(hipGetLastError)();
}

static void check_copy(void) {
  unsigned char *a = NULL, *b = NULL, *pinned = NULL;
  hipStream_t stream = NULL;
  check("hipMalloc", SUCCEEDS(HIP(hipMalloc)((void **)&a, BYTES)) &&
                         SUCCEEDS(HIP(hipMalloc)((void **)&b, BYTES)));
  if (!a || !b) return;
  copies(a, b, "hipMalloc");
  SUCCEEDS(HIP(hipMemsetD32)(a, 0x01020304, 1000));
  SUCCEEDS(HIP(hipMemcpy)(received, a, 4000, hipMemcpyDeviceToHost));
  check("hipMemsetD32", received[3996] == 4 && received[3999] == 1);
  check("hipHostMalloc", SUCCEEDS(HIP(hipHostMalloc)((void **)&pinned, BYTES, 0)));
  check("hipStreamCreate", SUCCEEDS(HIP(hipStreamCreate)(&stream)));
  if (pinned) {
    memcpy(pinned, sent, BYTES);
    SUCCEEDS(HIP(hipMemcpyAsync)(a, pinned, BYTES, hipMemcpyHostToDevice, stream));
    SUCCEEDS(HIP(hipStreamSynchronize)(stream));
    memset(pinned, 0, BYTES);
    SUCCEEDS(HIP(hipMemcpyAsync)(pinned, a, BYTES, hipMemcpyDeviceToHost, stream));
    SUCCEEDS(HIP(hipStreamSynchronize)(stream));
    check("pinned memory: async H2D, D2H", !memcmp(pinned, sent, BYTES));
    check("hipHostFree", SUCCEEDS(HIP(hipHostFree)(pinned)));
  }
  check("hipStreamDestroy", SUCCEEDS(HIP(hipStreamDestroy)(stream)));
  check("hipFree of both", SUCCEEDS(HIP(hipFree)(a)) && SUCCEEDS(HIP(hipFree)(b)));
}

static void check_pitch(void) {
  enum { WIDTH = 1000, HEIGHT = 50 };
  void *block = NULL;
  size_t pitch = 0;
  int made = SUCCEEDS(HIP(hipMallocPitch)(&block, &pitch, WIDTH, HEIGHT));
  check("hipMallocPitch", made && pitch >= WIDTH);
  if (made) {
    memset(received, 0, WIDTH * HEIGHT);
    SUCCEEDS(HIP(hipMemcpy2D)(block, pitch, sent, WIDTH, WIDTH, HEIGHT, hipMemcpyHostToDevice));
    SUCCEEDS(HIP(hipMemcpy2D)(received, WIDTH, block, pitch, WIDTH, HEIGHT, hipMemcpyDeviceToHost));
    check("hipMemcpy2D", !memcmp(sent, received, WIDTH * HEIGHT));
    SUCCEEDS(HIP(hipMemset2D)(block, pitch, 0x77, WIDTH, HEIGHT));
    SUCCEEDS(HIP(hipMemcpy2D)(received, WIDTH, block, pitch, WIDTH, HEIGHT, hipMemcpyDeviceToHost));
    check("hipMemset2D", all_are(received, 0x77, WIDTH * HEIGHT));
    check("hipFree of it", SUCCEEDS(HIP(hipFree)(block)));
  }
  hipPitchedPtr cube = {0};
  made = SUCCEEDS(HIP(hipMalloc3D)(&cube, (hipExtent){WIDTH, HEIGHT, 4}));
  check("hipMalloc3D", made && cube.ptr && cube.pitch >= WIDTH);
  if (made) check("hipFree of it", SUCCEEDS(HIP(hipFree)(cube.ptr)));
}

static void check_array(void) {
  hipArray_t array = NULL;
  hipChannelFormatDesc one_float = {32, 0, 0, 0, 2};
  int made = SUCCEEDS(HIP(hipMallocArray)(&array, &one_float, 640, 480, 0));
  check("hipMallocArray", made && array);
  if (made) check("hipFreeArray", SUCCEEDS(HIP(hipFreeArray)(array)));
}

static void check_managed(void) {
  unsigned char *managed = NULL, *device = NULL;
  int made = SUCCEEDS(HIP(hipMallocManaged)((void **)&managed, BYTES, hipMemAttachGlobal));
  check("hipMallocManaged", made);
  if (!made) return;
  memcpy(managed, sent, BYTES);
  SUCCEEDS(HIP(hipMalloc)((void **)&device, BYTES));
  SUCCEEDS(HIP(hipMemcpy)(device, managed, BYTES, hipMemcpyDefault));
  memset(received, 0, BYTES);
  SUCCEEDS(HIP(hipMemcpy)(received, device, BYTES, hipMemcpyDeviceToHost));
  check("managed to device", !memcmp(sent, received, BYTES));
  SUCCEEDS(HIP(hipMemset)(managed, 9, BYTES));
  SUCCEEDS(HIP(hipDeviceSynchronize)());
  check("memset of managed memory", all_are(managed, 9, BYTES));
  check("hipFree of both", SUCCEEDS(HIP(hipFree)(managed)) && SUCCEEDS(HIP(hipFree)(device)));
}

static void check_async(void) {
  hipStream_t stream = NULL;
  unsigned char *a = NULL, *b = NULL;
  SUCCEEDS(HIP(hipStreamCreate)(&stream));
  int made = SUCCEEDS(HIP(hipMallocAsync)((void **)&a, BYTES, stream)) &&
             SUCCEEDS(HIP(hipMallocAsync)((void **)&b, BYTES, stream)) &&
             SUCCEEDS(HIP(hipStreamSynchronize)(stream));
  check("hipMallocAsync", made && a && b);
  if (made) {
    copies(a, b, "hipMallocAsync");
    check("hipFreeAsync", SUCCEEDS(HIP(hipFreeAsync)(a, stream)) &&
                              SUCCEEDS(HIP(hipFreeAsync)(b, stream)) &&
                              SUCCEEDS(HIP(hipStreamSynchronize)(stream)));
  }
  // The stream stays: HIP 5.2 loops for ever in hipStreamDestroy when the stream's pool has had
  // memory returned.
}

// Prints `unsupported` for a runtime which says itself that it has no virtual memory.
static void check_vmm(void) {
  hipMemAllocationProp properties = {.type = 1, .requested_handle_type = 1, .location = {1, 0}};
  hipMemAccessDesc access = {{1, 0}, 3};
  hipMemGenericAllocationHandle_t first = NULL, second = NULL, imported = NULL;
  size_t granularity = 0, total = 0, before = 0, after = 0;
  unsigned char *address = NULL;
  HIP(hipMemGetAllocationGranularity)(&granularity, &properties, 1);
  size_t bytes = granularity ? (BYTES + granularity - 1) / granularity * granularity : 8 << 20;
  HIP(hipMemGetInfo)(&before, &total);
  hipError_t error = HIP(hipMemCreate)(&first, bytes, &properties, 0);
  if (error == hipErrorNotSupported || (error && version < 60000000)) {
    printf("  virtual memory: unsupported (hipMemCreate -> %d)\n", error);
    HIP(hipGetLastError)();
    return;
  }
  check("hipMemCreate", !error && SUCCEEDS(HIP(hipMemCreate)(&second, bytes, &properties, 0)));
  if (!first || !second) return;
  check("hipMemAddressReserve",
        SUCCEEDS(HIP(hipMemAddressReserve)((void **)&address, 2 * bytes, 0, NULL, 0)));
  check("hipMemMap", SUCCEEDS(HIP(hipMemMap)(address, bytes, 0, first, 0)) &&
                         SUCCEEDS(HIP(hipMemMap)(address + bytes, bytes, 0, second, 0)));
  check("hipMemSetAccess", SUCCEEDS(HIP(hipMemSetAccess)(address, 2 * bytes, &access, 1)));
  copies(address, address + bytes, "virtual memory");
  int fd = -1;
  check("hipMemExportToShareableHandle",
        SUCCEEDS(HIP(hipMemExportToShareableHandle)(&fd, first, 1, 0)) && fd > 2);
  if (fd > 2) {
    // A pointer to the descriptor up to HIP 6, the descriptor itself from 7.
    void *shareable = version < 70000000 ? (void *)&fd : (void *)(intptr_t)fd;
    check("hipMemImportFromShareableHandle",
          SUCCEEDS(HIP(hipMemImportFromShareableHandle)(&imported, shareable, 1)));
    close(fd);
    if (imported) SUCCEEDS(HIP(hipMemRelease)(imported));
  }
  check("hipMemUnmap", SUCCEEDS(HIP(hipMemUnmap)(address, bytes)) &&
                           SUCCEEDS(HIP(hipMemUnmap)(address + bytes, bytes)));
  check("hipMemRelease",
        SUCCEEDS(HIP(hipMemRelease)(first)) && SUCCEEDS(HIP(hipMemRelease)(second)));
  check("hipMemAddressFree", SUCCEEDS(HIP(hipMemAddressFree)(address, 2 * bytes)));
  HIP(hipMemGetInfo)(&after, &total);
  // HIP 6.4 keeps an imported handle until the process ends, and what is free is told in steps of
  // 2 MiB.
  size_t kept = version < 70000000 ? bytes : 0;
  check("memory is back", after + kept + (4 << 20) >= before);
}

// The other side of check_ipc, in a process of its own: reads the block and writes another value.
static int ipc_child(int from_parent) {
  hipIpcMemHandle_t handle;
  unsigned char *block = NULL;
  if (read(from_parent, &handle, sizeof handle) != sizeof handle) return 3;
  // hipIpcMemLazyEnablePeerAccess is 0 in HIP 5 and 1 since.
  hipError_t error = HIP(hipIpcOpenMemHandle)((void **)&block, handle, version >= 60000000);
  if (error) {
    printf("  in the child: hipIpcOpenMemHandle -> %d\n", error);
    return 4;
  }
  SUCCEEDS(HIP(hipMemcpy)(received, block, BYTES, hipMemcpyDeviceToHost));
  int same = !memcmp(sent, received, BYTES);
  SUCCEEDS(HIP(hipMemset)(block, 0x33, BYTES));
  SUCCEEDS(HIP(hipDeviceSynchronize)());
  SUCCEEDS(HIP(hipIpcCloseMemHandle)(block));
  return same ? 0 : 5;
}

static void check_ipc(void) {
  unsigned char *block = NULL;
  hipIpcMemHandle_t handle = {0};
  int to_child[2], status = -1;
  char descriptor[16];
  SUCCEEDS(HIP(hipMalloc)((void **)&block, BYTES));
  SUCCEEDS(HIP(hipMemcpy)(block, sent, BYTES, hipMemcpyHostToDevice));
  hipError_t error = HIP(hipIpcGetMemHandle)(&handle, block);
  if (error && version < 70000000) {
    // Before 7 this takes an ioctl that only the DKMS driver has.
    printf("  memory of another process: unsupported (hipIpcGetMemHandle -> %d)\n", error);
    HIP(hipGetLastError)();
    return;
  }
  check("hipIpcGetMemHandle", !error);
  if (error || pipe(to_child)) return;
  snprintf(descriptor, sizeof descriptor, "%d", to_child[0]);
  pid_t child = fork();
  if (!child) {
    execl("/proc/self/exe", "hipcheck", "ipc-child", descriptor, (char *)NULL);
    _exit(9);
  }
  check("the handle was sent", write(to_child[1], &handle, sizeof handle) == sizeof handle);
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 4 && version < 60000000) {
    // 5.7 says success in hipIpcGetMemHandle though the ioctl failed.
    printf("  memory of another process: unsupported (hipIpcOpenMemHandle failed)\n");
  } else {
    check("the child opened and read the block", status == 0);
    memset(received, 0, BYTES);
    SUCCEEDS(HIP(hipMemcpy)(received, block, BYTES, hipMemcpyDeviceToHost));
    check("what the child wrote is seen", all_are(received, 0x33, BYTES));
  }
  SUCCEEDS(HIP(hipFree)(block));
}

static void check_info(void) {
  enum { CU_COUNT_5 = 63, WARP_SIZE_5 = 87 }; // hipDeviceAttribute_t: the same since 5.0
  int devices = 0;
  check("hipGetDeviceCount", SUCCEEDS(HIP(hipGetDeviceCount)(&devices)) && devices > 0);
  for (int device = 0; device < devices; device++) {
    char name[128] = "", bus[32] = "";
    int cus = 0, warp = 0;
    size_t available = 0, total = 0, whole = 0;
    SUCCEEDS(HIP(hipSetDevice)(device));
    SUCCEEDS(HIP(hipDeviceGetName)(name, sizeof name, device));
    SUCCEEDS(HIP(hipDeviceGetPCIBusId)(bus, sizeof bus, device));
    SUCCEEDS(HIP(hipDeviceGetAttribute)(&cus, CU_COUNT_5, device));
    SUCCEEDS(HIP(hipDeviceGetAttribute)(&warp, WARP_SIZE_5, device));
    SUCCEEDS(HIP(hipMemGetInfo)(&available, &total));
    SUCCEEDS(HIP(hipDeviceTotalMem)(&whole, device));
    printf("  device %d: name='%s' bus=%s multiprocessors=%d warp=%d total=%zu whole=%zu\n", device, name, bus,
           cus, warp, total, whole);
  }
}

int main(int count, char **arguments) {
  static const struct { const char *name; void (*run)(void); } checks[] = {
      {"info", check_info}, {"memory", check_memory}, {"copy", check_copy},
      {"pitch", check_pitch}, {"array", check_array}, {"managed", check_managed},
      {"async", check_async}, {"vmm", check_vmm}, {"ipc", check_ipc}};
  hip_open();
  sent = malloc(BYTES);
  received = malloc(BYTES);
  if (!sent || !received) return 2;
  for (size_t i = 0; i < BYTES; i++) sent[i] = (unsigned char)(i * 7 + i / 251 + 3);
  hipError_t error = HIP(hipInit)(0);
  HIP(hipRuntimeGetVersion)(&version);
  if (error) {
    printf("hipInit -> %d\n", error);
    return 2;
  }
  if (count == 3 && !strcmp(arguments[1], "ipc-child")) return ipc_child(atoi(arguments[2]));
  printf("runtime %d\n", version);
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    int wanted = count == 1;
    for (int k = 1; k < count; k++) wanted |= !strcmp(arguments[k], checks[i].name);
    if (!wanted) continue;
    printf(" %s\n", checks[i].name);
    checks[i].run();
  }
  printf("bad: %d\n", bad);
  return bad != 0;
}
