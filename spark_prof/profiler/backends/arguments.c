/* The device addresses among the arguments of kernels, which tell whose memory a kernel reads.
 *
 * The kernels of a CUDA graph are looked at while it is captured, in the graph that the stream
 * captures into; those that are launched by themselves in CUPTI's callbacks. What the driver takes
 * as arguments is either an array of pointers, one for each, or a packed buffer (cuBLAS). Declared
 * here is the part of the driver's public interface (cuda.h, cupti_callbacks.h) that is used.
 *
 * Whether a word is an address of interest is found out later, against the model's tensors: here
 * stays what could be one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"

enum { OK = 0, NO_LIBRARY = -1, NO_FUNCTION = -2, NO_MEMORY = -3, NOT_CAPTURING = -4 };
enum { CAPTURING = 1, NODE_KERNEL = 0, NODE_GRAPH = 4, DEEPEST = 8 };
enum { END = 0, BUFFER_POINTER = 1, BUFFER_SIZE = 2 };
enum { ENTER = 0, MOST_ARGUMENTS = 1024, MOST_BYTES = 32764, MOST_ROWS = 1 << 21 };

/* Virtual addresses of GPUs have at most 49 bits; below 4 GiB lies nothing of theirs. The words of
 * tensor maps (TMA descriptors) keep other things in their highest bits. */
static const uint64_t address_bits = ((uint64_t)1 << 57) - 1;
static const uint64_t lowest = (uint64_t)1 << 32, highest = (uint64_t)1 << 49;

typedef struct {
  void *function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
  void *kernel, *context;
} node_params;

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

typedef struct {
  void *function;
  unsigned grid[3], block[3], shared;
  void *stream;
  void **arguments, **extra; /* a cooperative launch has no `extra` */
} launch_params;

typedef struct {
  const void *config;
  void *function;
  void **arguments, **extra;
} launch_ex_params;

/* One row of traces.pieces.ARGUMENT_DTYPE. */
typedef struct __attribute__((packed)) {
  int64_t node, correlation, address;
  int32_t argument, offset, size;
} argument_row;

static struct {
  int (*StreamGetCaptureInfo)(void *, int *, uint64_t *, void **, const void ***, size_t *);
  int (*GraphGetNodes)(void *, void **, size_t *);
  int (*GraphNodeGetType)(void *, int *);
  int (*GraphKernelNodeGetParams)(void *, node_params *);
  int (*GraphChildGraphNodeGetGraph)(void *, void **);
  int (*FuncGetParamInfo)(void *, size_t, size_t *, size_t *);
  int (*KernelGetParamInfo)(void *, size_t, size_t *, size_t *);
} cuda;

