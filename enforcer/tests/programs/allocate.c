/* The client's commands for the functions that allocate and free: each calls one function and prints
 *
 *   COMMAND NAME = ERROR [untouched|null] [OVERRUN] [what else the function wrote]
 *
 * `untouched` and `null` tell of the pointer or handle; `kept` of any other output: it has the value that it had.
 * OVERRUN: something beside an output was written. NAME `nowhere` gives the function no place for its output. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "hip.h"

enum { Fence = 64, Fill = 0x5c };

/* A place for what a function writes, with fences around it. */
struct output {
    unsigned char before[Fence];
    union {
        void *pointer;
        size_t number;
        hipPitchedPtr pitched;
        unsigned char bytes[Fence];
    };
    unsigned char after[Fence];
};

static void prepare(struct output *output)
{
    memset(output, Fill, sizeof *output);
}

static int is_kept(const void *place, size_t size)
{
    const unsigned char *bytes = place;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != Fill)
            return 0;
    return 1;
}

static int is_overrun(const struct output *output, size_t size)
{
    return !is_kept(output->before, Fence) || !is_kept(output->bytes + size, Fence - size + Fence);
}

/* What became of a pointer. `size`: of the whole output, of which it is the first part. */
static void tell(const char *command, const char *name, int error, const struct output *output, size_t size)
{
    int untouched = is_kept(output->bytes, size);
    printf("%s %s = %d%s%s", command, name, error, untouched ? " untouched" : output->pointer ? "" : " null",
           is_overrun(output, size) ? " OVERRUN" : "");
    if (strcmp(name, "nowhere"))
        *block(name) = output->pointer;
}

static void tell_number(const char *what, const size_t *number)
{
    if (is_kept(number, sizeof *number))
        printf(" %s kept", what);
    else
        printf(" %s %zu", what, *number);
}

/* A stream or a pool: a number, or the name of one. */
static void *handle(const char *field)
{
    if (!field)
        return NULL;
    return *field >= '0' && *field <= '9' ? (void *)(uintptr_t)strtoul(field, NULL, 0) : *block(field);
}

static hipExtent extent(char **fields)
{
    size_t width = number(fields), height = number(fields), depth = number(fields);
    return (hipExtent){width, height, depth};
}

/* X.Y.Z.W, or null. */
static hipChannelFormatDesc *channels(char *field)
{
    static hipChannelFormatDesc format;
    if (!strcmp(field, "null"))
        return NULL;
    format = (hipChannelFormatDesc){0};
    sscanf(field, "%d.%d.%d.%d", &format.x, &format.y, &format.z, &format.w);
    return &format;
}

/* FORMAT.CHANNELS, or null. */
static HIP_ARRAY3D_DESCRIPTOR *descriptor(char *field, char **fields, int dimensions)
{
    static HIP_ARRAY3D_DESCRIPTOR made;
    made = (HIP_ARRAY3D_DESCRIPTOR){0};
    made.Width = number(fields);
    made.Height = number(fields);
    made.Depth = dimensions == 3 ? number(fields) : 0;
    if (!strcmp(field, "null"))
        return NULL;
    sscanf(field, "%i.%u", (int *)&made.Format, &made.NumChannels);
    return &made;
}

/* Properties for a device by its number, for the host, or none. */
static hipMemAllocationProp *properties(const char *where)
{
    static hipMemAllocationProp made;
    int host = !strcmp(where, "host");
    made = (hipMemAllocationProp){.type = 1, .location = {host ? 2 : 1, host ? 0 : atoi(where)}};
    return strcmp(where, "null") ? &made : NULL;
}

static int create_pool(void **out, int device)
{
    hipMemPoolProps made = {.allocType = 1, .location = {1, device}};
    return HIP(hipMemPoolCreate)(out, &made);
}

/* Another handle for what one names, by way of a descriptor. */
static int import(void **out, void *what)
{
    int file = -1, version = 0, error = HIP(hipMemExportToShareableHandle)(&file, what, 1, 0);
    if (error)
        return error;
    HIP(hipRuntimeGetVersion)(&version);
    /* 7 takes the descriptor itself. */
    void *shareable = version / 10000000 >= 7 ? (void *)(intptr_t)file : (void *)&file;
    return HIP(hipMemImportFromShareableHandle)(out, shareable, 1);
}

