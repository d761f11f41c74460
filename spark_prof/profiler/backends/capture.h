/* What capture.c and arguments.c have in common. */
#ifndef SPARK_PROF_CAPTURE_H
#define SPARK_PROF_CAPTURE_H

#include <stdint.h>

enum { DOMAIN_DRIVER = 1, DOMAIN_RUNTIME = 2, DOMAIN_RESOURCE = 3 };

/* CUPTI's numbers of the driver's calls that launch a kernel; the second of each is that of the
 * stream a thread. */
enum {
  LAUNCH = 307, LAUNCH_THREAD = 442,
  LAUNCH_COOPERATIVE = 477, LAUNCH_COOPERATIVE_THREAD = 478,
  LAUNCH_EX = 652, LAUNCH_EX_THREAD = 653
};

/* CUPTI's number of a graph's node, 0 where it has none. */
uint64_t node_number(void *node);

/* Called for every watched call of the CUDA runtime or driver. */
void see_call(int domain, uint32_t id, const void *data);

#endif
