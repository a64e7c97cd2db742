// Reads memory as fast as the cores can: the yardstick for everything that is bound by the weights' bytes.
#include <omp.h>

#include "simd.h"

extern "C" {

// Reads `bytes` from one end to the other, each thread its own part; returns a number that depends on all of them.
float radixlm_read(const void* memory, int64_t bytes) {
  constexpr ptrdiff_t UNIT = 4 * W;  // floats
  float result = 0;
#pragma omp parallel reduction(+ : result)
  {
    ptrdiff_t units = bytes / (UNIT * 4), n = omp_get_num_threads(), me = omp_get_thread_num();
    vf sums[4] = {zero(), zero(), zero(), zero()};
    const float* p = static_cast<const float*>(memory);
    for (ptrdiff_t u = units * me / n; u < units * (me + 1) / n; u++)
      for (int i = 0; i < 4; i++) sums[i] = sums[i] + load(p + u * UNIT + i * W);
    result += sum(sums[0] + sums[1] + sums[2] + sums[3]);
  }
  return result;
}
}
