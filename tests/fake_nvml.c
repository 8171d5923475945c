/* A fake libnvidia-ml.so.1 for tests: boards, power sensors and faults come from a text file that may change at any time.
 *
 * Built and driven by tests/nvml_library.py. The file is named by the environment variable OVERLAP_FAKE_NVML and read
 * again when it changes; OVERLAP_FAKE_NVML_LOG names a file to which initialisations, stale handles and violated rules
 * are appended. One setting per line, "#" begins a comment:
 *
 *   driver 580.95.05
 *   init_error 0                      code that nvmlInitWithFlags answers
 *   init_hang 0                       seconds that nvmlInitWithFlags takes
 *   error 0                           code that every call after it answers
 *   missing nvmlGpmSampleGet,...      these calls answer FUNCTION_NOT_FOUND
 *   time T                            every sensor stands still at this time of the clock (-1: it does not); what GPM
 *                                     gives is then the mean of a whole period
 *   devices DIR                       initialising opens DIR/nvidiactl, a handle of board N opens DIR/nvidiaN; shutting down
 *                                     closes them
 *   gpu N KEY VALUE...                board N; the first line for a board creates it
 *     name, uuid, bdf, arch (9), cc (9.0), limit (W), module_limit (W), mig (0|1), mig_uuids LIST, links (18)
 *     wave C_W N_W C_S N_S PHASE_S [I_W I_S]   watts in compute and communication, seconds of each, [watts, seconds idle]
 *     nvlink BYTES_PER_S SHIFT_S        traffic while communication lasts, late by SHIFT_S
 *     sensor NAME WINDOW_S REFRESH_S PHASE_S   NAME is instant, average, usage or energy
 *     noise W                           uniform noise of the sensors, +-W, new with each refresh
 *     supports LIST                     of instant,average,usage,energy,module,utilization,gpm,nvlink,nvlink5,throttle,xid,clocks
 *     module_extra W, energy_extra W    what the module scope, and the energy counter, add (a CPU)
 *     counted_from T                    counters (energy, NVLink, throttling) began at 0 then, as after a reset; -1: long ago
 *     latency_ms X                      of each call
 *     error CODE, open_error CODE, hang SECONDS, crash 1    faults of each call (open_error: of opening only)
 *     fault_calls LIST                  error, hang and crash concern only these calls
 *     entry_error CODE                  what each field answers, the call itself succeeding
 *     power_raw KIND VALUE              u32, i64, u64 or f64: what field 186 holds instead
 *     util_raw N
 *     zeros LIST                        these calls (instant, usage, energy, utilization, nvlink) answer 0, and mean nothing
 *     virtualization N                  nvmlGpuVirtualizationMode_t: 1 passthrough, 2 vGPU
 *     smoothing N                       power smoothing: 1 on, 0 off, -1 (at first) the board has none
 *     xid CODE COUNT                    events so far; a higher count makes new events
 *
 * Fields above 250 are numbered as the driver's branch numbers them: in 575 and before 580.82 those of 580.82 mean others.
 *
 * Time is CLOCK_MONOTONIC, or what overlap_fake_set_time was told last (a process that plays a day in a second); the wave at t is in its place u = (t + PHASE_S) mod period: compute for u < C_S, then
 * communication, then idle. A sensor shows the mean of the WINDOW_S seconds before its last refresh at k * REFRESH_S +
 * PHASE_S, exactly; energy is the integral up to there. This is how part-time power sensors behave (Yang, Adamek, Armour
 * 2024, "Part-time Power Measurements").
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, VERSION = 25 };
enum { INSTANT, AVERAGE, USAGE, ENERGY, SENSORS };
enum { MAX_BOARDS = 16, MAX_XIDS = 8, GRAPHICS = 1, SM = 2, TENSOR = 5, ALL_LINKS = -1 };
static const char *const sensor_names[SENSORS] = {"instant", "average", "usage", "energy"};
static const double SM_COMPUTE = 0.9, SM_COMMUNICATION = 0.12, TENSOR_COMPUTE = 0.6;

typedef struct { double window, refresh, phase; } sensor_t;
typedef struct {
    int present, arch, cc_major, cc_minor, mig, links, error, open_error, crash, entry_error, util_raw, virtualization, smoothing, minor;
    char name[96], uuid[96], mig_uuids[512], bdf[32], supports[256], zeros[256], fault_calls[256], raw_kind[8], raw_value[40];
    double limit, module_limit, module_extra, energy_extra, counted_from, latency_ms, hang, noise;
    double watts[3], seconds[3], phase, nvlink, shift;
    sensor_t sensor[SENSORS];
    int xids, xid_code[MAX_XIDS], xid_count[MAX_XIDS];
} board_t;
typedef struct {
    int init_error, error;
    double init_hang, time;
    char driver[80], missing[512], devices[256];
    board_t board[MAX_BOARDS];
} state_t;

typedef union { double d; u32 ui; u64 ull; i64 sll; } value_t;
typedef struct { u32 field, scope; i64 stamp, latency; int type, ret; value_t value; } field_t;
typedef struct { u32 gpu, memory; } utilization_t;
typedef struct { char legacy[16]; u32 domain, bus, device, pci_id, subsystem; char bus_id[32]; } pci_t;
typedef struct { u32 id; int ret; double value; char *names[3]; } gpm_metric_t;
typedef struct { u32 version, count; void *first, *second; gpm_metric_t metrics[]; } gpm_request_t;
typedef struct { u32 version, supported; } gpm_support_t;
typedef struct { void *device; u64 type, data; u32 gi, ci; } event_t;
typedef struct { int used, delivered[MAX_BOARDS][MAX_XIDS], registered[MAX_BOARDS]; } event_set_t;
typedef struct { double mono; int board; } gpm_sample_t;

static state_t state = {.time = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static double checked = -1;
static int initialized, generation;
static atomic_int in_gpm;
static event_set_t event_sets[4];

static double real(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static double played = -1;
void overlap_fake_set_time(double t) { played = t; }
static double mono(void) { return played >= 0 ? played : state.time >= 0 ? state.time : real(); }
static i64 stamp_us(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }
static void rest(double s) { struct timespec t = {(time_t)s, (long)((s - (time_t)s) * 1e9)}; nanosleep(&t, NULL); }

static void note(const char *format, ...) {
    const char *path = getenv("OVERLAP_FAKE_NVML_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    va_list args;
    va_start(args, format);
    fprintf(f, "%d ", (int)getpid());
    vfprintf(f, format, args);
    fputc('\n', f);
    va_end(args);
    fclose(f);
}

static int listed(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == 0 || p[n] == ',')) return 1;
    return 0;
}

/* ---- the control file -------------------------------------------------------------------------------------------- */

