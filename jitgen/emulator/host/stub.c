/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime without a GPU: the functions that the host part of a compiled kernel calls.
 *
 * Each stands for the compiler's function of the same length of name that begins otherwise:
 * _emulLaunchKernelEx for _cudaLaunchKernelEx (see symbols.py). So a process may hold the real
 * runtime library as well, and neither answers for the other. A launch is handed to Python while
 * its arguments still lie on the host part's stack. Not thread-safe: runtime.py holds a lock.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_ATTRIBUTES = 256,
    NUM_KERNEL_ATTRIBUTES = 16,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_SUPPORTED = 801
};

/* What a kernel's handle points to. It lives for ever: a host part asks once for each. */
struct kernel {
    int attributes[NUM_KERNEL_ATTRIBUTES]; /* by cudaFuncAttribute; -1: not set */
    char name[];
};

/* The arguments of cuTensorMapEncodeTiled; launch.py reads them. */
struct tensor_map_request {
    void *map, *address;
    const uint64_t *sizes, *strides;
    const uint32_t *box, *element_strides;
    int type, rank, interleave, swizzle, l2_promotion, fill;
};

typedef void (*launch_callback)(const void *config, const char *kernel, void **arguments,
                                const int *attributes);
typedef int (*tensor_map_callback)(const struct tensor_map_request *);

static launch_callback on_launch;
static tensor_map_callback on_tensor_map;
static int asserted_error;
static int attributes[NUM_ATTRIBUTES];
static char is_set[NUM_ATTRIBUTES];
static int unknown_attribute = -1;

/* of libtvm_ffi, which is in every process that calls a kernel */
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

/* --- what runtime.py calls ---------------------------------------------------------------- */

void emulator_stub_begin(launch_callback launch, tensor_map_callback tensor_map)
{
    on_launch = launch;
    on_tensor_map = tensor_map;
    unknown_attribute = -1;
    asserted_error = 0;
    memset(is_set, 0, sizeof is_set);
}

void emulator_stub_set_attribute(int attribute, int value)
{
    attributes[attribute] = value;
    is_set[attribute] = 1;
}

/* The first attribute of the device that was asked for and not set; -1: there was none. */
int emulator_stub_unknown_attribute(void)
{
    return unknown_attribute;
}

/* The first error where the host part insisted on success; 0: there was none. */
int emulator_stub_asserted_error(void)
{
    return asserted_error;
}

/* --- what kernels call -------------------------------------------------------------------- */

int _emulGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int _emulSetDevice(int device)
{
    (void)device;
    return 0;
}

int _emulDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    if (attribute < 0 || attribute >= NUM_ATTRIBUTES || !is_set[attribute]) {
        if (unknown_attribute < 0)
            unknown_attribute = attribute;
        return INVALID_VALUE;
    }
    *value = attributes[attribute];
    return 0;
}

int _emKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    const struct kernel *of = kernel;
    int is_known = attribute >= 0 && attribute < NUM_KERNEL_ATTRIBUTES;
    (void)device;
    *value = is_known && of->attributes[attribute] >= 0 ? of->attributes[attribute] : 0;
    return 0;
}

int _emulFuncSetAttribute(void *kernel, int attribute, int value)
{
    struct kernel *of = kernel;
    if (attribute < 0 || attribute >= NUM_KERNEL_ATTRIBUTES)
        return INVALID_VALUE;
    of->attributes[attribute] = value;
    return 0;
}

int _emulKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device)
{
    (void)device;
    return _emulFuncSetAttribute(kernel, attribute, value);
}

int _emTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                            const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                            const uint32_t *element_strides, int interleave, int swizzle,
                            int l2_promotion, int fill)
{
    struct tensor_map_request request = {map, address, sizes, strides, box, element_strides, type,
                                         (int)rank, interleave, swizzle, l2_promotion, fill};
    return on_tensor_map ? on_tensor_map(&request) : NOT_SUPPORTED;
}

int _emulLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d,
                         void *e, unsigned f)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = (void *)code;
    return 0;
}

int _emulLibraryGetKernel(void **kernel, void *library, const char *name)
{
    struct kernel *new = malloc(sizeof *new + strlen(name) + 1);
    (void)library;
    if (!new)
        return OUT_OF_MEMORY;
    memset(new->attributes, -1, sizeof new->attributes);
    strcpy(new->name, name);
    *kernel = new;
    return 0;
}

int _emulLaunchKernelEx(const void *config, void *kernel, void **arguments)
{
    const struct kernel *of = kernel;
    if (!on_launch)
        return NOT_SUPPORTED;
    on_launch(config, of->name, arguments, of->attributes);
    return 0;
}

/* The real one ends the process; this one lets launch.py say what failed. */
void emul_dialect_assert_success(int error)
{
    if (!asserted_error)
        asserted_error = error;
}

int EmulDSLRT_TVMFFISetRaisedCudaError(int error)
{
    char message[64];
    snprintf(message, sizeof message, "the emulated runtime returned error %d", error);
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
    return -1;
}

/* Called at each launch: the first time it loads the device code, for the one device there is. */
int emul_dialect_init_library_once(void **library, int (*initialise)(void **),
                                   int (*load)(void **, int), void *raise)
{
    void *found = NULL;
    int error;
    (void)raise;
    if (*library)
        return 0;
    error = initialise(&found);
    if (!error && load)
        error = load(&found, 0);
    if (!error)
        *library = found;
    return error;
}

int emul_dialect_unload_library_once(void *library)
{
    (void)library;
    return 0;
}