static const struct {
  const char *name;
  void **slot;
} functions[] = {
    {"cuStreamGetCaptureInfo_v2", (void **)&cuda.StreamGetCaptureInfo},
    {"cuGraphGetNodes", (void **)&cuda.GraphGetNodes},
    {"cuGraphNodeGetType", (void **)&cuda.GraphNodeGetType},
    {"cuGraphKernelNodeGetParams_v2", (void **)&cuda.GraphKernelNodeGetParams},
    {"cuGraphChildGraphNodeGetGraph", (void **)&cuda.GraphChildGraphNodeGetGraph},
    {"cuFuncGetParamInfo", (void **)&cuda.FuncGetParamInfo},
    {"cuKernelGetParamInfo", (void **)&cuda.KernelGetParamInfo},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static argument_row *rows;
static size_t row_count, row_capacity;
static uint64_t lost;
static int opened;
static __thread uint32_t outer_call; /* of the runtime call that this thread is in */

static void keep(const argument_row *row) {
  if (row_count == row_capacity && row_capacity < MOST_ROWS) {
    size_t larger = row_capacity ? 2 * row_capacity : 4096;
    argument_row *moved = realloc(rows, larger * sizeof *rows);
    if (moved) rows = moved, row_capacity = larger;
  }
  if (row_count < row_capacity)
    rows[row_count++] = *row;
  else
    lost++;
}

static void scan(const void *begin, size_t size, int argument, argument_row row) {
  row.argument = argument, row.size = (int32_t)size;
  for (size_t offset = 0; offset + 8 <= size; offset += 8) {
    uint64_t word;
    memcpy(&word, (const char *)begin + offset, sizeof word);
    word &= address_bits;
    if (word < lowest || word >= highest) continue;
    row.offset = (int32_t)offset, row.address = (int64_t)word;
    keep(&row);
  }
}

static int argument_size(void *function, void *kernel, size_t number, size_t *size) {
  size_t offset;
  int failed = function ? cuda.FuncGetParamInfo(function, number, &offset, size) : 1;
  if (failed) failed = cuda.KernelGetParamInfo(kernel ? kernel : function, number, &offset, size);
  return failed;
}

/* The lock is held. */
static void read_arguments(void *function, void *kernel, void **arguments, void **extra,
                           argument_row row) {
  if (extra) {
    const void *buffer = NULL;
    size_t size = 0;
    for (int i = 0; i < 4 && extra[i] != (void *)END; i += 2) {
      if (extra[i] == (void *)BUFFER_POINTER) buffer = extra[i + 1];
      if (extra[i] == (void *)BUFFER_SIZE) size = *(const size_t *)extra[i + 1];
    }
    if (buffer && size <= MOST_BYTES) scan(buffer, size, -1, row);
    return;
  }
  if (!arguments) return;
  size_t size, total = 0;
  for (int i = 0; i < MOST_ARGUMENTS && total <= MOST_BYTES; i++, total += size) {
    if (argument_size(function, kernel, (size_t)i, &size)) return;
    if (arguments[i] && size <= MOST_BYTES) scan(arguments[i], size, i, row);
  }
}

static int read_graph(void *graph, int deep) {
  size_t count = 0;
  int result = cuda.GraphGetNodes(graph, NULL, &count);
  if (result || !count) return result;
  void **nodes = calloc(count, sizeof *nodes);
  if (!nodes) return NO_MEMORY;
  result = cuda.GraphGetNodes(graph, nodes, &count);
  for (size_t i = 0; i < count && !result; i++) {
    int type;
    void *inner = NULL;
    node_params params = {0};
    if (cuda.GraphNodeGetType(nodes[i], &type)) continue;
    if (type == NODE_GRAPH && deep && !cuda.GraphChildGraphNodeGetGraph(nodes[i], &inner))
      result = read_graph(inner, deep - 1);
    if (type != NODE_KERNEL || cuda.GraphKernelNodeGetParams(nodes[i], &params)) continue;
    argument_row row = {(int64_t)node_number(nodes[i]), -1, 0, 0, 0, 0};
    if (!row.node) continue;
    pthread_mutex_lock(&lock);
    read_arguments(params.function, params.kernel, params.arguments, params.extra, row);
    pthread_mutex_unlock(&lock);
  }
  free(nodes);
  return result;
}

/* Finds the driver's functions in the library at that path; 0, or one of the codes above. */
int spark_prof_open_driver(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return NO_LIBRARY;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!(*functions[i].slot = dlsym(library, functions[i].name))) return NO_FUNCTION;
  opened = 1;
  return OK;
}

/* Reads the arguments of every kernel that the stream has captured so far. */
int spark_prof_read_capture(void *stream) {
  int status = 0;
  uint64_t number;
  void *graph = NULL;
  if (!opened) return NO_LIBRARY;
  int result = cuda.StreamGetCaptureInfo(stream, &status, &number, &graph, NULL, NULL);
  if (result) return result;
  return status == CAPTURING && graph ? read_graph(graph, DEEPEST) : NOT_CAPTURING;
}

void see_call(int domain, uint32_t id, const void *data) {
  const call_data *call = data;
  if (!opened || !call) return;
  if (domain == DOMAIN_RUNTIME) {
    outer_call = call->site == ENTER ? call->correlation : 0;
    return;
  }
  if (call->site != ENTER || !call->params) return;
  argument_row row = {0, outer_call ? outer_call : call->correlation, 0, 0, 0, 0};
  const launch_params *launch = call->params;
  const launch_ex_params *launch_ex = call->params;
  pthread_mutex_lock(&lock);
  switch (id) {
    case LAUNCH: case LAUNCH_THREAD:
      read_arguments(launch->function, NULL, launch->arguments, launch->extra, row);
      break;
    case LAUNCH_COOPERATIVE: case LAUNCH_COOPERATIVE_THREAD:
      read_arguments(launch->function, NULL, launch->arguments, NULL, row);
      break;
    case LAUNCH_EX: case LAUNCH_EX_THREAD:
      read_arguments(launch_ex->function, NULL, launch_ex->arguments, launch_ex->extra, row);
      break;
  }
  pthread_mutex_unlock(&lock);
}

/* Moves up to `most` rows out, the oldest first; how many there were. `rows_lost` had no room. */
size_t spark_prof_take_arguments(argument_row *out, size_t most, uint64_t *rows_lost) {
  pthread_mutex_lock(&lock);
  size_t count = row_count < most ? row_count : most;
  if (count) {
    memcpy(out, rows, count * sizeof *out);
    memmove(rows, rows + count, (row_count - count) * sizeof *rows);
    row_count -= count;
  }
  *rows_lost = lost;
  if (!row_count) {
    free(rows);
    rows = NULL, row_capacity = 0, lost = 0;
  }
  pthread_mutex_unlock(&lock);
  return count;
}

size_t spark_prof_count_arguments(void) {
  pthread_mutex_lock(&lock);
  size_t count = row_count;
  pthread_mutex_unlock(&lock);
  return count;
}
