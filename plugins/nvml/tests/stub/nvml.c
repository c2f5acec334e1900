/* A stand-in for NVIDIA's libnvidia-ml.so.1, written from the documentation of its functions, structures and constants in the NVML API reference.
 *
 * In: the file `nvml.txt` beside the library with lines `key value`, read at each call, so that a test changes it. `gpu0.power 250000` is the
 * answer of nvmlDeviceGetPowerUsage for the first GPU; `gpu0.power.error 15` makes it an error. A value that is missing is NVML_ERROR_NOT_SUPPORTED.
 * Out: the functions that the plug-in calls. With -DOLD those that drivers before 510 lack are missing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };

typedef struct { char key[32]; int epoch; } *nvmlDevice_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned long long bar1Total, bar1Free, bar1Used; } nvmlBAR1Memory_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef struct { unsigned pid; unsigned long long timeStamp; unsigned smUtil, memUtil, encUtil, decUtil; } nvmlProcessUtilizationSample_t;
typedef union { double dVal; int siVal; unsigned uiVal; unsigned long ulVal; unsigned long long ullVal; long long sllVal; unsigned short usVal; } nvmlValue_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; unsigned valueType; nvmlReturn_t nvmlReturn; nvmlValue_t value; } nvmlFieldValue_t;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    unsigned gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

static int epoch, initialized;
static struct { char key[32]; int epoch; } devices[64];

static FILE *values(void) {
    Dl_info info;
    char path[4096];
    if (!dladdr((void *)values, &info)) return NULL;
    ssize_t length = readlink(info.dli_fname, path, sizeof path - 16);
    if (length < 0) length = snprintf(path, sizeof path - 16, "%s", info.dli_fname);
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "nvml.txt");
    return fopen(path, "r");
}

/* The value of a key, or 0 without one. */
static int text(const char *key, char *out, size_t size) {
    FILE *file = values();
    char line[512];
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        size_t length = strlen(key);
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int number(const char *key, unsigned long long *out) {
    char value[128];
    if (!text(key, value, sizeof value)) return 0;
    *out = strtoull(value, NULL, 0);
    return 1;
}

/* The state of a device, then the error of this quantity. */
static nvmlReturn_t state(nvmlDevice_t device, const char *quantity) {
    char key[128];
    unsigned long long error;
    if (!initialized || device->epoch != epoch) return UNINITIALIZED;
    snprintf(key, sizeof key, "%.4s.lost", device->key);
    if (number(key, &error) && error) return GPU_IS_LOST;
    snprintf(key, sizeof key, "%s.%s.error", device->key, quantity);
    return number(key, &error) ? (nvmlReturn_t)error : SUCCESS;
}

static nvmlReturn_t wide(nvmlDevice_t device, const char *quantity, unsigned long long *out) {
    char key[128];
    nvmlReturn_t result = state(device, quantity);
    if (result) return result;
    snprintf(key, sizeof key, "%s.%s", device->key, quantity);
    return number(key, out) ? SUCCESS : NOT_SUPPORTED;
}

static nvmlReturn_t narrow(nvmlDevice_t device, const char *quantity, unsigned *out) {
    unsigned long long value;
    nvmlReturn_t result = wide(device, quantity, &value);
    if (!result) *out = (unsigned)value;
    return result;
}

static nvmlReturn_t indexed(nvmlDevice_t device, const char *quantity, unsigned index, unsigned *out) {
    char name[64];
    snprintf(name, sizeof name, "%s.%u", quantity, index);
    return narrow(device, name, out);
}

static nvmlReturn_t find(const char *key, nvmlDevice_t *out) {
    for (int i = 0; i < 64; i++) {
        if (!devices[i].key[0]) snprintf(devices[i].key, sizeof devices[i].key, "%s", key);
        if (strcmp(devices[i].key, key) == 0) {
            devices[i].epoch = epoch;
            *out = (nvmlDevice_t)&devices[i];
            return SUCCESS;
        }
    }
    return INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlInit_v2(void) {
    unsigned long long error;
    if (number("init.error", &error) && error) return (nvmlReturn_t)error;
    epoch++;
    initialized++;
    return SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned long long value = 0;
    if (!initialized) return UNINITIALIZED;
    number("gpus", &value);
    *count = (unsigned)value;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    char key[32];
    snprintf(key, sizeof key, "gpu%u", index);
    nvmlReturn_t result = find(key, device);
    return result ? result : state(*device, "handle");
}

static nvmlReturn_t copy(nvmlDevice_t device, const char *quantity, char *out, unsigned length) {
    char key[128];
    nvmlReturn_t result = state(device, quantity);
    if (result) return result;
    snprintf(key, sizeof key, "%s.%s", device->key, quantity);
    return text(key, out, length) ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length) { return copy(d, "uuid", uuid, length); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length) { return copy(d, "name", name, length); }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) { return narrow(d, "minor", minor); }

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    nvmlReturn_t result = narrow(d, "bus", &pci->bus);
    return result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *out) {
    nvmlReturn_t result = narrow(d, "utilization", &out->gpu);
    return result ? result : narrow(d, "utilization.memory", &out->memory);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t d, unsigned *out, unsigned *period) {
    *period = 167000;
    return narrow(d, "encoder", out);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t d, unsigned *out, unsigned *period) {
    *period = 167000;
    return narrow(d, "decoder", out);
}

