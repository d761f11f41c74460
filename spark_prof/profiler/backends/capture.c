/* What CUPTI calls while a vLLM worker is recorded.
 *
 * CUPTI calls from its own threads and from inside the driver, where waiting for Python's
 * interpreter lock can deadlock. So nothing here knows Python: raw activity buffers go to a file,
 * graph nodes into an array, machine code into a folder. Declared here is the part of CUPTI's
 * public interface (cupti_activity.h, cupti_callbacks.h) that is used; it is found in the libcupti
 * that the process has loaded already.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"

enum { OK = 0, NO_LIBRARY = -1, NO_FUNCTION = -2, NOT_SUBSCRIBED = -5 };
enum { MODULE_LOADED = 6, GRAPHNODE_CREATED = 13, GRAPHNODE_CLONED = 20 };
enum { KIND_DRIVER = 4, KIND_RUNTIME = 5, MOST_FUNCTIONS = 1024 };
enum { ATTRIBUTE_ZEROED_BUFFER = 5, THREAD_ID_SYSTEM = 1 };

typedef struct {
  void *context;
  void *handle;
  void *descriptor;
} resource_data;

typedef struct {
  uint32_t module;
  size_t size;
  const char *cubin;
} module_data;

typedef struct {
  void *graph, *original_graph, *node, *original_node;
  int type;
  void *dependency, *executable;
} graph_data;

/* One row of traces.pieces.NODE_DTYPE. */
typedef struct __attribute__((packed)) {
  int64_t created_ns, node, original;
  int32_t graph, thread;
} node_row;

/* The header of one block of an activity file, documented in docs/bundle.md. */
typedef struct {
  char magic[8];
  uint32_t version, reserved;
  uint64_t size, dropped;
} block_header;

/* What the recorder asks for; see backends/native.py. */
typedef struct {
  uint64_t blocks, bytes, dropped, failed_writes, requested;
  uint64_t nodes, cubins, cubin_bytes, failed_cubins, callback_ns;
} statistics;

typedef void (*request_function)(uint8_t **, size_t *, size_t *);
typedef void (*complete_function)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_function)(void *, int, uint32_t, const void *);