static void board_line(board_t *b, const char *key, const char *rest_of_line) {
    const char *v = rest_of_line;
    if (!b->present) {
        memset(b, 0, sizeof *b);
        b->present = 1;
        b->util_raw = b->smoothing = b->minor = -1;
    }
#define TEXT(field) if (!strcmp(key, #field)) snprintf(b->field, sizeof b->field, "%s", v)
#define WHOLE(field) if (!strcmp(key, #field)) b->field = atoi(v)
#define REAL(field) if (!strcmp(key, #field)) b->field = atof(v)
    TEXT(name); TEXT(uuid); TEXT(mig_uuids); TEXT(bdf); TEXT(supports); TEXT(zeros); TEXT(fault_calls);
    WHOLE(arch); WHOLE(mig); WHOLE(links); WHOLE(error); WHOLE(open_error); WHOLE(crash); WHOLE(entry_error); WHOLE(util_raw);
    WHOLE(virtualization); WHOLE(smoothing); WHOLE(minor);
    REAL(limit); REAL(module_limit); REAL(module_extra); REAL(energy_extra); REAL(counted_from); REAL(latency_ms); REAL(hang); REAL(noise);
    if (!strcmp(key, "cc")) sscanf(v, "%d.%d", &b->cc_major, &b->cc_minor);
    if (!strcmp(key, "power_raw")) sscanf(v, "%7s %39s", b->raw_kind, b->raw_value);
    if (!strcmp(key, "nvlink")) sscanf(v, "%lf %lf", &b->nvlink, &b->shift);
    if (!strcmp(key, "wave"))
        sscanf(v, "%lf %lf %lf %lf %lf %lf %lf", &b->watts[0], &b->watts[1], &b->seconds[0], &b->seconds[1], &b->phase,
               &b->watts[2], &b->seconds[2]);
    if (!strcmp(key, "sensor")) {
        char name[16];
        sensor_t s;
        if (sscanf(v, "%15s %lf %lf %lf", name, &s.window, &s.refresh, &s.phase) == 4)
            for (int i = 0; i < SENSORS; i++)
                if (!strcmp(name, sensor_names[i])) b->sensor[i] = s;
    }
    if (!strcmp(key, "xid") && b->xids < MAX_XIDS)
        if (sscanf(v, "%d %d", &b->xid_code[b->xids], &b->xid_count[b->xids]) == 2) b->xids++;
}

