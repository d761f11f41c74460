/* A CUDA driver that holds the captured graph a test describes: it implements the functions that
 * arguments.c looks up. A node is its own number, as a pointer, and so is its function; of graph N
 * the nodes are those that were added to it. Compiled with -DOLD it lacks what old drivers lack.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, MOST_ARGUMENTS = 8, KERNEL = 0, GRAPH = 4 };

typedef struct {
  uint64_t number, graph, inner;
  int type, packed, by_kernel;
  size_t count, sizes[MOST_ARGUMENTS], size;
  void *arguments[MOST_ARGUMENTS], *extra[5];
  uint8_t *bytes;
} node;

typedef struct {
  void *function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
  void *kernel, *context;
} node_params;

static node nodes[MOST];
static size_t count;
static int status = 1, refused;

static node *find(void *handle) {
  for (size_t i = 0; i < count; i++)
    if (nodes[i].number == (uint64_t)handle) return nodes + i;
  return NULL;
}

int cuStreamGetCaptureInfo_v2(void *stream, int *found, uint64_t *number, void **graph,
                              const void ***dependencies, size_t *dependency_count) {
  (void)number, (void)dependencies, (void)dependency_count;
  *found = status, *graph = stream;
  return refused;
}

int cuGraphGetNodes(void *graph, void **out, size_t *found) {
  size_t inside = 0;
  for (size_t i = 0; i < count; i++) {
    if (nodes[i].graph != (uint64_t)graph) continue;
    if (out && inside < *found) out[inside] = (void *)nodes[i].number;
    inside++;
  }
  *found = inside;
  return 0;
}

int cuGraphNodeGetType(void *handle, int *type) {
  *type = find(handle)->type;
  return 0;
}

int cuGraphChildGraphNodeGetGraph(void *handle, void **graph) {
  *graph = (void *)find(handle)->inner;
  return 0;
}

int cuGraphKernelNodeGetParams_v2(void *handle, node_params *params) {
  node *found = find(handle);
  memset(params, 0, sizeof *params);
  if (found->by_kernel)
    params->kernel = handle;
  else
    params->function = handle;
  if (found->packed)
    params->extra = found->extra;
  else
    params->arguments = found->arguments;
  return 0;
}

static int size_of(node *found, size_t number, size_t *size) {
  if (!found || found->packed || number >= found->count) return 1;
  *size = found->sizes[number];
  return 0;
}

int cuFuncGetParamInfo(void *function, size_t number, size_t *offset, size_t *size) {
  node *found = find(function);
  (void)offset;
  return found && found->by_kernel ? 1 : size_of(found, number, size);
}

#ifndef OLD
int cuKernelGetParamInfo(void *kernel, size_t number, size_t *offset, size_t *size) {
  (void)offset;
  return size_of(find(kernel), number, size);
}
#endif

/* What a test tells it. */

void fake_status(int found) { status = found; }
void fake_refuse(int code) { refused = code; }

/* Adds a kernel whose arguments have these sizes and together these bytes. */
void fake_kernel(uint64_t graph, uint64_t number, int packed, int by_kernel, const uint8_t *bytes,
                 const size_t *sizes, size_t arguments) {
  node *made = nodes + count++;
  *made = (node){number, graph, 0, KERNEL, packed, by_kernel, arguments, {0}, 0, {0}, {0}, NULL};
  for (size_t i = 0; i < arguments; i++) made->size += made->sizes[i] = sizes[i];
  made->bytes = malloc(made->size);
  memcpy(made->bytes, bytes, made->size);
  for (size_t i = 0, offset = 0; i < arguments; offset += sizes[i++])
    made->arguments[i] = made->bytes + offset;
  made->extra[0] = (void *)1, made->extra[1] = made->bytes;
  made->extra[2] = (void *)2, made->extra[3] = &made->size;
}

/* Adds a node of that type which is no kernel; a graph node has the graph `inner`. */
void fake_other(uint64_t graph, uint64_t number, int type, uint64_t inner) {
  nodes[count++] = (node){.number = number, .graph = graph, .inner = inner, .type = type};
}

void **fake_arguments(uint64_t number) { return find((void *)number)->arguments; }
void **fake_extra(uint64_t number) { return find((void *)number)->extra; }
