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
#include <stdio.h>
#include <string.h>

enum { NUM_ATTRIBUTES = 256, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

typedef void (*launch_callback)(const void *config, const char *kernel, void **arguments);

static launch_callback on_launch;
static int attributes[NUM_ATTRIBUTES];
static char is_set[NUM_ATTRIBUTES];
static int unknown_attribute = -1;

/* of libtvm_ffi, which is in every process that calls a kernel */
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

/* --- what runtime.py calls ---------------------------------------------------------------- */

void emulator_stub_begin(launch_callback callback)
{
    on_launch = callback;
    unknown_attribute = -1;
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
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return 0;
}

int _emulFuncSetAttribute(void *kernel, int attribute, int value)
{
    (void)kernel, (void)attribute, (void)value;
    return 0;
}

int _emulKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device)
{
    (void)kernel, (void)attribute, (void)value, (void)device;
    return 0;
}

int _emulLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d,
                         void *e, unsigned f)
{
    (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = (void *)code;
    return 0;
}

/* A kernel's handle is a copy of its name, kept for ever: a host part asks once for each. */
int _emulLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library;
    *kernel = strdup(name);
    return *kernel ? 0 : OUT_OF_MEMORY;
}

int _emulLaunchKernelEx(const void *config, void *kernel, void **arguments)
{
    if (!on_launch)
        return NOT_SUPPORTED;
    on_launch(config, kernel, arguments);
    return 0;
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