static void load(void) {
    const char *path = getenv("OVERLAP_FAKE_NVML");
    struct stat now;
    double t = real();
    if (t - checked < 0.005) return; /* a stat every 5 ms is enough, and cheap */
    checked = t;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec)
        return;
    FILE *f = fopen(path, "r");
    if (!f) return;
    seen = now;
    static state_t fresh;
    memset(&fresh, 0, sizeof fresh);
    fresh.time = -1;
    char line[512];
    while (fgets(line, sizeof line, f)) {
        int n, used;
        char key[32];
        line[strcspn(line, "#\n")] = 0;
        if (sscanf(line, "gpu %d %31s %n", &n, key, &used) == 2 && n >= 0 && n < MAX_BOARDS) board_line(&fresh.board[n], key, line + used);
        else if (!strncmp(line, "driver ", 7)) snprintf(fresh.driver, sizeof fresh.driver, "%.79s", line + 7);
        else if (!strncmp(line, "missing ", 8)) snprintf(fresh.missing, sizeof fresh.missing, "%s", line + 8);
        else if (!strncmp(line, "devices ", 8)) snprintf(fresh.devices, sizeof fresh.devices, "%.200s", line + 8);
        else if (!strncmp(line, "init_error ", 11)) fresh.init_error = atoi(line + 11);
        else if (!strncmp(line, "init_hang ", 10)) fresh.init_hang = atof(line + 10);
        else if (!strncmp(line, "time ", 5)) fresh.time = atof(line + 5);
        else if (!strncmp(line, "error ", 6)) fresh.error = atoi(line + 6);
    }
    fclose(f);
    state = fresh;
}

