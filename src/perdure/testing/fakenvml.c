/* A fake libnvidia-ml.so.1: serves scripted cards through the real nvidia-ml-py.
 *
 * The scene is a text file named by PERDURE_FAKE_NVML, written by perdure.testing.nvml, one word and its values a
 * line. It is read again whenever it changes. Without it NVML answers "library not found", as pynvml itself says
 * where there is none.
 *
 * A curve moves on by one value at each utilisation query of its card, or every `tick` seconds. The signatures are
 * those of nvml.h, of which this has only what Perdure and its doctor ask for.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define API __attribute__((visibility("default"))) int
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, DRIVER = 9 };
enum { NO_LIBRARY = 12, NO_FUNCTION = 13, LOST = 15, MISMATCH = 18 };
enum { CARDS = 16, SLICES = 8, POINTS = 4096, PROCESSES = 32, WORDS = 32 };
#define ABSENT 0xFFFFFFFFFFFFFFFFULL

typedef unsigned long long u64;
typedef struct { unsigned count; double at[POINTS]; } Curve;
typedef struct { char field[32]; int code; } Failure;
typedef struct { unsigned card; int slice; } Handle;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct {
    char name[96], uuid[96];
    int major, minor, mig;
    u64 memory_mb;
    double limit_w;
    Curve busy, used, temperature, power, throttle;
    unsigned processes, failures, slices, samples;
    struct { unsigned pid; long long mb; } process[PROCESSES];
    Failure failure[WORDS];
    u64 slice_mb[SLICES];
    long lost_after;
} Card;
static struct {
    char driver[64], missing[WORDS][64];
    int cuda, init, missings;
    double tick, start;
    unsigned cards;
    Card card[CARDS];
} scene;

static Handle handles[CARDS][SLICES + 1]; /* the last of a row is the card itself */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static struct stat known;
static int have_scene, users;

static void read_curve(Curve *curve, char *text) {
    curve->count = 0;
    for (char *word = strtok(text, " \n"); word && curve->count < POINTS; word = strtok(NULL, " \n"))
        curve->at[curve->count++] = atof(word);
}

static void read_card_line(Card *c, const char *word, char *rest) {
    if (!strcmp(word, "name")) snprintf(c->name, sizeof c->name, "%s", rest);
    else if (!strcmp(word, "uuid")) snprintf(c->uuid, sizeof c->uuid, "%s", rest);
    else if (!strcmp(word, "memory")) c->memory_mb = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "capability")) sscanf(rest, "%d %d", &c->major, &c->minor);
    else if (!strcmp(word, "limit")) c->limit_w = atof(rest);
    else if (!strcmp(word, "busy")) read_curve(&c->busy, rest);
    else if (!strcmp(word, "used")) read_curve(&c->used, rest);
    else if (!strcmp(word, "temperature")) read_curve(&c->temperature, rest);
    else if (!strcmp(word, "power")) read_curve(&c->power, rest);
    else if (!strcmp(word, "throttle")) read_curve(&c->throttle, rest);
    else if (!strcmp(word, "lost")) c->lost_after = atol(rest);
    else if (!strcmp(word, "mig")) c->mig = 1;
    else if (!strcmp(word, "slice") && c->slices < SLICES) c->slice_mb[c->slices++] = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "process") && c->processes < PROCESSES) {
        sscanf(rest, "%u %lld", &c->process[c->processes].pid, &c->process[c->processes].mb);
        c->processes++;
    } else if (!strcmp(word, "error") && c->failures < WORDS) {
        sscanf(rest, "%31s %d", c->failure[c->failures].field, &c->failure[c->failures].code);
        c->failures++;
    }
}

static void read_line(char *line) {
    char *rest = strchr(line, ' ');
    line[strcspn(line, "\n")] = 0;
    if (rest) *rest++ = 0;
    else rest = line + strlen(line);
    if (!strcmp(line, "driver")) snprintf(scene.driver, sizeof scene.driver, "%s", rest);
    else if (!strcmp(line, "cuda")) scene.cuda = atoi(rest);
    else if (!strcmp(line, "init")) scene.init = atoi(rest);
    else if (!strcmp(line, "tick")) scene.tick = atof(rest);
    else if (!strcmp(line, "start")) scene.start = atof(rest);
    else if (!strcmp(line, "missing") && scene.missings < WORDS)
        snprintf(scene.missing[scene.missings++], sizeof scene.missing[0], "%s", rest);
    else if (!strcmp(line, "card") && scene.cards < CARDS) scene.card[scene.cards++].lost_after = -1;
    else if (scene.cards) read_card_line(&scene.card[scene.cards - 1], line, rest);
}