/* Functions with a pointer as their only output. 0: no such command. */
static int one_pointer(const char *command, void **out, char **fields, int *error)
{
    if (!strcmp(command, "malloc")) {
        *error = HIP(hipMalloc)(out, number(fields));
    } else if (!strcmp(command, "ext")) {
        size_t bytes = number(fields);
        *error = HIP(hipExtMallocWithFlags)(out, bytes, (unsigned)number_or(fields, 0));
    } else if (!strcmp(command, "managed")) {
        size_t bytes = number(fields);
        *error = HIP(hipMallocManaged)(out, bytes, (unsigned)number_or(fields, 1));
    } else if (!strcmp(command, "async")) {
        size_t bytes = number(fields);
        *error = HIP(hipMallocAsync)(out, bytes, handle(next(fields)));
    } else if (!strcmp(command, "from_pool")) {
        size_t bytes = number(fields);
        void *pool = handle(next(fields));
        *error = HIP(hipMallocFromPoolAsync)(out, bytes, pool, handle(next(fields)));
    } else if (!strcmp(command, "create")) {
        size_t bytes = number(fields);
        *error = HIP(hipMemCreate)(out, bytes, properties(next(fields)), 0);
    } else if (!strcmp(command, "array")) {
        hipChannelFormatDesc *format = channels(next(fields));
        size_t width = number(fields);
        *error = HIP(hipMallocArray)(out, format, width, number(fields), 0);
    } else if (!strcmp(command, "array3d")) {
        hipChannelFormatDesc *format = channels(next(fields));
        *error = HIP(hipMalloc3DArray)(out, format, extent(fields), 0);
    } else if (!strcmp(command, "mipmapped")) {
        hipChannelFormatDesc *format = channels(next(fields));
        hipExtent size = extent(fields);
        *error = HIP(hipMallocMipmappedArray)(out, format, size, (unsigned)number(fields), 0);
    } else if (!strcmp(command, "array_create")) {
        char *format = next(fields);
        HIP_ARRAY3D_DESCRIPTOR *all = descriptor(format, fields, 2);
        HIP_ARRAY_DESCRIPTOR flat = {0};
        if (all)
            flat = (HIP_ARRAY_DESCRIPTOR){all->Width, all->Height, all->Format, all->NumChannels};
        *error = HIP(hipArrayCreate)(out, all ? &flat : NULL);
    } else if (!strcmp(command, "array3d_create")) {
        char *format = next(fields);
        *error = HIP(hipArray3DCreate)(out, descriptor(format, fields, 3));
    } else if (!strcmp(command, "mipmapped_create")) {
        char *format = next(fields);
        HIP_ARRAY3D_DESCRIPTOR *all = descriptor(format, fields, 3);
        *error = HIP(hipMipmappedArrayCreate)(out, all, (unsigned)number(fields));
    } else if (!strcmp(command, "stream")) {
        *error = HIP(hipStreamCreate)(out);
    } else if (!strcmp(command, "default_pool")) {
        *error = HIP(hipDeviceGetDefaultMemPool)(out, (int)number(fields));
    } else if (!strcmp(command, "pool")) {
        *error = create_pool(out, (int)number(fields));
    } else if (!strcmp(command, "reserve")) {
        *error = HIP(hipMemAddressReserve)(out, number(fields), 0, NULL, 0);
    } else if (!strcmp(command, "retain")) {
        *error = HIP(hipMemRetainAllocationHandle)(out, handle(next(fields)));
    } else if (!strcmp(command, "import")) {
        *error = import(out, handle(next(fields)));
    } else {
        return 0;
    }
    return 1;
}

/* map:RESERVED:AT:BYTES:HANDLE, unmap:RESERVED:AT:BYTES. 0: neither. */
static int on_a_range(const char *command, void *pointer, char **fields, int *error)
{
    int maps = !strcmp(command, "map");
    if (!maps && strcmp(command, "unmap"))
        return 0;
    char *at = (char *)pointer + number(fields);
    size_t bytes = number(fields);
    *error = maps ? HIP(hipMemMap)(at, bytes, 0, handle(next(fields)), 0) : HIP(hipMemUnmap)(at, bytes);
    return 1;
}

