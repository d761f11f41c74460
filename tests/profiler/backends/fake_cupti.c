/* A libcupti that does what a test tells it to: it implements the functions that capture.c looks
 * up, and the functions `fake_*` make it call back as the real one does, from any thread.
 *
 * A graph or a node is its own number, as a pointer. Compiled with -DWITHOUT_CHOICE it lacks the
 * functions that older libraries lack, with -DWITHOUT_GRAPHS one that is needed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KINDS = 128, CALLS = 1024, LAST_CALL = 900, UNKNOWN_CALL = 1 };
enum { MODULE_LOADED = 6, NODE_CREATED = 13, NODE_CLONED = 20, RESOURCE = 3 };
enum { DRIVER = 4, RUNTIME = 5, TAKEN = 39 };

typedef void (*request_function)(uint8_t **, size_t *, size_t *);
typedef void (*complete_function)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_function)(void *, int, uint32_t, const void *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static request_function request;
static complete_function complete;
static callback_function callback;
static void *callback_data;
static uint32_t version = 130000;
static int64_t behind_ns;
static size_t dropped, unzeroed;
static int refused_kind, injected;
static uint8_t kinds[KINDS], watched[RESOURCE + 1][CALLS], calls[2][CALLS];
static struct {
  char function[40];
  int code;
} refusal;
static struct {
  uint8_t *buffer;
  size_t size;
} held;

static int refused(const char *function) {
  return strcmp(refusal.function, function) ? 0 : refusal.code;
}

/* The interface. */

int cuptiGetVersion(uint32_t *found) {
  *found = version;
  return refused("GetVersion");
}

int cuptiGetTimestamp(uint64_t *time) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = (uint64_t)(now.tv_sec * 1000000000LL + now.tv_nsec - behind_ns);
  return 0;
}

int cuptiSubscribe(void **subscriber, callback_function function, void *data) {
  if (refused("Subscribe")) return refused("Subscribe");
  if (callback) return TAKEN;
  callback = function, callback_data = data;
  *subscriber = &callback;
  return 0;
}

int cuptiUnsubscribe(void *subscriber) {
  if (subscriber != &callback || !callback) return 1;
  callback = NULL;
  memset(watched, 0, sizeof watched);
  return 0;
}

int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t id) {
  if (refused("EnableCallback")) return refused("EnableCallback");
  if (subscriber != &callback || domain < 1 || domain > RESOURCE || id >= CALLS) return 1;
  watched[domain][id] = (uint8_t)on;
  return 0;
}

#ifndef WITHOUT_GRAPHS
int cuptiGetGraphNodeId(void *node, uint64_t *id) {
  *id = (uint64_t)node;
  return node ? 0 : 1;
}
#endif

int cuptiGetGraphId(void *graph, uint32_t *id) {
  *id = (uint32_t)(uintptr_t)graph;
  return graph ? 0 : 1;
}

int cuptiActivityRegisterCallbacks(request_function first, complete_function second) {
  if (refused("RegisterCallbacks")) return refused("RegisterCallbacks");
  request = first, complete = second;
  return 0;
}

static int set_kind(int kind, int on) {
  if (kind <= 0 || kind >= KINDS || kind == refused_kind) return 1;
  kinds[kind] = (uint8_t)on;
  /* As in CUDA 13.0: all functions, until some are turned off. */
  if (kind == DRIVER || kind == RUNTIME) memset(calls[kind == DRIVER], on, CALLS);
  return 0;
}

int cuptiActivityEnable(int kind) {
  return refused("Enable") ? refused("Enable") : set_kind(kind, 1);
}

int cuptiActivityDisable(int kind) {
  return refused("Disable") ? refused("Disable") : set_kind(kind, 0);
}

int cuptiActivityFlushAll(uint32_t forced) {
  if (forced && held.buffer) {
    uint8_t *buffer = held.buffer;
    held.buffer = NULL;
    complete(NULL, 0, buffer, 0, held.size);
  }
  return refused("FlushAll");
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
  (void)context, (void)stream;
  pthread_mutex_lock(&lock);
  *count = dropped, dropped = 0;
  pthread_mutex_unlock(&lock);
  return 0;
}

int cuptiActivitySetAttribute(int attribute, size_t *size, void *value) {
  (void)attribute, (void)size, (void)value;
  return refused("SetAttribute");
}

int cuptiSetThreadIdType(int type) { return type == 1 ? 0 : 1; }

#ifndef WITHOUT_CHOICE
int cuptiActivityEnableRuntimeApi(uint32_t id, uint8_t on) {
  if (id > LAST_CALL) return UNKNOWN_CALL;
  calls[0][id] = on;
  return 0;
}

int cuptiActivityEnableDriverApi(uint32_t id, uint8_t on) {
  if (id > LAST_CALL) return UNKNOWN_CALL;
  calls[1][id] = on;
  return 0;
}
#endif

/* What NVTX calls in the library that NVTX_INJECTION64_PATH names. */
int InitializeInjectionNvtx2(void *functions) {
  (void)functions;
  return ++injected;
}

/* What a test tells it. */