static state_t *current(void) {
    static _Thread_local state_t mine;
    pthread_mutex_lock(&lock);
    load();
    mine = state;
    pthread_mutex_unlock(&lock);
    return &mine;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static int library(state_t *s, const char *call) {
    if (listed(s->missing, call)) return FUNCTION_NOT_FOUND;
    if (!initialized) return UNINITIALIZED;
    return s->error;
}

static int faults(state_t *s, int n, const char *call) {
    board_t *b = &s->board[n];
    if (b->fault_calls[0] && !listed(b->fault_calls, call)) return OK;
    if (b->hang > 0) {
        double until = real() + b->hang;
        note("hang %d %s", n, call);
        while (real() < until && current()->board[n].hang > 0) rest(0.05);
        note("back %d %s", n, call);
    }
    if (b->crash) {
        note("crash %d %s", n, call);
        *(volatile int *)0 = 1;
    }
    if (b->latency_ms > 0) rest(b->latency_ms * 1e-3);
    return b->error;
}

/* The board behind a handle; a handle of an earlier initialisation is refused, and noted. */
static int enter(void *handle, const char *call, state_t **s, board_t **b) {
    size_t h = (size_t)handle;
    int n = (int)(h & 0xff) - 1, ret;
    *s = current();
    if ((ret = library(*s, call))) return ret;
    if (n < 0 || n >= MAX_BOARDS || !(*s)->board[n].present || (int)(h >> 16) != generation) {
        note("stale %s", call);
        return INVALID_ARGUMENT;
    }
    *b = &(*s)->board[n];
    return faults(*s, n, call);
}
#define ENTER(handle) \
    state_t *s; board_t *b; int ret = enter(handle, __func__, &s, &b); \
    if (ret) return ret
#define NEEDS(word) if (!listed(b->supports, word)) return NOT_SUPPORTED

/* ---- the truth, and what a sensor shows of it -------------------------------------------------------------------- */

static double period(const board_t *b) { return b->seconds[0] + b->seconds[1] + b->seconds[2]; }

/* Integral over [0, t] of a function that is v[0], v[1], v[2] in the three parts of the wave. */
static double integral(const board_t *b, const double *v, double t) {
    double p = period(b), whole, u, sum;
    if (p <= 0) return v[0] * t;
    u = fmod(t + b->phase, p);
    whole = (t + b->phase - u) / p;
    sum = whole * (v[0] * b->seconds[0] + v[1] * b->seconds[1] + v[2] * b->seconds[2]);
    for (int i = 0; i < 3; i++) {
        double part = fmin(u, b->seconds[i]);
        sum += v[i] * part;
        u -= part;
    }
    return sum;
}

static double at(const board_t *b, const double *v, double t) {
    double u = period(b) > 0 ? fmod(t + b->phase, period(b)) : 0;
    return period(b) <= 0 || u < b->seconds[0] ? v[0] : u < b->seconds[0] + b->seconds[1] ? v[1] : v[2];
}

static double refreshed(const sensor_t *s, double t) { return s->refresh > 0 ? floor((t - s->phase) / s->refresh) * s->refresh + s->phase : t; }

static double shown_watts(const board_t *b, int which) {
    const sensor_t *s = &b->sensor[which];
    double t = refreshed(s, mono());
    double w = s->window > 0 ? (integral(b, b->watts, t) - integral(b, b->watts, t - s->window)) / s->window : at(b, b->watts, t);
    u64 hash = (u64)(i64)llround(t * 1e4) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9ULL;
    hash ^= hash >> 32;
    return w + b->noise * (2.0 * (double)(hash & 0xffffff) / 0xffffff - 1.0);
}

/* A counter that grows as the function v does, and stood at `base` at 0 of the clock, unless it began anew since. */
static double counted(const board_t *b, const double *v, double t, double base) {
    return b->counted_from < 0 ? integral(b, v, t) + base : fmax(0, integral(b, v, t) - integral(b, v, b->counted_from));
}

static double energy_joules(const board_t *b) {
    double watts[3];
    for (int i = 0; i < 3; i++) watts[i] = b->watts[i] + b->energy_extra;
    return counted(b, watts, refreshed(&b->sensor[ENERGY], mono()), 1e6);
}

static double nvlink_bytes(const board_t *b) {
    double on[3] = {0, b->nvlink, 0};
    return counted(b, on, mono() - b->shift, 1e12);
}

static double throttled_ns(const board_t *b, double ns) { return b->counted_from < 0 ? ns : 0; }

/* ---- the files below /dev that the real library holds open -------------------------------------------------------- */

static int held[MAX_BOARDS + 1]; /* descriptor, or 0; the last one is that of nvidiactl */

static void hold(const state_t *s, int n) {
    char path[300];
    if (!s->devices[0] || held[n]) return;
    snprintf(path, sizeof path, n == MAX_BOARDS ? "%s/nvidiactl" : "%s/nvidia%d", s->devices, n);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    held[n] = fd > 0 ? fd : 0;
}

static void let_go(void) {
    for (int n = 0; n <= MAX_BOARDS; n++) {
        if (held[n]) close(held[n]);
        held[n] = 0;
    }
}

/* ---- library and enumeration ------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(u32 flags) {
    state_t *s = current();
    (void)flags;
    for (double until = real() + s->init_hang; real() < until && current()->init_hang > 0;) rest(0.05);
    note("init %d", s->init_error);
    if (s->init_error) return s->init_error;
    initialized++;
    generation++;
    hold(s, MAX_BOARDS);
    return OK;
}
int nvmlShutdown(void) {
    note("shutdown");
    if (initialized && !--initialized) let_go();
    return OK;
}
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }
int nvmlSystemGetDriverVersion(char *text, u32 n) {
    state_t *s = current();
    int ret = library(s, __func__);
    if (!ret) snprintf(text, n, "%s", s->driver);
    return ret;
}
int nvmlDeviceGetCount_v2(u32 *count) {
    state_t *s = current();
    int ret = library(s, __func__);
    *count = 0;
    for (int i = 0; i < MAX_BOARDS; i++) *count += (u32)s->board[i].present;
    return ret;
}
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle) {
    state_t *s = current();
    int ret = library(s, __func__);
    if (ret) return ret;
    if (index >= MAX_BOARDS || !s->board[index].present) return INVALID_ARGUMENT;
    if ((ret = faults(s, (int)index, __func__))) return ret;
    hold(s, (int)index);
    *handle = (void *)(((size_t)generation << 16) + index + 1);
    return s->board[index].open_error;
}
/* The part-th UUID of a board in MIG mode, counted from 1; NULL where there is none. */
static const char *mig_uuid(const board_t *b, u32 part, size_t *length) {
    const char *p = b->mig ? b->mig_uuids : "";
    for (; *p; p += *p == ',') {
        *length = strcspn(p, ",");
        if (--part == 0) return p;
        p += *length;
    }
    return NULL;
}
int nvmlDeviceGetUUID(void *d, char *text, u32 n) {
    ENTER(d);
    u32 part = ((size_t)d >> 8) & 0xff;
    size_t length = 0;
    const char *p = part ? mig_uuid(b, part, &length) : NULL;
    if (part && !p) return INVALID_ARGUMENT;
    snprintf(text, n, "%.*s", (int)(part ? length : strlen(b->uuid)), part ? p : b->uuid);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *d, u32 *count) { ENTER(d); *count = b->arch >= 8 ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *d, u32 index, void **part) {
    ENTER(d);
    size_t length;
    if (!b->mig) return NOT_SUPPORTED;
    if (index >= 7) return INVALID_ARGUMENT;
    if (!mig_uuid(b, index + 1, &length)) return 6; /* NOT_FOUND */
    *part = (void *)((size_t)d + ((size_t)(index + 1) << 8));
    return OK;
}
int nvmlDeviceGetMinorNumber(void *d, u32 *minor) { ENTER(d); if (b->minor < 0) return NOT_SUPPORTED; *minor = (u32)b->minor; return OK; }
int nvmlDeviceGetName(void *d, char *text, u32 n) { ENTER(d); snprintf(text, n, "%s", b->name); return OK; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *pci) {
    ENTER(d);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", b->bdf);
    return OK;
}
int nvmlDeviceGetArchitecture(void *d, u32 *arch) { ENTER(d); *arch = (u32)b->arch; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { ENTER(d); *major = b->cc_major; *minor = b->cc_minor; return OK; }
int nvmlDeviceGetMigMode(void *d, u32 *now, u32 *pending) { ENTER(d); if (b->arch < 7) return NOT_SUPPORTED; *now = *pending = (u32)b->mig; return OK; }

/* ---- readings ---------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetPowerUsage(void *d, u32 *milliwatts) { ENTER(d); NEEDS("usage"); *milliwatts = listed(b->zeros, "usage") ? 0 : (u32)llround(1e3 * shown_watts(b, USAGE)); return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, u64 *mj) { ENTER(d); NEEDS("energy"); *mj = (u64)(1e3 * energy_joules(b)); return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, u32 *milliwatts) { ENTER(d); if (b->limit <= 0) return NOT_SUPPORTED; *milliwatts = (u32)llround(1e3 * b->limit); return OK; }
int nvmlDeviceGetTemperature(void *d, u32 sensor, u32 *celsius) { ENTER(d); NEEDS("clocks"); (void)sensor; *celsius = 61; return OK; }
int nvmlDeviceGetClockInfo(void *d, u32 type, u32 *mhz) { ENTER(d); NEEDS("clocks"); *mhz = type == 1 ? 1755 : 2619; return OK; }
int nvmlDeviceGetUtilizationRates(void *d, utilization_t *u) {
    ENTER(d);
    NEEDS("utilization");
    if (b->mig) return NOT_SUPPORTED;
    double busy[3] = {1, 1, 0}, t = floor(mono() * 6) / 6;
    u->gpu = b->util_raw >= 0 ? (u32)b->util_raw : (u32)lround(600 * (integral(b, busy, t) - integral(b, busy, t - 1.0 / 6)));
    u->memory = 10;
    if (listed(b->zeros, "utilization")) u->gpu = u->memory = 0;
    return OK;
}

static int set_u32(field_t *f, double v) { f->type = 1; f->value.ui = (u32)llround(v); return OK; }
static int set_u64(field_t *f, double v) { f->type = 3; f->value.ull = (u64)v; return OK; }

static int instant_power(const board_t *b, field_t *f) {
    int module = f->scope == 1;
    if (f->scope > 1 || !listed(b->supports, module ? "module" : "instant")) return NOT_SUPPORTED;
    if (listed(b->zeros, "instant")) return set_u32(f, 0);
    if (!b->raw_kind[0]) return set_u32(f, 1e3 * (shown_watts(b, INSTANT) + (module ? b->module_extra : 0)));
    if (!strcmp(b->raw_kind, "f64")) { f->type = 0; f->value.d = atof(b->raw_value); }
    else if (!strcmp(b->raw_kind, "i64")) { f->type = 4; f->value.sll = atoll(b->raw_value); }
    else if (!strcmp(b->raw_kind, "u64")) { f->type = 3; f->value.ull = strtoull(b->raw_value, NULL, 10); }
    else { f->type = 1; f->value.ui = (u32)strtoul(b->raw_value, NULL, 10); }
    return OK;
}

/* How the branch of the driver numbers the fields above 250: 0 not at all, 1 as 570, 2 as 575, 3 as 580.82. */
static int numbering(const state_t *s) {
    int major = 0, minor = 0;
    sscanf(s->driver, "%d.%d", &major, &minor);
    if (major < 570) return 0;
    if (major < 575) return 1;
    return major == 575 || (major == 580 && minor < 82) ? 2 : 3;
}

static int moved_field(const state_t *s, const board_t *b, field_t *f) {
    int how = numbering(s), throttle = listed(b->supports, "throttle");
    if (f->field == (how == 2 ? 256 : 251) && how) return b->smoothing < 0 ? NOT_SUPPORTED : set_u32(f, b->smoothing);
    if (how == 2 && f->field == 251) return throttle ? set_u64(f, 9.75e9) : NOT_SUPPORTED; /* another quantity */
    if (how == 3 && f->field == 270) return throttle ? set_u64(f, throttled_ns(b, 1.25e9)) : NOT_SUPPORTED;
    if (how == 3 && f->field == 271) return throttle ? set_u64(f, throttled_ns(b, 0.5e9)) : NOT_SUPPORTED;
    return NOT_SUPPORTED;
}

static int one_field(const state_t *s, const board_t *b, field_t *f) {
    int all = (int)f->scope == ALL_LINKS;
    if (b->entry_error) return b->entry_error;
    switch (f->field) {
    case 186: return instant_power(b, f);
    case 185: return f->scope == 0 && listed(b->supports, "average") ? set_u32(f, 1e3 * shown_watts(b, AVERAGE)) : NOT_SUPPORTED;
    case 190: return f->scope == 1 ? (b->module_limit > 0 ? set_u32(f, 1e3 * b->module_limit) : NOT_SUPPORTED) : set_u32(f, 1e3 * b->limit);
    case 83: return listed(b->supports, "energy") ? set_u64(f, listed(b->zeros, "energy") ? 0 : 1e3 * energy_joules(b)) : NOT_SUPPORTED;
    case 91: return b->links ? set_u32(f, b->links) : NOT_SUPPORTED;
    case 138: case 139: return all && listed(b->supports, "nvlink") ? set_u64(f, listed(b->zeros, "nvlink") ? 0 : nvlink_bytes(b) / 1024) : NOT_SUPPORTED;
    case 202: case 204: return (int)f->scope < b->links && listed(b->supports, "nvlink5") ? set_u64(f, nvlink_bytes(b) / b->links) : NOT_SUPPORTED;
    case 74: return listed(b->supports, "throttle") ? set_u64(f, throttled_ns(b, 2.5e9)) : NOT_SUPPORTED;
    case 75: return listed(b->supports, "throttle") ? set_u64(f, 0) : NOT_SUPPORTED;
    default: return moved_field(s, b, f);
    }
}

int nvmlDeviceGetVirtualizationMode(void *d, u32 *mode) { ENTER(d); *mode = (u32)b->virtualization; return OK; }
int nvmlDeviceGetFieldValues(void *d, int count, field_t *fields) {
    ENTER(d);
    for (int i = 0; i < count; i++) {
        fields[i].stamp = stamp_us();
        fields[i].latency = 7;
        fields[i].ret = one_field(s, b, &fields[i]);
    }
    return OK;
}

/* ---- GPM: means of the truth between two samples; pairs closer than 100 ms and parallel use are against the rules -- */

int nvmlGpmQueryDeviceSupport(void *d, gpm_support_t *support) { ENTER(d); support->supported = b->arch >= 9 && listed(b->supports, "gpm"); return OK; }
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, sizeof(gpm_sample_t)); return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *d, void *sample) {
    ENTER(d);
    NEEDS("gpm");
    if (atomic_exchange(&in_gpm, 1)) { note("parallel gpm"); abort(); }
    ((gpm_sample_t *)sample)->mono = mono();
    ((gpm_sample_t *)sample)->board = (int)(b - s->board);
    rest(0.0001);
    atomic_store(&in_gpm, 0);
    return OK;
}
int nvmlGpmMetricsGet(gpm_request_t *request) {
    const gpm_sample_t *first = request->first, *second = request->second;
    state_t *s = current();
    int ret = library(s, __func__);
    if (ret) return ret;
    if (request->version != 1) return VERSION;
    const board_t *b = &s->board[second->board];
    double begin = first->mono, end = second->mono;
    if (played < 0 && s->time >= 0) begin = s->time, end = s->time + (period(b) > 0 ? period(b) * ceil(1 / period(b)) : 1);
    double span = end - begin;
    if (first->board != second->board || span < 0.1) note("gpm pair of %.4f s", span);
    for (u32 i = 0; i < request->count; i++) {
        gpm_metric_t *m = &request->metrics[i];
        double v[3] = {1, 1, 0};
        m->ret = OK;
        if (m->id == SM) v[0] = SM_COMPUTE, v[1] = SM_COMMUNICATION;
        else if (m->id == TENSOR) v[0] = TENSOR_COMPUTE, v[1] = 0;
        else if (m->id != GRAPHICS) { m->ret = NOT_SUPPORTED; continue; }
        m->value = span < 0.1 ? 987.0 : 100 * (integral(b, v, end) - integral(b, v, begin)) / span;
    }
    return OK;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

int nvmlEventSetCreate(void **set) {
    for (int i = 0; i < 4; i++)
        if (!event_sets[i].used) {
            memset(&event_sets[i], 0, sizeof event_sets[i]);
            event_sets[i].used = 1;
            *set = &event_sets[i];
            return OK;
        }
    return INVALID_ARGUMENT;
}
int nvmlEventSetFree(void *set) { ((event_set_t *)set)->used = 0; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *d, u64 *types) { ENTER(d); *types = listed(b->supports, "xid") ? 8 : 0; return OK; }
int nvmlDeviceRegisterEvents(void *d, u64 types, void *set) {
    ENTER(d);
    NEEDS("xid");
    int n = (int)(b - s->board);
    if (types != 8) return INVALID_ARGUMENT;
    ((event_set_t *)set)->registered[n] = (int)(((size_t)d) >> 16);
    for (int i = 0; i < b->xids; i++) ((event_set_t *)set)->delivered[n][i] = b->xid_count[i];
    return OK;
}
int nvmlEventSetWait_v2(void *set, event_t *event, u32 timeout_ms) {
    double until = real() + timeout_ms * 1e-3;
    event_set_t *e = set;
    do {
        state_t *s = current();
        int ret = library(s, __func__);
        if (ret) return ret;
        for (int n = 0; n < MAX_BOARDS; n++)
            for (int i = 0; e->registered[n] && i < s->board[n].xids; i++)
                if (e->delivered[n][i] < s->board[n].xid_count[i]) {
                    e->delivered[n][i]++;
                    memset(event, 0, sizeof *event);
                    event->device = (void *)(((size_t)e->registered[n] << 16) + (size_t)n + 1);
                    event->type = 8;
                    event->data = (u64)s->board[n].xid_code[i];
                    event->gi = event->ci = UINT_MAX;
                    return OK;
                }
        rest(0.05);
    } while (real() < until);
    return TIMEOUT;
}