/* 0: no such command. */
static int on_a_pool(const char *command, void *pool, char **fields, int *error)
{
    size_t bytes;
    if (!strcmp(command, "keep")) {
        bytes = number(fields);
        *error = HIP(hipMemPoolSetAttribute)(pool, 4, &bytes); /* the release threshold */
    } else if (!strcmp(command, "trim")) {
        *error = HIP(hipMemPoolTrimTo)(pool, number(fields));
    } else if (!strcmp(command, "destroy_pool")) {
        *error = HIP(hipMemPoolDestroy)(pool);
    } else {
        return 0;
    }
    return 1;
}

/* Functions that free, and others whose first argument is what the command names. 0: no such command. */
static int takes_it(const char *command, void *pointer, char **fields, int *error)
{
    void *graph;
    if (!strcmp(command, "free"))
        *error = HIP(hipFree)(pointer);
    else if (!strcmp(command, "free_async"))
        *error = HIP(hipFreeAsync)(pointer, handle(next(fields)));
    else if (!strcmp(command, "release"))
        *error = HIP(hipMemRelease)(pointer);
    else if (!strcmp(command, "free_array"))
        *error = HIP(hipFreeArray)(pointer);
    else if (!strcmp(command, "array_destroy"))
        *error = HIP(hipArrayDestroy)(pointer);
    else if (!strcmp(command, "free_mipmapped"))
        *error = HIP(hipFreeMipmappedArray)(pointer);
    else if (!strcmp(command, "mipmapped_destroy"))
        *error = HIP(hipMipmappedArrayDestroy)(pointer);
    else if (!strcmp(command, "synchronize"))
        *error = HIP(hipStreamSynchronize)(pointer);
    else if (!strcmp(command, "capture"))
        *error = HIP(hipStreamBeginCapture)(pointer, 0);
    else if (!strcmp(command, "end_capture"))
        *error = HIP(hipStreamEndCapture)(pointer, &graph);
    else if (!strcmp(command, "host_free"))
        *error = HIP(hipHostFree)(pointer);
    else if (!strcmp(command, "device_synchronize"))
        *error = HIP(hipDeviceSynchronize)();
    else if (!strcmp(command, "reset"))
        *error = HIP(hipDeviceReset)();
    else
        return on_a_range(command, pointer, fields, error) || on_a_pool(command, pointer, fields, error);
    return 1;
}

/* pitch, mem_pitch; pitch_nowhere, mem_pitch_nowhere: without a place for the pitch. 0: none of these. */
static int pitch(const char *command, const char *name, void **out, struct output *output, char **fields)
{
    int mem = !strncmp(command, "mem_", 4), error;
    const char *which = command + (mem ? 4 : 0);
    struct output length;
    if (strcmp(which, "pitch") && strcmp(which, "pitch_nowhere"))
        return 0;
    prepare(&length);
    size_t *place = strcmp(which, "pitch") ? NULL : &length.number;
    size_t width = number(fields), height = number(fields);
    if (mem)
        error = HIP(hipMemAllocPitch)(out, place, width, height, (unsigned)number_or(fields, 4));
    else
        error = HIP(hipMallocPitch)(out, place, width, height);
    tell(command, name, error, output, sizeof(void *));
    tell_number("pitch", &length.number);
    puts(is_overrun(&length, sizeof(size_t)) ? " OVERRUN" : "");
    return 1;
}

static void malloc3d(const char *command, const char *name, int nowhere, struct output *output, char **fields)
{
    int error = HIP(hipMalloc3D)(nowhere ? NULL : &output->pitched, extent(fields));
    tell(command, name, error, output, sizeof output->pitched);
    tell_number("pitch", &output->pitched.pitch);
    tell_number("xsize", &output->pitched.xsize);
    tell_number("ysize", &output->pitched.ysize);
    puts("");
}

int allocate(const char *command, char *fields)
{
    struct output output;
    int error;
    char *name = next(&fields);
    if (!name)
        return 0;
    int nowhere = !strcmp(name, "nowhere");
    void **out = nowhere ? NULL : &output.pointer;
    prepare(&output);
    if (!strcmp(command, "malloc3d")) {
        malloc3d(command, name, nowhere, &output, &fields);
    } else if (pitch(command, name, out, &output, &fields)) {
    } else if (one_pointer(command, out, &fields, &error)) {
        tell(command, name, error, &output, sizeof(void *));
        puts("");
    } else if (takes_it(command, handle(name), &fields, &error)) {
        printf("%s %s = %d\n", command, name, error);
    } else {
        return 0;
    }
    return 1;
}