static nvmlReturn_t memory(nvmlDevice_t d, nvmlMemory_t *out) {
    nvmlReturn_t result = wide(d, "memory.total", &out->total);
    if (!result) result = wide(d, "memory.free", &out->free);
    return result ? result : wide(d, "memory.used", &out->used);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *out) { return memory(d, out); }

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *out) {
    nvmlReturn_t result = wide(d, "bar1.total", &out->bar1Total);
    if (!result) result = wide(d, "bar1.free", &out->bar1Free);
    return result ? result : wide(d, "bar1.used", &out->bar1Used);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned type, unsigned *out) { return indexed(d, "clock", type, out); }
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, unsigned type, unsigned *out) { return indexed(d, "clock_max", type, out); }
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *out) { return wide(d, "reasons", out); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *out) { return narrow(d, "power", out); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *out) { return narrow(d, "power_limit", out); }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *out) { return wide(d, "energy", out); }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *out) { return indexed(d, "temperature", sensor, out); }
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t d, unsigned *out) { return narrow(d, "pstate", out); }
nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t d, unsigned fan, unsigned *out) { return indexed(d, "fan", fan, out); }
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t d, unsigned *out) { return narrow(d, "replays", out); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned *out) { return narrow(d, "link_generation", out); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned *out) { return narrow(d, "link_width", out); }
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, unsigned counter, unsigned *out) { return indexed(d, "throughput", counter, out); }
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *out) { return indexed(d, "nvlink", link, out); }

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned link, unsigned counter, unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "nvlink.%u.errors.%u", link, counter);
    return wide(d, name, out);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned error, unsigned counter, unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "ecc.%u.%u", error, counter);
    return wide(d, name, out);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, unsigned error, unsigned counter, unsigned location, unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "ecc.%u.%u.%u", error, counter, location);
    return wide(d, name, out);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
    nvmlReturn_t result = indexed(d, "rows", 0, corrected);
    if (!result) result = indexed(d, "rows", 1, uncorrected);
    if (!result) result = indexed(d, "rows", 2, pending);
    return result ? result : indexed(d, "rows", 3, failure);
}