static struct {
  int (*GetVersion)(uint32_t *);
  int (*GetTimestamp)(uint64_t *);
  int (*Subscribe)(void **, callback_function, void *);
  int (*Unsubscribe)(void *);
  int (*EnableCallback)(uint32_t, void *, int, uint32_t);
  int (*GetGraphNodeId)(void *, uint64_t *);
  int (*GetGraphId)(void *, uint32_t *);
  int (*ActivityRegisterCallbacks)(request_function, complete_function);
  int (*ActivityEnable)(int);
  int (*ActivityDisable)(int);
  int (*ActivityFlushAll)(uint32_t);
  int (*ActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
  int (*ActivitySetAttribute)(int, size_t *, void *);
  int (*SetThreadIdType)(int);
  /* Older libraries have neither and record all calls. */
  int (*ActivityEnableRuntimeApi)(uint32_t, uint8_t);
  int (*ActivityEnableDriverApi)(uint32_t, uint8_t);
} cupti;

static const struct {
  const char *name;
  void **slot;
  int needed;
} functions[] = {
    {"cuptiGetVersion", (void **)&cupti.GetVersion, 1},
    {"cuptiGetTimestamp", (void **)&cupti.GetTimestamp, 1},
    {"cuptiSubscribe", (void **)&cupti.Subscribe, 1},
    {"cuptiUnsubscribe", (void **)&cupti.Unsubscribe, 1},
    {"cuptiEnableCallback", (void **)&cupti.EnableCallback, 1},
    {"cuptiGetGraphNodeId", (void **)&cupti.GetGraphNodeId, 1},
    {"cuptiGetGraphId", (void **)&cupti.GetGraphId, 1},
    {"cuptiActivityRegisterCallbacks", (void **)&cupti.ActivityRegisterCallbacks, 1},
    {"cuptiActivityEnable", (void **)&cupti.ActivityEnable, 1},
    {"cuptiActivityDisable", (void **)&cupti.ActivityDisable, 1},
    {"cuptiActivityFlushAll", (void **)&cupti.ActivityFlushAll, 1},
    {"cuptiActivityGetNumDroppedRecords", (void **)&cupti.ActivityGetNumDroppedRecords, 1},
    {"cuptiActivitySetAttribute", (void **)&cupti.ActivitySetAttribute, 1},
    {"cuptiSetThreadIdType", (void **)&cupti.SetThreadIdType, 1},
    {"cuptiActivityEnableRuntimeApi", (void **)&cupti.ActivityEnableRuntimeApi, 0},
    {"cuptiActivityEnableDriverApi", (void **)&cupti.ActivityEnableDriverApi, 0},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library, *subscriber;
static uint32_t version;
static statistics totals;
static int file = -1;
static size_t buffer_size = 4 << 20;
static struct spare {
  struct spare *next;
} *spares;
static node_row *nodes;
static size_t node_capacity;
static char cubin_folder[4096];

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int write_all(int to, const void *data, size_t size) {
  const char *rest = data;
  while (size) {
    ssize_t written = write(to, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    rest += written;
    size -= (size_t)written;
  }
  return 0;
}

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *most_records) {
  pthread_mutex_lock(&lock);
  struct spare *spare = spares;
  if (spare) spares = spare->next;
  totals.requested += !spare;
  pthread_mutex_unlock(&lock);
  if (spare)
    spare->next = NULL; /* the rest was zeroed when it came back */
  else
    spare = calloc(1, buffer_size);
  *buffer = (uint8_t *)spare;
  *size = spare ? buffer_size : 0;
  *most_records = 0;
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                             size_t valid) {
  size_t dropped = 0;
  (void)size;
  cupti.ActivityGetNumDroppedRecords(context, stream, &dropped);
  pthread_mutex_lock(&lock);
  totals.dropped += dropped;
  if ((valid || dropped) && file >= 0) {
    block_header header = {"", version, 0, valid, totals.dropped};
    memcpy(header.magic, "SPCUPTI1", 8);
    off_t begin = lseek(file, 0, SEEK_CUR);
    if (write_all(file, &header, sizeof header) || write_all(file, buffer, valid)) {
      totals.failed_writes++;
      if (ftruncate(file, begin) == 0) lseek(file, begin, SEEK_SET);
    } else {
      totals.blocks++;
      totals.bytes += valid;
    }
  }
  pthread_mutex_unlock(&lock);
  if (!buffer) return;
  memset(buffer, 0, valid);
  pthread_mutex_lock(&lock);
  struct spare *spare = (struct spare *)buffer;
  spare->next = spares;
  spares = spare;
  pthread_mutex_unlock(&lock);
}

static void keep_node(const graph_data *data, int cloned) {
  node_row row = {now_ns(), 0, 0, 0, (int32_t)syscall(SYS_gettid)};
  uint64_t id = 0, original = 0;
  uint32_t graph = 0;
  if (cupti.GetGraphNodeId(data->node, &id)) return;
  if (cloned) cupti.GetGraphNodeId(data->original_node, &original);
  cupti.GetGraphId(data->graph, &graph);
  row.node = (int64_t)id, row.original = (int64_t)original, row.graph = (int32_t)graph;
  pthread_mutex_lock(&lock);
  if (totals.nodes == node_capacity) {
    size_t larger = node_capacity ? 2 * node_capacity : 4096;
    node_row *moved = realloc(nodes, larger * sizeof *nodes);
    if (moved) nodes = moved, node_capacity = larger;
  }
  if (totals.nodes < node_capacity) nodes[totals.nodes++] = row;
  totals.callback_ns += (uint64_t)(now_ns() - row.created_ns);
  pthread_mutex_unlock(&lock);
}

static void keep_cubin(const module_data *data) {
  char name[4200], temporary[4216];
  int64_t begin = now_ns();
  pthread_mutex_lock(&lock);
  if (cubin_folder[0] && data->cubin && data->size) {
    snprintf(name, sizeof name, "%s/%d-%llu.cubin", cubin_folder, (int)getpid(),
             (unsigned long long)totals.cubins);
    snprintf(temporary, sizeof temporary, "%s.part", name);
    int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int failed = out < 0 || write_all(out, data->cubin, data->size);
    if (out >= 0) close(out);
    if (failed || rename(temporary, name)) {
      unlink(temporary);
      totals.failed_cubins++;
    } else {
      totals.cubins++;
      totals.cubin_bytes += data->size;
    }
    totals.callback_ns += (uint64_t)(now_ns() - begin);
  }
  pthread_mutex_unlock(&lock);
}

uint64_t node_number(void *node) {
  uint64_t number = 0;
  return cupti.GetGraphNodeId(node, &number) ? 0 : number;
}

static void called_back(void *unused, int domain, uint32_t id, const void *data) {
  (void)unused;
  const resource_data *resource = data;
  if (domain == DOMAIN_DRIVER || domain == DOMAIN_RUNTIME) see_call(domain, id, data);
  if (domain != DOMAIN_RESOURCE || !resource || !resource->descriptor) return;
  if (id == GRAPHNODE_CREATED || id == GRAPHNODE_CLONED)
    keep_node(resource->descriptor, id == GRAPHNODE_CLONED);
  else if (id == MODULE_LOADED)
    keep_cubin(resource->descriptor);
}

/* Finds CUPTI in the library at that path; 0, or one of the negative codes above. */
int spark_prof_open(const char *path, uint32_t *found_version) {
  library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return NO_LIBRARY;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    *functions[i].slot = dlsym(library, functions[i].name);
    if (functions[i].needed && !*functions[i].slot) return NO_FUNCTION;
  }
  int result = cupti.GetVersion(&version);
  *found_version = version;
  return result;
}

/* Where machine code is kept that is loaded from now on; an empty name keeps none. */
void spark_prof_keep_cubins(const char *folder) {
  pthread_mutex_lock(&lock);
  snprintf(cubin_folder, sizeof cubin_folder, "%s", folder);
  pthread_mutex_unlock(&lock);
}

/* Begins to keep graph nodes and loaded machine code; a CUPTI error code. */
int spark_prof_subscribe(void) {
  static const uint32_t wanted[] = {GRAPHNODE_CREATED, GRAPHNODE_CLONED, MODULE_LOADED};
  int result = subscriber ? OK : cupti.Subscribe(&subscriber, called_back, NULL);
  if (result) subscriber = NULL;
  for (int i = 0; i < 3 && !result; i++)
    result = cupti.EnableCallback(1, subscriber, DOMAIN_RESOURCE, wanted[i]);
  return result;
}

/* Gives the process's one place for a subscriber back; a CUPTI error code.
 *
 * torch's profiler asks for that place once in the life of a process, and without it records no
 * kernel ever after.
 */
int spark_prof_unsubscribe(void) {
  void *left = subscriber;
  subscriber = NULL;
  return left ? cupti.Unsubscribe(left) : OK;
}

/* Turns the callbacks of calls that launch a kernel on or off; a CUPTI error code. */
int spark_prof_launches(int on) {
  static const uint32_t driver[] = {LAUNCH, LAUNCH_THREAD, LAUNCH_COOPERATIVE,
                                    LAUNCH_COOPERATIVE_THREAD, LAUNCH_EX, LAUNCH_EX_THREAD};
  static const uint32_t runtime[] = {211, 214, 269, 270, 430, 431, 505, 506};
  int result = subscriber ? OK : NOT_SUBSCRIBED;
  for (size_t i = 0; i < sizeof driver / sizeof *driver && !result; i++)
    result = cupti.EnableCallback((uint32_t)on, subscriber, DOMAIN_DRIVER, driver[i]);
  /* Numbers beyond an older library's last are refused, and then not needed. */
  for (size_t i = 0; i < sizeof runtime / sizeof *runtime && !result; i++)
    cupti.EnableCallback((uint32_t)on, subscriber, DOMAIN_RUNTIME, runtime[i]);
  return result;
}

/* Says how buffers are handled; before the first start and best before a CUDA context exists. */
int spark_prof_prepare(size_t bytes_per_buffer) {
  uint8_t yes = 1;
  size_t size = sizeof yes;
  buffer_size = bytes_per_buffer;
  int result = cupti.ActivityRegisterCallbacks(buffer_requested, buffer_completed);
  if (!result) cupti.ActivitySetAttribute(ATTRIBUTE_ZEROED_BUFFER, &size, &yes);
  if (!result) cupti.SetThreadIdType(THREAD_ID_SYSTEM);
  return result;
}

/* Where completed buffers go from now on; -1 throws them away. The caller keeps the descriptor. */
void spark_prof_write_to(int descriptor) {
  pthread_mutex_lock(&lock);
  file = descriptor;
  pthread_mutex_unlock(&lock);
}

/* Turns recording of a kind of activity on or off; a CUPTI error code. */
int spark_prof_activity(int kind, int on) {
  return on ? cupti.ActivityEnable(kind) : cupti.ActivityDisable(kind);
}

/* Turns recording of API calls on, of the wanted functions only, or off; a CUPTI error code.
 *
 * CUDA 13.0's library records none of the functions that are turned on one by one, but leaves out
 * those that are turned off after all were turned on.
 */
int spark_prof_calls(int driver, const uint32_t *wanted, size_t count, int on) {
  int (*choose)(uint32_t, uint8_t) =
      driver ? cupti.ActivityEnableDriverApi : cupti.ActivityEnableRuntimeApi;
  int kind = driver ? KIND_DRIVER : KIND_RUNTIME;
  if (!on) return cupti.ActivityDisable(kind);
  int result = cupti.ActivityEnable(kind);
  for (uint32_t id = 1; choose && !result && id < MOST_FUNCTIONS; id++) {
    size_t i = 0;
    while (i < count && wanted[i] != id) i++;
    if (i == count) choose(id, 0); /* numbers beyond the library's last are refused */
  }
  return result;
}

int spark_prof_flush(int forced) { return cupti.ActivityFlushAll((uint32_t)forced); }

/* CUPTI's clock and the system's, read as close together as they get, in ns. */
void spark_prof_clocks(int64_t *cupti_ns, int64_t *system_ns) {
  int64_t best = INT64_MAX;
  for (int i = 0; i < 16; i++) {
    uint64_t theirs = 0;
    int64_t before = now_ns();
    cupti.GetTimestamp(&theirs);
    int64_t after = now_ns();
    if (after - before >= best) continue;
    best = after - before;
    *cupti_ns = (int64_t)theirs;
    *system_ns = before + best / 2;
  }
}

/* Copies up to `most` graph nodes, from the one with that number on; how many there were. */
size_t spark_prof_nodes(size_t first, node_row *out, size_t most) {
  pthread_mutex_lock(&lock);
  size_t count = totals.nodes > first ? totals.nodes - first : 0;
  if (count > most) count = most;
  if (count) memcpy(out, nodes + first, count * sizeof *out);
  pthread_mutex_unlock(&lock);
  return count;
}

void spark_prof_statistics(statistics *out) {
  pthread_mutex_lock(&lock);
  *out = totals;
  pthread_mutex_unlock(&lock);
}