void fake_version(uint32_t number) { version = number; }
void fake_behind(int64_t ns) { behind_ns = ns; }
void fake_drop(size_t records) { dropped += records; }
void fake_refuse_kind(int kind) { refused_kind = kind; }
int fake_taken(void) { return callback != NULL; }
int fake_injected(void) { return injected; }
int fake_kind(int kind) { return kinds[kind]; }
int fake_call(int driver, int id) { return calls[driver][id]; }
size_t fake_unzeroed(void) { return unzeroed; }

void fake_refuse(const char *function, int code) {
  strncpy(refusal.function, function, sizeof refusal.function - 1);
  refusal.code = code;
}

static uint8_t *filled(const uint8_t *records, size_t size) {
  uint8_t *buffer = NULL;
  size_t room = 0, most = 1, dirty = 0;
  request(&buffer, &room, &most);
  for (size_t i = 0; buffer && i < room; i++) dirty += buffer[i] != 0;
  pthread_mutex_lock(&lock);
  unzeroed += dirty;
  pthread_mutex_unlock(&lock);
  if (!buffer || most || size > room) return NULL;
  if (size) memcpy(buffer, records, size);
  return buffer;
}

/* One buffer with these records, handed over at once; 0 if there was room. */
int fake_deliver(const uint8_t *records, size_t size) {
  uint8_t *buffer = filled(records, size);
  if (buffer) complete(NULL, 0, buffer, 0, size);
  return !buffer;
}

/* One buffer that stays with the library until it is flushed by force. */
int fake_hold(const uint8_t *records, size_t size) {
  held.buffer = filled(records, size), held.size = size;
  return !held.buffer;
}

/* A completed buffer that the library never got. */
void fake_deliver_none(void) { complete(NULL, 0, NULL, 0, 0); }

static int resource(uint32_t id, const void *descriptor) {
  const void *data[] = {NULL, NULL, descriptor};
  if (!callback || !watched[RESOURCE][id]) return 1;
  callback(callback_data, RESOURCE, id, data);
  return 0;
}

/* A new node, or with an original a clone of that. */
int fake_node(uint64_t graph, uint64_t node, uint64_t original) {
  struct {
    void *graph, *original_graph, *node, *original_node;
    int type;
    void *dependency, *executable;
  } data = {(void *)graph, NULL, (void *)node, (void *)original, 0, NULL, NULL};
  return resource(original ? NODE_CLONED : NODE_CREATED, &data);
}

int fake_module(const char *code, size_t size) {
  struct {
    uint32_t module;
    size_t size;
    const char *cubin;
  } data = {1, size, code};
  return resource(MODULE_LOADED, &data);
}

typedef struct {
  int site;
  const char *name;
  const void *params;
  void *result;
  const char *symbol;
  void *context;
  uint32_t context_number;
  uint64_t *data;
  uint32_t correlation;
} call_data;

static void called(int domain, int id, int site, const void *params, uint32_t correlation) {
  call_data data = {.site = site, .params = params, .correlation = correlation};
  if (watched[domain][id]) callback(callback_data, domain, (uint32_t)id, &data);
}

/* A launch of the function by the driver's call `id`, inside the runtime's call `outer` if that is
 * not 0; the runtime's call has the correlation, the driver's the one after it. */
void fake_launch(int outer, int id, void *function, void **arguments, void **extra,
                 uint32_t correlation) {
  struct {
    void *function;
    unsigned sizes[7];
    void *stream;
    void **arguments, **extra;
  } plain = {function, {0}, NULL, arguments, extra};
  struct {
    const void *config;
    void *function;
    void **arguments, **extra;
  } ex = {NULL, function, arguments, extra};
  const void *params = id == 652 || id == 653 ? (const void *)&ex : (const void *)&plain;
  if (outer) called(2, outer, 0, NULL, correlation);
  called(1, id, 0, params, correlation + (outer != 0));
  called(1, id, 1, params, correlation + (outer != 0));
  if (outer) called(2, outer, 1, NULL, correlation);
}

/* Callbacks that are not meant for whoever keeps nodes and modules. */
void fake_others(void) {
  const void *empty[] = {NULL, NULL, NULL};
  callback(callback_data, RESOURCE, NODE_CREATED, NULL);
  callback(callback_data, RESOURCE, NODE_CREATED, empty);
  callback(callback_data, RESOURCE + 1, NODE_CREATED, empty);
  callback(callback_data, RESOURCE, MODULE_LOADED + 1, empty);
}

typedef struct {
  int number, times;
  const uint8_t *records;
  size_t size;
} work;

static void *busy(void *argument) {
  const work *todo = argument;
  for (int i = 0; i < todo->times; i++) {
    fake_deliver(todo->records, todo->size);
    fake_node((uint64_t)todo->number + 1, (uint64_t)todo->number << 32 | (uint64_t)(i + 1), 0);
  }
  return NULL;
}

/* Each of up to 16 threads of its own delivers the records and creates a node, so many times. */
void fake_threads(int threads, int times, const uint8_t *records, size_t size) {
  pthread_t started[16];
  work todo[16];
  for (int i = 0; i < threads; i++) {
    todo[i] = (work){i, times, records, size};
    pthread_create(&started[i], NULL, busy, &todo[i]);
  }
  for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
}