/* `gpu0.field.<id>[.<scope>] <type> <value>`; the types are those of nvmlValueType_t. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *fields) {
    nvmlReturn_t result = state(d, "fields");
    if (result) return result;
    for (int i = 0; i < count; i++) {
        char key[128], value[128];
        if (fields[i].scopeId) snprintf(key, sizeof key, "%s.field.%u.%u", d->key, fields[i].fieldId, fields[i].scopeId);
        else snprintf(key, sizeof key, "%s.field.%u", d->key, fields[i].fieldId);
        fields[i].nvmlReturn = NOT_SUPPORTED;
        if (!text(key, value, sizeof value)) continue;
        char *rest;
        fields[i].nvmlReturn = SUCCESS;
        fields[i].valueType = (unsigned)strtoul(value, &rest, 10);
        unsigned long long bits = strtoull(rest, NULL, 0);
        memset(&fields[i].value, 0xff, sizeof fields[i].value);
        switch (fields[i].valueType) {
        case 1: fields[i].value.uiVal = (unsigned)bits; break;
        case 5: fields[i].value.siVal = (int)bits; break;
        case 6: fields[i].value.usVal = (unsigned short)bits; break;
        default: fields[i].value.ullVal = bits;
        }
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending) {
    *pending = 0;
    return narrow(d, "mig", current);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count) { return narrow(d, "mig.max", count); }

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *out) {
    char key[64], value[128];
    nvmlReturn_t result = state(d, "mig");
    if (result) return result;
    snprintf(key, sizeof key, "%s.mig%u.uuid", d->key, index);
    if (!text(key, value, sizeof value)) return NOT_FOUND;
    snprintf(key, sizeof key, "%s.mig%u", d->key, index);
    return find(key, out);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id) { return narrow(d, "gi", id); }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id) { return narrow(d, "ci", id); }

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *out) {
    memset(out, 0, sizeof *out);
    return narrow(d, "multiprocessors", &out->multiprocessorCount);
}

/* `gpu0.processes <pid>:<bytes>:<gi>:<ci> …` */
static nvmlReturn_t processes(nvmlDevice_t d, const char *quantity, unsigned *count, nvmlProcessInfo_t *infos) {
    char value[256] = "";
    nvmlReturn_t result = copy(d, quantity, value, sizeof value);
    if (result) return result;
    unsigned used = 0;
    for (char *word = strtok(value, " "); word; word = strtok(NULL, " ")) {
        if (used == *count) return INSUFFICIENT_SIZE;
        nvmlProcessInfo_t *info = &infos[used++];
        if (sscanf(word, "%u:%llu:%u:%u", &info->pid, &info->usedGpuMemory, &info->gpuInstanceId, &info->computeInstanceId) == 2)
            info->gpuInstanceId = info->computeInstanceId = 0xffffffff;
    }
    *count = used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(d, "processes", count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(d, "graphics", count, infos);
}

/* `gpu0.samples <pid>:<time>:<sm> …` */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long since) {
    char value[256] = "";
    nvmlReturn_t result = copy(d, "samples", value, sizeof value);
    if (result) return result;
    unsigned used = 0;
    for (char *word = strtok(value, " "); word; word = strtok(NULL, " ")) {
        nvmlProcessUtilizationSample_t sample = {0};
        sscanf(word, "%u:%llu:%u", &sample.pid, &sample.timeStamp, &sample.smUtil);
        if (sample.timeStamp <= since) continue;
        if (used == *count) return INSUFFICIENT_SIZE;
        out[used++] = sample;
    }
    *count = used;
    return used ? SUCCESS : NOT_FOUND;
}

#ifndef OLD
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *out) {
    nvmlMemory_t first;
    if (out->version != (sizeof *out | 2 << 24)) return VERSION_MISMATCH;
    nvmlReturn_t result = memory(d, &first);
    if (result) return result;
    out->total = first.total;
    out->free = first.free;
    out->used = first.used;
    return wide(d, "memory.reserved", &out->reserved);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *out) { return wide(d, "reasons", out); }

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(d, "processes", count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(d, "graphics", count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(d, "mps", count, infos);
}
#endif