static void refresh(void) {
    static char line[65536];
    const char *path = getenv("PERDURE_FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) { have_scene = 0; return; }
    if (have_scene && now.st_ino == known.st_ino && now.st_mtim.tv_sec == known.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == known.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) { have_scene = 0; return; }
    memset(&scene, 0, sizeof scene);
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    known = now;
    have_scene = 1;
}

static void leave(int *held) { (void)held; pthread_mutex_unlock(&gate); }
static int enter(void) { pthread_mutex_lock(&gate); refresh(); return 0; }
#define ENTER __attribute__((cleanup(leave))) int held = enter(); (void)held

/* What a query of the whole system answers before it has looked: 0, or why it cannot. */
static int system_state(const char *function) {
    if (!users) return UNINITIALIZED;
    if (!have_scene) return NO_LIBRARY;
    for (int i = 0; i < scene.missings; i++)
        if (!strcmp(scene.missing[i], function)) return NO_FUNCTION;
    return OK;
}

static int is_lost(const Card *c) {
    return c->lost_after == 0 || (c->lost_after > 0 && (long)c->samples > c->lost_after);
}

/* The same for a card, with what was asked of it. */
static int card_state(const char *function, const void *device, const char *field, Card **card, int *slice) {
    const Handle *handle = device;
    int state = system_state(function);
    if (state) return state;
    if (!handle || handle->card >= scene.cards) return INVALID;
    *card = &scene.card[handle->card];
    *slice = handle->slice;
    if (is_lost(*card)) return LOST;
    for (unsigned i = 0; i < (*card)->failures; i++)
        if (!strcmp((*card)->failure[i].field, field)) return (*card)->failure[i].code;
    return OK;
}
#define CARD(field) \
    ENTER; Card *c; int slice; int state = card_state(__func__, device, field, &c, &slice); if (state) return state

static double value(const Card *c, const Curve *curve) {
    unsigned i = c->samples ? c->samples - 1 : 0;
    if (scene.tick > 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double past = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - scene.start;
        i = past > 0 ? (unsigned)(past / scene.tick) : 0;
    }
    if (!curve->count) return 0;
    return curve->at[i < curve->count ? i : curve->count - 1];
}

static void name_slice(char *text, size_t length, unsigned card, unsigned slice) {
    snprintf(text, length, "MIG-%08x-5a5a-5a5a-5a5a-%012x", card, slice);
}

API nvmlInitWithFlags(unsigned flags) {
    ENTER;
    (void)flags;
    int state = have_scene ? scene.init : NO_LIBRARY;
    if (!state) users++;
    return state;
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) {
    ENTER;
    if (!users) return UNINITIALIZED;
    users--;
    return OK;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    switch (code) {
        case OK: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_FOUND: return "Not Found";
        case DRIVER: return "Driver Not Loaded";
        case NO_LIBRARY: return "NVML Shared Library Not Found";
        case NO_FUNCTION: return "Function Not Found";
        case LOST: return "GPU is lost";
        case MISMATCH: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *text, unsigned length) {
    ENTER;
    int state = system_state(__func__);
    if (!state) snprintf(text, length, "%s", scene.driver);
    return state;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER;
    *version = scene.cuda;
    return system_state(__func__);
}
API nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER;
    *count = scene.cards;
    return system_state(__func__);
}
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    ENTER;
    int state = system_state(__func__), slice;
    Card *c;
    if (state) return state;
    if (index >= scene.cards) return INVALID;
    handles[index][SLICES] = (Handle){index, -1};
    *device = &handles[index][SLICES];
    return card_state(__func__, *device, "handle", &c, &slice);
}
API nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    ENTER;
    int state = system_state(__func__), slice;
    char part[96];
    Card *c;
    for (unsigned card = 0; !state && card < scene.cards; card++) {
        *device = &handles[card][SLICES];
        handles[card][SLICES] = (Handle){card, -1};
        if (!strcmp(scene.card[card].uuid, uuid)) return card_state(__func__, *device, "handle", &c, &slice);
        for (unsigned i = 0; i < scene.card[card].slices; i++) {
            name_slice(part, sizeof part, card, i);
            *device = &handles[card][i];
            handles[card][i] = (Handle){card, (int)i};
            if (!strcmp(part, uuid)) return OK;
        }
    }
    return state ? state : NOT_FOUND;
}
API nvmlDeviceGetIndex(void *device, unsigned *index) {
    CARD("index");
    *index = (unsigned)(c - scene.card);
    return OK;
}
API nvmlDeviceGetName(void *device, char *text, unsigned length) {
    CARD("name");
    if (slice < 0) snprintf(text, length, "%s", c->name);
    else snprintf(text, length, "%s MIG %llugb", c->name, c->slice_mb[slice] / 1024);
    return OK;
}
API nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    CARD("uuid");
    if (slice < 0) snprintf(text, length, "%s", c->uuid);
    else name_slice(text, length, (unsigned)(c - scene.card), (unsigned)slice);
    return OK;
}
API nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    CARD("memory");
    memory->total = (slice < 0 ? c->memory_mb : c->slice_mb[slice]) << 20;
    memory->used = (u64)(value(c, &c->used) * 1048576.0);
    memory->free = memory->total - memory->used;
    return OK;
}
API nvmlDeviceGetUtilizationRates(void *device, Rates *rates) {
    CARD("utilization");
    c->samples++;
    if (is_lost(c)) return LOST;
    if (c->mig) return NOT_SUPPORTED;
    rates->gpu = (unsigned)value(c, &c->busy);
    rates->memory = rates->gpu / 2;
    return OK;
}
API nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    CARD("capability");
    *major = c->major;
    *minor = c->minor;
    return OK;
}
API nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    CARD("temperature");
    (void)sensor;
    *celsius = (unsigned)value(c, &c->temperature);
    return OK;
}
API nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatt) {
    CARD("power");
    *milliwatt = (unsigned)(value(c, &c->power) * 1000);
    return OK;
}
API nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatt) {
    CARD("limit");
    *milliwatt = (unsigned)(c->limit_w * 1000);
    return OK;
}
API nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) {
    CARD("throttle");
    *reasons = (u64)value(c, &c->throttle);
    return OK;
}
API nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *reasons) {
    CARD("throttle");
    *reasons = (u64)value(c, &c->throttle);
    return OK;
}

typedef struct { unsigned pid; u64 used; unsigned instance, compute; } Process;
static int processes(const Card *c, unsigned *count, Process *list) {
    if (*count < c->processes) {
        *count = c->processes;
        return SMALL;
    }
    *count = c->processes;
    for (unsigned i = 0; i < c->processes; i++) {
        long long mb = c->process[i].mb;
        list[i] = (Process){c->process[i].pid, mb < 0 ? ABSENT : (u64)mb << 20, 0xFFFFFFFFu, 0xFFFFFFFFu};
    }
    return OK;
}
API nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *list) {
    CARD("processes");
    return processes(c, count, list);
}
API nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, Process *list) {
    CARD("processes");
    return processes(c, count, list);
}

API nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    CARD("mig");
    if (c->major < 8) return NOT_SUPPORTED;
    *current = *pending = (unsigned)c->mig;
    return OK;
}
API nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    CARD("mig");
    *count = 7;
    return OK;
}
API nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
    CARD("mig");
    if (index >= c->slices) return NOT_FOUND;
    unsigned card = (unsigned)(c - scene.card);
    handles[card][index] = (Handle){card, (int)index};
    *part = &handles[card][index];
    return OK;
}
API nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    CARD("mig");
    if (slice < 0) return INVALID;
    *id = (unsigned)slice + 7;
    return OK;
}
API nvmlDeviceGetComputeInstanceId(void *device, unsigned *id) {
    CARD("mig");
    if (slice < 0) return INVALID;
    *id = 0;
    return OK;
}
